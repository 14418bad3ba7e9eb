"""An `App` on uvicorn, with the promises that only a server can keep.

Guarantees: a connection whose peer takes nothing for `stall_max_s` is closed by the kernel
(`TCP_USER_TIMEOUT`, set on the listening socket and inherited) and by us; what is sent but not read is
bounded (`SO_SNDBUF`); on SIGTERM or SIGINT every stream gets its `retry:` and the process is ready to
exit within `grace_s`. Call `run` from the main thread.
"""

from __future__ import annotations

import asyncio
import copy
import ipaddress
import logging
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import uvicorn
import uvicorn.config
from starlette.types import Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from replaylog.asgi._app import App
from replaylog.asgi._guard import RedactTickets
from replaylog.asgi._settings import LOOPBACK_HOSTS, Settings

if TYPE_CHECKING:
    import replaylog

__all__ = ["hosts_for", "is_loopback", "listen", "run", "url_of"]

SEND_BUFFER_BYTES = 256 * 1024
BACKLOG = 2048


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def hosts_for(host: str, extra: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The Host names to answer to. Off loopback any address literal too: it cannot be re-pointed."""
    if is_loopback(host):
        return (*LOOPBACK_HOSTS, host, *extra)
    return (*LOOPBACK_HOSTS, host, socket.gethostname(), "ip", *extra)


def listen(host: str, port: int, *, stall_max_s: float) -> socket.socket:
    """A listening socket whose connections inherit the stall limit and the bounded send buffer."""
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stall_max_s * 1000))
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def url_of(sock: socket.socket) -> str:
    """Where the server can be reached, with the real port."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    log: replaylog.Log,
    settings: Settings,
    sock: socket.socket,
    *,
    grace_s: float,
    access_log: bool = False,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGTERM or SIGINT. Does not close `log`."""
    app = App(
        log,
        settings=replace(settings, stall_enforced=True),
        abort=lambda scope: server.abort(scope),
        writable=_writable,
    )
    config = uvicorn.Config(
        app,
        http=_Protocol,
        lifespan="off",
        ws="none",
        access_log=access_log,
        log_level="info" if access_log else "warning",
        log_config=_log_config(),
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=cast(int, grace_s * 0.4),  # seconds of any kind, says asyncio
    )
    server = _Server(config, app, drain_s=grace_s * 0.3, ready=lambda: ready(url_of(sock)))
    logging.getLogger("uvicorn.access").addFilter(RedactTickets())
    with _own_signals(server), asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(server.serve(sockets=[sock]))


class _OneWrite:
    """A transport that sends the head of an answer together with what follows it: two writes are two
    system calls, and that is a fifth of a short resume. Bounded: only a head is ever held."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Protocol(AutoHTTPProtocol):  # type: ignore[valid-type,misc]  # chosen at import
    """uvicorn's best HTTP protocol here: httptools where it is installed, else h11."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        one_write = _OneWrite(cast(asyncio.Transport, transport), asyncio.get_running_loop())
        super().connection_made(cast(asyncio.Transport, one_write))


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed (`replaylog[serve]` brings it and httptools), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _log_config() -> dict[str, Any]:
    """uvicorn's own, but stdout belongs to whoever started us."""
    config = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
    config["handlers"]["access"]["stream"] = "ext://sys.stderr"
    return config


@contextmanager
def _own_signals(server: uvicorn.Server) -> Iterator[None]:
    """Signals that come before uvicorn listens to them, and the one that it raises again when it is done:
    by default they kill us before the log is closed."""

    def leave(*_: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, app: App, *, drain_s: float, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._app = app
        self._drain_s = drain_s
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Streams first: uvicorn waits for its connections, and an open stream never ends by itself."""
        for server in self.servers:
            server.close()
        await self._app.drain(self._drain_s)
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            _reset(connection)

    def abort(self, scope: Scope) -> None:
        """Reset the connection of a request: what its peer did not take is dropped with it."""
        client = tuple(scope["client"] or ())
        for connection in list(self.server_state.connections):
            if tuple(getattr(connection, "client", None) or ()) == client:
                _reset(connection)


def _writable(send: Send) -> bool:
    """Whether uvicorn's own `send` would write at once; a wrapped one is not ours to know."""
    flow = getattr(getattr(send, "__self__", None), "flow", None)
    return flow is not None and not flow.write_paused


def _reset(connection: object) -> None:
    """Close with RST. A plain close leaves the kernel offering the unsent bytes to a peer that reads none."""
    transport = getattr(connection, "transport", None)
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
