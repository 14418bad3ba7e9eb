"""How many readers can come back per second, and how long does each wait?

A resume is a request with a token that is 64 events (200 B each) behind, answered with the verdict, the
events and `replay-caught-up`. One worker, one load generator (loadgen.c), both on this machine. Capacity
is a closed loop; latency is an open loop at half the capacity that was just measured. The bare cases are
uvicorn with an application that only sends as many bytes: what the server itself leaves.
"""

from __future__ import annotations

import argparse

from http_load import Bare, Load, Serving, probe, show, write

EVENTS, MISSING, SIZE = 1000, 64, 200


def request(server: Serving, name: str, cursor: str, query: str = "") -> bytes:
    head = f"GET /sessions/{name}/events{query} HTTP/1.1\r\nHost: {server.host}\r\n"
    return f"{head}Accept: text/event-stream\r\nLast-Event-ID: {cursor}\r\n\r\n".encode()


def cursor_of(server: Serving, name: str) -> str:
    with server.stream(name, str(EVENTS - MISSING)) as reader:
        return reader.until("replay")[0].id


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--connections", type=int, default=32)
    asked = options.parse_args()
    load, results = Load(), {}
    with Serving(None, "--events", "100000") as server:
        for name in ("live", "ended"):
            server.ask("PUT", f"/sessions/{name}")
            server.extend(name, [("x" * SIZE, "message")] * EVENTS)
        server.ask("POST", "/sessions/ended/end")
        live, ended = cursor_of(server, "live"), cursor_of(server, "ended")
        cases = {
            "backlog of a live session (?until=head), kept connection": (
                request(server, "live", live, "?until=head"),
                True,
            ),
            "ended session, kept connection": (request(server, "ended", ended), True),
            "live stream, new connection each": (request(server, "live", live), False),
        }
        body = len(probe(server, next(iter(cases.values()))[0]).partition(b"\r\n\r\n")[2])
        with (
            Bare("bare_app.py", str(body), "finite") as finite,
            Bare("bare_app.py", str(body), "held") as held,
        ):
            bare = {
                "bare uvicorn, as many bytes, kept connection": (finite, True),
                "bare uvicorn, as many bytes held open, new connection each": (held, False),
            }
            rounds: dict[str, list] = {}
            for _ in range(asked.rounds):  # interleaved: what disturbs one disturbs all
                for name, (what, reuse) in cases.items():
                    rounds.setdefault(name, []).append(run(load, server, what, asked, reuse=reuse))
                for name, (other, reuse) in bare.items():
                    plain = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                    rounds.setdefault(name, []).append(run(load, other, plain, asked, reuse=reuse))
        for name, measured in rounds.items():
            results[name] = show(name, measured)
        for name, (what, reuse) in cases.items():
            half = results[name]["median_of_rounds"]["per_s"] / 2
            measured = [run(load, server, what, asked, reuse=reuse, rate=half) for _ in range(asked.rounds)]
            results[f"{name}, at half load"] = show(f"{name[:38]}..., at half load", measured)
    settings = {"missing": MISSING, "event_bytes": SIZE, "durability": "memory", **vars(asked)}
    write("http_resume", settings, results)


def run(
    load: Load,
    server: Serving | Bare,
    what: bytes,
    asked: argparse.Namespace,
    *,
    reuse: bool,
    rate: float = 0,
) -> dict:
    return load.resumes(
        server, what, connections=asked.connections, seconds=asked.seconds, rate=rate, reuse=reuse
    )


if __name__ == "__main__":
    main()
