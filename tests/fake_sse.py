"""A server on a real socket that answers as it is told, broken or not: one script per request."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

STREAM = {"Content-Type": "text/event-stream"}


class Exchange:
    """One request, and the means to answer it. The connection closes when its script returns."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        head = b""
        while b"\r\n\r\n" not in head:
            more = connection.recv(65536)
            if not more:
                raise ConnectionError("no request")
            head += more
        first, *lines = head.decode().split("\r\n\r\n")[0].split("\r\n")
        self.path = first.split(" ")[1]
        self.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        self.cursor = self.headers.get("last-event-id")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        lines = [f"HTTP/1.1 {status} Whatever", "Connection: close"]
        lines += [f"{k}: {v}" for k, v in (headers or {}).items()]
        self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def stream(self, **declared: object) -> None:
        """200 and the headers of a stream; `replay_floor=1` becomes `Replay-Floor: 1`."""
        named = {k.replace("_", "-").title(): str(v) for k, v in declared.items()}
        self.answer(200, STREAM | named)

    def events(self, first: int, last: int) -> None:
        self.send(b"".join(event(n) for n in range(first, last + 1)))

    def keepalives(self, seconds: float, interval_s: float = 0.05) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.send(b": keepalive\n\n")
            time.sleep(interval_s)

    def wait_for_close(self) -> None:
        with contextlib.suppress(OSError):
            while self.socket.recv(65536):
                pass


Script = Callable[[Exchange], None]


def event(n: int, data: str = "") -> bytes:
    return f"id: {n}\ndata: {data or n}\n\n".encode()


class FakeServer:
    """`scripts[i]` answers request i, the last one all that follow. `requests` holds what came."""

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        self.requests: list[Exchange] = []
        self.errors: list[BaseException | None] = []  # of the scripts: a test's own mistakes
        lock = threading.Lock()

        class Handler(socketserver.BaseRequestHandler):
            def handle(handler) -> None:
                with contextlib.suppress(OSError):
                    exchange = Exchange(handler.request)
                    with lock:
                        self.requests.append(exchange)
                        script = scripts[min(len(self.requests), len(scripts)) - 1]
                    script(exchange)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

            def handle_error(server, request: Any, client_address: Any) -> None:
                self.errors.append(sys.exception())

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/sessions/s/events"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def cursors(self) -> list[str | None]:
        return [request.cursor for request in self.requests]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def serving(*scripts: Script) -> Iterator[FakeServer]:
    server = FakeServer(scripts)
    try:
        yield server
    finally:
        server.close()
    assert not server.errors, server.errors
