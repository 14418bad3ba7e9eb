"""A TCP proxy under the test's control: it counts requests, cuts answers, drops what is open.

One request per connection is all that it understands, so it asks the server to close after each.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple


class Asked(NamedTuple):
    """The head of a request that passed."""

    target: str
    headers: dict[str, str]

    @property
    def cursor(self) -> str | None:
        return self.headers.get("last-event-id")


class Proxy:
    """`cut_after()` says how many bytes of the next answer pass before it is cut, or None."""

    def __init__(self, port: int, cut_after: Callable[[], int | None] = lambda: None) -> None:
        self._to = ("127.0.0.1", port)
        self._cut_after = cut_after
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.asked: list[Asked] = []
        self.cuts = 0
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def drop(self) -> None:
        """Cut every connection that is open."""
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()
        self.drop()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def own(self, asked: Asked, body: bytes) -> bytes | None:
        """An answer of the proxy's own, or None: pass it on. For subclasses."""
        return None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            request = self._read(client)
            if request is None:
                return
            asked, body, raw = request
            if (answer := self.own(asked, body)) is not None:
                client.sendall(answer)
                return
            with self._lock:
                self.asked.append(asked)
            with socket.create_connection(self._to) as server:
                with self._lock:
                    self._open |= {client, server}
                try:
                    server.sendall(raw)
                    self._pass_on(server, client)
                finally:
                    with self._lock:
                        self._open -= {client, server}

    @staticmethod
    def _read(client: socket.socket) -> tuple[Asked, bytes, bytes] | None:
        raw = b""
        while b"\r\n\r\n" not in raw:
            part = client.recv(65536)
            if not part:
                return None
            raw += part
        start, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = start.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", 0)):
            part = client.recv(65536)
            body += part
        kept = [line for line in lines if not line.lower().startswith("connection:")]
        head = "\r\n".join([first, *kept, "Connection: close", "", ""])
        return Asked(first.split(" ")[1], headers), body, head.encode("latin-1") + body

    def _pass_on(self, server: socket.socket, client: socket.socket) -> None:
        gone = threading.Thread(target=self._watch, args=(client, server), daemon=True)
        gone.start()
        left = self._cut_after()
        while part := server.recv(8192):
            if left is not None:
                if len(part) >= left:
                    client.sendall(part[:left])
                    self.cuts += 1
                    self._shut(client)
                    return
                left -= len(part)
            client.sendall(part)
        self._shut(client)

    @staticmethod
    def _watch(client: socket.socket, server: socket.socket) -> None:
        """A client that leaves takes its connection to the server with it."""
        with contextlib.suppress(OSError):
            while client.recv(65536):
                pass
        Proxy._shut(server)

    @staticmethod
    def _shut(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
