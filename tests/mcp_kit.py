"""What the MCP tests share: one server and one client for whichever SDK is installed, raw HTTP, and a proxy
that cuts.

The tests run once per SDK, in three environments (`python tests/mcp_matrix.py`). Where none is installed they
skip, and say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("mcp.server.streamable_http", reason="NO MCP SDK INSTALLED: the MCP adapter is not tested here")

import httpx
import uvicorn
from mcp.client.streamable_http import streamable_http_client
from mcp.server.streamable_http import EventMessage, EventStore

from mcp import ClientSession

REVISION = "2025-11-25"
OLD_REVISION = "2025-06-18"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


SDK = "fastmcp" if _version("fastmcp") else ("mcp1" if _version("mcp").startswith("1.") else "mcp2")
SDK_NAME = f"fastmcp {_version('fastmcp')}" if SDK == "fastmcp" else f"mcp {_version('mcp')}"

if SDK == "fastmcp":
    from fastmcp import Context, FastMCP
elif SDK == "mcp2":
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver import MCPServer as FastMCP
else:
    from mcp.server.fastmcp import Context, FastMCP


# -- a server ---------------------------------------------------------------------------------------------


class Ran:
    """What the tools of a server have done, whatever their clients saw."""

    def __init__(self) -> None:
        self.counted = 0
        self.finished = 0
        self.failures: list[str] = []


def make_server(**settings: Any) -> tuple[Any, Ran]:
    """A server with tools that count, wait, send much, close their stream and ask their client."""
    server, ran = FastMCP("kit", **settings), Ran()

    @server.tool()
    async def count(ctx: Context, to: int, every_s: float = 0.0) -> str:
        for n in range(1, to + 1):
            await ctx.report_progress(n, to)
            ran.counted += 1
            await asyncio.sleep(every_s)
        ran.finished += 1
        return f"counted to {to}"

    @server.tool()
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        ran.finished += 1
        return f"waited {seconds}"

    @server.tool()
    async def pour(ctx: Context, events: int, size: int) -> str:
        for n in range(1, events + 1):
            await ctx.report_progress(n, events, "x" * size)
            ran.counted += 1
        ran.finished += 1
        return "poured"

    @server.tool()
    async def announce(ctx: Context, times: int = 1) -> str:
        for _ in range(times):
            await session_of(ctx).send_resource_list_changed()
        return "announced"

    @server.tool()
    async def close_and_go_on(ctx: Context, to: int) -> str:
        for n in range(1, to + 1):
            if n == to // 2:
                await close_stream(ctx)
            await ctx.report_progress(n, to)
            await asyncio.sleep(0.01)
        return "went on"

    @server.tool()
    async def ask(ctx: Context) -> str:
        try:
            roots = await session_of(ctx).list_roots()
        except Exception as error:  # noqa: BLE001 - the tests look at whatever came
            ran.failures.append(str(error))
            return f"no answer: {error}"
        return f"{len(roots.roots)} roots"

    return server, ran


def session_of(ctx: Any) -> Any:
    return ctx.session


async def close_stream(ctx: Any) -> None:
    for name in ("close_sse_stream",):
        if hasattr(ctx, name):
            await getattr(ctx, name)()
            return
    await ctx.request_context.close_sse_stream()


def own_app(server: Any, event_store: Any, **settings: Any) -> Any:
    """The SDK's own app with an event store of its own: what people have today."""
    if SDK == "fastmcp":
        return server.http_app(event_store=event_store, **settings)
    if SDK == "mcp2":
        return server.streamable_http_app(event_store=event_store, **settings)
    server._event_store = event_store
    for name, value in settings.items():
        setattr(server, f"_{name}", value)
    return server.streamable_http_app()


def own_store(window: int) -> Any:
    """What an SDK has for a store: fastmcp ships one; for the others, one as their example has it."""
    if SDK == "fastmcp":
        from fastmcp.server.event_store import EventStore as Shipped

        return Shipped(max_events_per_stream=window)
    return ExampleStore(window)


class ExampleStore(EventStore):
    """In memory, a bounded queue per stream id, an index of event ids; unknown ids give None."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._streams: dict[str, list[tuple[str, Any]]] = {}
        self._index: dict[str, str] = {}

    async def store_event(self, stream_id: str, message: Any) -> str:
        event_id = uuid.uuid4().hex
        stream = self._streams.setdefault(stream_id, [])
        stream.append((event_id, message))
        self._index[event_id] = stream_id
        if len(stream) > self._window:
            del self._index[stream.pop(0)[0]]
        return event_id

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        stream_id = self._index.get(last_event_id)
        if stream_id is None:
            return None
        found = False
        for event_id, message in list(self._streams[stream_id]):
            if found and message is not None:
                await send_callback(EventMessage(message, event_id))
            found = found or event_id == last_event_id
        return stream_id


@contextlib.contextmanager
def serve(app: Any) -> Iterator[str]:
    """Serve an app from a thread; the URL of its endpoint."""
    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    until(lambda: server.started or not thread.is_alive(), 20)
    assert server.started, "the server did not start"
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join(20)
        sock.close()


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait for a condition; what it returned."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


# -- the SDK's client -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def client(url: str, **callbacks: Any) -> AsyncIterator[ClientSession]:
    """The SDK's own client, after the handshake of the revisions that have sessions."""
    async with contextlib.AsyncExitStack() as stack:
        streams = await stack.enter_async_context(streamable_http_client(url, terminate_on_close=False))
        session = await stack.enter_async_context(ClientSession(streams[0], streams[1], **callbacks))
        await session.initialize()
        yield session


def text_of(result: Any) -> str:
    return str(result.content[0].text)


# -- raw HTTP ---------------------------------------------------------------------------------------------


class Sse:
    """The events of a response, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.comments: list[str] = []
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        fields: dict[str, Any] = {}
        for line in self._lines:
            if line.startswith(":"):
                self.comments.append(line[1:].strip())
            elif line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            elif fields:
                data = fields.get("data")
                if data:
                    fields["json"] = json.loads(data)
                yield fields
                fields = {}


class Raw:
    """An MCP client that does one thing at a time."""

    def __init__(self, url: str, revision: str = REVISION, headers: dict[str, str] | None = None) -> None:
        self.url = url
        self.revision = revision
        self.http = httpx.Client(timeout=20)
        self.session_id = ""
        self.extra = headers or {}

    def headers(self, **more: str) -> dict[str, str]:
        fields = {"accept": "application/json, text/event-stream", **self.extra, **more}
        if self.session_id:
            fields["mcp-session-id"] = self.session_id
            fields["mcp-protocol-version"] = self.revision
        return fields

    def initialize(self, capabilities: dict[str, Any] | None = None) -> Raw:
        params = {
            "protocolVersion": self.revision,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "raw", "version": "1"},
        }
        with self.stream(0, "initialize", params) as events:
            self.session_id = events.response.headers["mcp-session-id"]
            assert "result" in [e for e in events if "json" in e][-1]["json"]
        self.notify("notifications/initialized")
        return self

    def post(self, message: Any, **headers: str) -> httpx.Response:
        return self.http.post(self.url, json=message, headers=self.headers(**headers))

    def notify(self, method: str, params: Any = None) -> httpx.Response:
        return self.post({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})})

    @contextlib.contextmanager
    def stream(self, id: Any, method: str, params: Any) -> Iterator[Sse]:
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        with self.http.stream("POST", self.url, json=message, headers=self.headers()) as response:
            yield Sse(response)

    @contextlib.contextmanager
    def call(self, id: Any, tool: str, **arguments: Any) -> Iterator[Sse]:
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": f"token-{id}"}}
        with self.stream(id, "tools/call", params) as events:
            yield events

    @contextlib.contextmanager
    def call_in(self, other: Raw, id: Any, tool: str, **arguments: Any) -> Iterator[Sse]:
        """A call in the session of another, over a connection of its own."""
        self.session_id = other.session_id
        with self.call(id, tool, **arguments) as events:
            yield events

    def result(self, id: Any, tool: str, **arguments: Any) -> Any:
        with self.call(id, tool, **arguments) as events:
            return list(events)[-1]["json"]

    @contextlib.contextmanager
    def get(self, last_event_id: str | None = None, **headers: str) -> Iterator[Sse]:
        if last_event_id is not None:
            headers["last-event-id"] = last_event_id
        with self.http.stream("GET", self.url, headers=self.headers(**headers)) as response:
            yield Sse(response)

    def delete(self) -> httpx.Response:
        return self.http.delete(self.url, headers=self.headers())


def progress_of(events: list[dict[str, Any]]) -> list[int]:
    """The numbers that a counting call sent."""
    found = [e["json"] for e in events if "json" in e]
    return [int(m["params"]["progress"]) for m in found if m.get("method") == "notifications/progress"]


# -- a proxy ----------------------------------------------------------------------------------------------


class Proxy:
    """Passes bytes on until told to cut; while `held`, new connections wait."""

    def __init__(self, url: str) -> None:
        self._upstream = httpx.URL(url)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self.cut_at = b""
        self.cuts = 0
        self.on_cut: Callable[[], None] = lambda: None
        self._pairs: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/mcp"

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """Every connection, now."""
        self._loop.call_soon_threadsafe(self._cut_all)

    def _cut_all(self) -> None:
        self.cuts += 1
        for writer in list(self._pairs):
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not self._open.is_set():
            await asyncio.sleep(0.02)
        try:
            up_reader, up_writer = await asyncio.open_connection(self._upstream.host, self._upstream.port)
        except OSError:
            writer.transport.abort()
            return
        self._pairs |= {writer, up_writer}
        try:
            await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer, watched=True))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._pairs -= {writer, up_writer}
            writer.transport.abort()
            up_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, watched: bool = False) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            if watched and self.cut_at and self.cut_at in data:
                await writer.drain()
                self.cut_at = b""
                self.on_cut()
                await asyncio.sleep(0.05)  # what was written arrives
                self._cut_all()
                return
            await writer.drain()
        writer.close()

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._cut_all)
        time.sleep(0.05)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
