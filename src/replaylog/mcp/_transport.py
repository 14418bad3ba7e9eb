"""One MCP session over HTTP: the SDK's transport with its streams in the log.

Guarantees: a request's stream is durable before the request is dispatched; a cursor is judged after
everything that the SDK checks and before a byte of the stream; a failure of the log is told to the client as
an error of its call, and never reaches the SDK's router as an exception. Belongs to one event loop.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, Literal

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from replaylog import ReplayLogError, _sse
from replaylog.mcp import _edges, _words
from replaylog.mcp._book import Book
from replaylog.mcp._reader import RequestStreams
from replaylog.mcp._resume import Resumption, judged, resume
from replaylog.mcp._store import ManagedStore

__all__ = ["Refuse", "Transport"]

logger = logging.getLogger("replaylog.mcp")

Refuse = Literal["event", "status"]


class _Incoming:
    """The request that is being handled, as its client sent it."""

    def __init__(self, text: str, document: dict[str, Any], key: str) -> None:
        self.text = text
        self.id = document["id"]
        self.method: str = document["method"]
        params = document.get("params")
        self.params: dict[str, Any] = params if isinstance(params, dict) else {}
        self.key = key
        self.failed = ""


_incoming: ContextVar[_Incoming | None] = ContextVar("incoming", default=None)


class Transport(_edges.StreamableHTTPServerTransport):  # type: ignore[misc, unused-ignore]
    """As the SDK's, plus `book`, the session in the log, and `owner`, who began it."""

    def __init__(self, book: Book, owner: dict[str, Any] | None, refuse: Refuse, **settings: Any) -> None:
        super().__init__(event_store=ManagedStore(book), **settings)
        self.book = book
        self._owner = owner
        self._refuse = refuse
        self._request_streams = RequestStreams(book, self._reader_for)
        book.fail_request = self._fail_request

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """As the SDK's. What goes to the server passes `_Inlet`."""
        async with super().connect() as streams:
            setattr(self, _WRITER, _Inlet(getattr(self, _WRITER), self))
            yield streams

    def _create_event_data(self, event_message: Any) -> dict[str, Any]:
        if isinstance(event_message, _words.Outgoing):
            return event_message.as_event(self._retry_interval)
        return dict(super()._create_event_data(event_message))

    # -- POST ------------------------------------------------------------------------------------------

    async def _handle_post_request(self, scope: Scope, request: Request, receive: Receive, send: Send) -> None:
        if self.book.is_muted:
            await super()._handle_post_request(scope, request, receive, send)
            return
        try:
            body = await request.body()
        except ClientDisconnect:
            return
        document = _document(body)
        if document is None or not _is_id(document.get("id")):
            await self._post_other(document, scope, request, receive, send)
        elif isinstance(document.get("method"), str):
            await self._post_call(body.decode(), document, scope, request, receive, send)
        else:
            await self._post_answer(document, scope, request, receive, send)

    async def _post_call(
        self,
        text: str,
        document: dict[str, Any],
        scope: Scope,
        request: Request,
        receive: Receive,
        send: Send,
    ) -> None:
        key = self.book.reserve(document["id"])
        incoming = _Incoming(text, document, key)
        if key != str(document["id"]):
            request = _with_document(request, {**document, "id": key})
        token = _incoming.set(incoming)
        try:
            await super()._handle_post_request(scope, request, receive, send)
        finally:
            _incoming.reset(token)
            self.book.release(key)
        if incoming.failed and incoming.method == "initialize":
            await self.terminate()  # nothing was established

    async def _post_answer(
        self, document: dict[str, Any], scope: Scope, request: Request, receive: Receive, send: Send
    ) -> None:
        """An answer to a request of the server goes to who asked, or is refused: never a silent 202."""
        if not await self._validate_request_headers(request, send):
            return
        local_id = self.book.calls.answered(document["id"])
        if local_id is None:
            why = f"{document['id']} was asked by a process that is gone: no one waits for the answer"
            await self._create_error_response(why, HTTPStatus.CONFLICT)(scope, receive, send)
            return
        if local_id != document["id"]:
            request = _with_document(request, {**document, "id": local_id})
        await super()._handle_post_request(scope, request, receive, send)

    async def _post_other(
        self, document: dict[str, Any] | None, scope: Scope, request: Request, receive: Receive, send: Send
    ) -> None:
        params = document.get("params") if document is not None else None
        if document is not None and document.get("method") == "notifications/cancelled" and isinstance(params, dict):
            key = self.book.key_of(params.get("requestId"))
            if key != str(params.get("requestId")):
                request = _with_document(request, {**document, "params": {**params, "requestId": key}})
        await super()._handle_post_request(scope, request, receive, send)

    async def _mint_priming_event(self, stream_id: str, protocol_version: str) -> Any:
        """The SDK has accepted the request and not dispatched it: here its stream begins to exist."""
        incoming = _incoming.get()
        if self.book.is_muted or incoming is None:
            return None
        try:
            if incoming.method == "initialize":
                await self.book.begin(incoming.text, self._owner)
            stream = await self.book.open(stream_id, incoming.id, incoming.method)
            stream.params = incoming.params if incoming.method in _REMEMBERED else {}
        except (ReplayLogError, ValueError) as error:
            logger.error("a call of %s cannot be recorded: %s", self.book.prefix, error)
            incoming.failed = f"the call was not started, because the log cannot record it: {error}"
            return None
        return await super()._mint_priming_event(stream_id, self._negotiated(protocol_version))

    def _create_session_message(self, message: Any, request: Request, key: Any, version: str) -> Any:
        return super()._create_session_message(message, request, key, self._negotiated(version))

    def _negotiated(self, header: str) -> str:
        """What a client understands is what it has negotiated; the header of one request may say less."""
        return self.book.state.version or header

    def _reader_for(self, key: str) -> Any:
        """What stands in the SDK's table for a stream that it has just opened; None: its own queue."""
        incoming = _incoming.get()
        if incoming is None or not incoming.failed:
            return self.book.reader_for(key)
        sender, reader = anyio.create_memory_object_stream[Any](1)
        text = _words.error_text(incoming.id, incoming.failed, {"started": False})
        sender.send_nowait(_words.Outgoing(text, is_response=True))
        sender.close()
        return reader

    async def dispatch(self, writer: Any, item: Any) -> None:
        """Hand a message to the server, unless its call could not be recorded."""
        incoming = _incoming.get()
        if incoming is not None and isinstance(item, _edges.SessionMessage):
            if incoming.failed:
                return
            if self.is_json_response_enabled and incoming.method == "initialize" and not self.book.is_muted:
                await self.book.begin(incoming.text, self._owner)
        await writer.send(item)

    def _fail_request(self, local_id: int, why: str) -> None:
        message = _edges.parse(_words.error_text(local_id, why, {}))
        self.book.run_soon(getattr(self, _WRITER).send, _edges.SessionMessage(message))

    # -- GET -------------------------------------------------------------------------------------------

    async def _handle_get_request(self, request: Request, send: Send) -> None:
        if not self.book.is_muted:
            await self.book.mend()
        await super()._handle_get_request(request, send)

    async def _replay_events(self, last_event_id: str, request: Request, send: Send) -> None:
        ids = request.headers.getlist("last-event-id")
        found = await resume(self.book, ids[0] if len(ids) == 1 else "")
        if not found.ok and self._refuses_by_status(request):
            await _words.problem(found.verdict, found.reason)(request.scope, request.receive, send)
            return
        await found.reserve()
        token = judged.set(found)
        try:
            await super()._replay_events(last_event_id, request, _proving(send, found))
        finally:
            judged.reset(token)

    def _refuses_by_status(self, request: Request) -> bool:
        return (request.headers.get(_sse.REFUSE) or self._refuse) == "status"

    def close_sse_stream(self, request_id: Any) -> None:
        """As the SDK's, for connections that have resumed too."""
        super().close_sse_stream(request_id)
        self.book.close_readers(str(request_id))

    # -- the end ---------------------------------------------------------------------------------------

    async def _handle_delete_request(self, request: Request, send: Send) -> None:
        if not await self._validate_request_headers(request, send):
            return
        try:
            await self.book.reap("deleted")
        except ReplayLogError as error:
            why = f"the session could not be deleted: {error}"
            response = self._create_error_response(why, HTTPStatus.SERVICE_UNAVAILABLE)
            await response(request.scope, request.receive, send)
            return
        await super()._handle_delete_request(request, send)

    async def terminate(self) -> None:
        """As the SDK's; the streams stay in the log for the next process."""
        await super().terminate()
        self.book.close_readers()


_WRITER = "_read_stream_writer"
_REMEMBERED = frozenset({"initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})


class _Inlet:
    """Where messages enter the server."""

    def __init__(self, writer: Any, transport: Transport) -> None:
        self._writer = writer
        self._transport = transport

    async def send(self, item: Any) -> None:
        await self._transport.dispatch(self._writer, item)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


def _document(body: bytes) -> dict[str, Any] | None:
    """The JSON-RPC message; None for what the SDK will refuse anyway."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _is_id(value: object) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _with_document(request: Request, document: dict[str, Any]) -> Request:
    """The same request with another body."""
    body = json.dumps(document).encode()
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return parts.pop() if parts else await request.receive()

    return Request(request.scope, receive)


def _proving(send: Send, found: Resumption) -> Send:
    """Add the proof: headers, and one comment before the first event."""
    fields = _words.headers(found.verdict, found.reason)

    async def wrapped(message: Message) -> None:
        if message["type"] != "http.response.start" or message["status"] != 200:
            await send(message)
            return
        extra = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
        await send({**message, "headers": [*message["headers"], *extra]})
        await send({"type": "http.response.body", "body": _words.comment(fields), "more_body": True})

    return wrapped
