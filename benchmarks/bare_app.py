"""The server without the library: uvicorn with an application that sends the same number of bytes.

bare_app.py PORT BODY_BYTES finite|held
"""

import sys

import uvicorn

PORT, BODY, MODE = int(sys.argv[1]), b"x" * int(sys.argv[2]), sys.argv[3]
# As many and as long headers as a stream of ours has.
HEADERS = [(b"x-header-%02d" % n, b"value-of-header") for n in range(12)]
FINITE = [*HEADERS, (b"content-length", b"%d" % len(BODY))]


async def app(scope, receive, send):
    held = MODE == "held"
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS if held else FINITE})
    await send({"type": "http.response.body", "body": BODY, "more_body": held})
    while held and (await receive())["type"] != "http.disconnect":
        pass


if __name__ == "__main__":
    uvicorn.run(app, port=PORT, log_level="error", access_log=False, lifespan="off", backlog=2048)
