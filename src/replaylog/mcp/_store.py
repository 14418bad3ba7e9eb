"""The `EventStore` of the SDKs, on a log.

Guarantees: stored events replay in order and the live ones follow without a seam, because the tail is part of
the replay; an event id is a token of its stream's own log, so ids of other sessions are refused; a refused
cursor ends the call with a JSON-RPC error instead of an empty stream. One store serves one MCP session.

What a store alone cannot give: a client that does not read still stalls its session (the SDK's router waits
in a queue of 16), sessions end with the process, and no status or header carries the verdict. That needs the
session manager.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from replaylog import ReplayLogError, Retention, aio
from replaylog._log import Log
from replaylog.mcp import _edges
from replaylog.mcp._book import Book, Limits
from replaylog.mcp._resume import judged, resume

__all__ = ["EventStore", "ManagedStore", "per_session"]


class EventStore(_edges.EventStore):  # type: ignore[misc, unused-ignore]
    """Give each session (each transport) its own: `per_session(log)` does that for a manager of your own.

    `session_id` names it in the log; leave it out for a random one.
    """

    def __init__(
        self,
        log: Log | aio.Log,
        session_id: str | None = None,
        *,
        retention: Retention | None = None,
        finished_max: int = 64,
        finished_age_s: float = 900.0,
    ) -> None:
        limits = Limits(retention, finished_max, finished_age_s)
        self._book = Book(as_aio(log), session_id or uuid4().hex, limits)

    async def store_event(self, stream_id: str, message: Any) -> str:
        """The event's id, once it is durable; "" where the log refused it and its stream has failed."""
        book = self._book
        if message is None or (stream_id != _edges.GET_STREAM_KEY and not book.is_open(stream_id)):
            guess = int(stream_id) if stream_id.isascii() and stream_id.isdigit() else stream_id
            await book.open(stream_id, guess, "", is_guess=True)
        if message is None:
            return book.start_token(stream_id)
        stored = await book.store(stream_id, message)
        if stored is None:
            return ""
        stream, ticket = stored
        if ticket is not None:
            try:
                await ticket.wait()
            except ReplayLogError as error:
                book.fail(stream, error)
                return ""
        return stream.session.cursor

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> None:
        """Replay and tail, until the stream's response. Never returns the id: the SDK would open a second
        tail, and what is stored between the two would be lost.
        """
        async for out in await resume(self._book, last_event_id):
            await send_callback(_as_message(out))


def _as_message(out: Any) -> Any:
    return _edges.EventMessage(_edges.parse(out.text), out.event_id)


class ManagedStore(_edges.EventStore):  # type: ignore[misc, unused-ignore]
    """The store of a transport of ours: nobody waits for the disk, and nobody sees an event before it is
    there.
    """

    def __init__(self, book: Book) -> None:
        self._book = book

    async def store_event(self, stream_id: str, message: Any) -> str:
        """Queue it. The id goes to a sender that drops it; readers learn it from the log."""
        if message is None:
            return self._book.start_token(stream_id)
        stored = await self._book.store(stream_id, message)
        if stored is not None:
            self._book.settle(*stored)
        return ""

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> None:
        """Replay and tail what the transport has judged."""
        async for out in judged.get() or await resume(self._book, last_event_id):
            await send_callback(out)


def as_aio(log: Log | aio.Log) -> aio.Log:
    """Either face of a log."""
    return log if isinstance(log, aio.Log) else aio.Log(log)


class per_session:
    """The `event_store` of a manager of your own: each transport that it makes gets a store of its own.

    class Manager(StreamableHTTPSessionManager):
        event_store = replaylog.mcp.per_session(log)
    """

    def __init__(self, log: Log | aio.Log, **limits: Any) -> None:
        self._log = log
        self._limits = limits

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else EventStore(self._log, **self._limits)

    def __set__(self, instance: object, value: object) -> None:
        if value is not None:
            raise ValueError("event_store is made per session here: leave the argument out")
