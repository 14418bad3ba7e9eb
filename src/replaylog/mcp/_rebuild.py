"""A session of a former process, made to answer again.

Guarantees: only for the owner that the log names, and before the SDK compares owners; the client's own
initialize is driven through a new server with a store that records nothing, then `notifications/initialized`,
the log level and the subscriptions; calls that were running get their error as the last event of their
stream; ids of the server's requests go on above those of former processes. While it happens, other requests
of the session wait.

Not brought back: what a server keeps in its own memory per session.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import Response
from starlette.types import Message, Scope

from replaylog import ReplayLogError, aio
from replaylog.mcp import _edges, _words
from replaylog.mcp._book import Book, Limits
from replaylog.mcp._state import IDS_PER_LIFE
from replaylog.mcp._transport import Transport

if TYPE_CHECKING:
    from replaylog.mcp._manager import SessionManager

__all__ = ["revive"]

DROPPED = {
    b"accept",
    b"content-length",
    b"content-type",
    b"last-event-id",
    b"mcp-protocol-version",
    b"mcp-session-id",
    b"transfer-encoding",
}


async def revive(
    manager: SessionManager, log: aio.Log, session_id: str, scope: Scope, limits: Limits
) -> Response | None:
    """None: the session is there, or the log does not know it either. Else the answer to the request."""
    book = Book(log, session_id, limits)
    try:
        if not await book.load() or book.state.owner != _edges.requestor_of(scope):
            return None
        transport = manager.register(session_id, book.state.owner, book)
        if transport is None:
            return _unavailable("too many open sessions: this one is kept, try again")
        return await _bring_back(manager, transport, scope)
    except ReplayLogError as error:
        return _unavailable(f"the session is in the log and cannot be opened now: {error}")


async def _bring_back(manager: SessionManager, transport: Transport, scope: Scope) -> Response | None:
    book, session_id = transport.book, transport.mcp_session_id
    is_back = False
    try:
        book.state.lives += 1
        book.calls.offset = book.state.lives * IDS_PER_LIFE
        await book.write_record()
        await book.bury()
        is_back = await _drive_up(manager, transport, scope)
    finally:
        if not is_back:
            await manager._discard_session(str(session_id), transport)
    return None if is_back else _unavailable("the server refused to take the session up again")


async def _drive_up(manager: SessionManager, transport: Transport, scope: Scope) -> bool:
    book = transport.book
    book.is_muted = True
    try:

        async def opening(scope: Scope, receive: Any, send: Any) -> None:
            await manager._serve_opening_request(transport, scope, receive, send)

        if await _post(opening, scope, book.state.initialize, []) >= 400:
            return False
        headers = [(b"mcp-session-id", str(transport.mcp_session_id).encode())]
        if book.state.version:
            headers.append((b"mcp-protocol-version", book.state.version.encode()))
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await _post(transport.handle_request, scope, json.dumps(initialized), headers)
        for n, (method, params) in enumerate(book.state.replayed()):
            message = {"jsonrpc": "2.0", "id": f"replaylog-again-{n}", "method": method, "params": params}
            await _post(transport.handle_request, scope, json.dumps(message), headers)
    finally:
        book.is_muted = False
    return True


async def _post(
    app: Callable[[Scope, Any, Any], Awaitable[None]],
    scope: Scope,
    body: str,
    headers: list[tuple[bytes, bytes]],
) -> int:
    """POST a message as the client would have; the status."""
    raw = body.encode()
    kept = [(name, value) for name, value in scope["headers"] if name not in DROPPED]
    fixed = [
        (b"accept", b"application/json, text/event-stream"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(raw)).encode()),
    ]
    asked = {**scope, "method": "POST", "headers": kept + fixed + headers}
    parts: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]
    status = 500

    async def receive() -> Message:
        if parts:
            return parts.pop()
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]

    await app(asked, receive, send)
    return status


def _unavailable(why: str) -> Response:
    """Not 404: the client would begin a new session, while this one is kept."""
    text = _words.error_text(_edges.NO_ID, why, {})
    return Response(text, 503, {"Retry-After": "1"}, media_type="application/json")
