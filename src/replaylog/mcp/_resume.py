"""A cursor that came back: the verdict first, then what to send.

Guarantees: nothing is sent before the verdict; what was promised is reserved until it is read; an id of
another session gets the same answer as one that never existed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from replaylog import NotResumable, Reason, Verdict, _cursor
from replaylog.mcp import _words
from replaylog.mcp._book import Book, Stream
from replaylog.mcp._reader import Reader
from replaylog.mcp._words import Outgoing

__all__ = ["Resumption", "judged", "resume"]


@dataclass
class Resumption:
    """The verdict on an event id; `verdict` is None for an id of no stream of this session."""

    book: Book
    event_id: str
    reason: Reason
    verdict: Verdict | None = None
    stream: Stream | None = None
    first: list[Outgoing] = field(default_factory=list)
    _reader: Reader | None = None

    @property
    def ok(self) -> bool:
        """Every event after the id will be sent."""
        return self.verdict is not None and self.verdict.ok and not self.first

    async def reserve(self) -> None:
        """Take the stream over; from here on what was promised stays readable."""
        if self.stream is None or self.first:
            return
        reader = Reader(self.book, self.stream, self.event_id)
        try:
            self.verdict = await reader.begin()
            self.reason = self.verdict.reason
        except NotResumable as error:
            self.verdict, self.reason = error.verdict, error.verdict.reason
        self._reader = reader

    async def __aiter__(self) -> AsyncIterator[Outgoing]:
        """What goes out: the events, or the refusal in words. Begins with reserve() where that was not
        called.
        """
        if self._reader is None:
            await self.reserve()
        for out in self.first:
            yield out
        if self._reader is not None:
            async with self._reader as events:
                async for out in events:
                    yield out


judged: ContextVar[Resumption | None] = ContextVar("judged", default=None)
"""What the transport has judged, for the store's `replay_events_after`, which is given an id and nothing
else.
"""


async def resume(book: Book, event_id: str) -> Resumption:
    """Can the client go on from here?"""
    stream = book.find(event_id)
    if stream is None:
        reason = Reason.MALFORMED if _cursor.parse(event_id) is None else Reason.FORKED
        return Resumption(book, event_id, reason, first=[book.unknown(event_id)])
    verdict = await stream.session.check(event_id)
    if stream.is_get and stream.failed:
        successor = await book.get_stream()
        first = _words.broken(book, successor.session.cursor)
        return Resumption(book, event_id, Reason.FORKED, verdict, stream, first)
    return Resumption(book, event_id, verdict.reason, verdict, stream)
