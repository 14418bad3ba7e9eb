"""Readers of one stream: what the SDK takes for the receiving half of a memory stream reads the log instead.

Guarantees: a reader holds no queue, so a client that does not read costs nothing and stalls nobody; between
stored and live events there is no seam, because there is one cursor and one loop; a stream has one reader at
a time, and who comes later takes over; what cannot be served is answered in the stream's own terms, never
skipped. Belongs to the event loop that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from replaylog import FLOOR, NotResumable, Reason, ReplayLogError, Verdict
from replaylog.mcp import _edges, _words
from replaylog.mcp._words import Outgoing

if TYPE_CHECKING:
    from replaylog import aio
    from replaylog.mcp._book import Book, Stream

__all__ = ["NullSender", "Reader", "RequestStreams"]


class Reader:
    """`async for` over a stream from a cursor on, until its response, until closed or until it fails."""

    def __init__(self, book: Book, stream: Stream, cursor: Any, *, first: Sequence[Outgoing] = ()) -> None:
        self._book = book
        self._stream = stream
        self._cursor = cursor
        self._first = list(first)
        self._follow: aio.Follow | None = None
        self._over = False
        stream.hand_to(self)

    async def begin(self) -> Verdict:
        """Reserve what the cursor needs. NotResumable."""
        self._follow = self._stream.session.follow(self._cursor)
        await self._follow.__aenter__()
        return self._follow.verdict

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Outgoing:
        while True:
            if self._first:
                return self._first.pop(0)
            if self._over:
                raise StopAsyncIteration
            try:
                return await self._next()
            except NotResumable as error:
                self._first = self._refuse(error)
            except StopAsyncIteration:
                self._finish()
                if not self._first:
                    raise
            except ReplayLogError as error:
                if not self._book.is_reaped:
                    self._stream.failed = self._stream.failed or str(error)
                self._finish()

    async def _next(self) -> Outgoing:
        if self._stream.failed:
            raise StopAsyncIteration
        if self._follow is None:
            await self.begin()
        assert self._follow is not None
        event = await self._follow.__anext__()
        self._stream.sent = max(self._stream.sent, event.id)
        return Outgoing(event.payload, event.cursor, is_response=event.kind == "response")

    def _refuse(self, error: NotResumable) -> list[Outgoing]:
        """Too slow, or too late: the words for it. A GET stream goes on from its floor, a call's ends."""
        if self._book.is_reaped:  # the client deleted its session: nothing is lost to it
            self.close()
            return []
        words = _words.refusal(self._book, self._stream, error.verdict)
        if self._stream.is_get and error.verdict.reason is not Reason.REAPED:
            self._restart(FLOOR)
        else:
            self.close()
        return words

    def _restart(self, cursor: Any) -> None:
        if self._follow is not None:
            self._follow.close()
        self._follow, self._cursor = None, cursor

    def _finish(self) -> None:
        if self._stream.failed and not self._over and not self._stream.is_get:
            self._first = [_words.failure(self._stream)]
        self.close()

    def wake(self) -> None:
        """Look again: the stream has failed."""
        if self._follow is not None:
            self._follow.close()

    def close(self) -> None:
        """End the iteration. Idempotent."""
        self._over = True
        self._stream.let_go(self)
        if self._follow is not None:
            self._follow.close()

    # -- the face of anyio's receiving half ----------------------------------------------------------

    async def receive(self) -> Outgoing:
        """One event; EndOfStream after the last."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        """As close()."""
        self.close()

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


class NullSender:
    """The sending half: the event is in the log already, and its reader reads it there."""

    async def send(self, item: object) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""


class RequestStreams(dict[Any, Any]):
    """The transport's table of open streams. Storing a pair stores a reader of the log in its place.

    The SDK's router sends into the first half and would wait there, for all streams of the session, once a
    client stops reading: 16 events are the whole queue.
    """

    def __init__(self, book: Book, reader_for: Callable[[str], Any]) -> None:
        super().__init__()
        self._book = book
        self._reader_for = reader_for

    def __setitem__(self, key: Any, pair: Any) -> None:
        reader = self._reader_for(key)
        if reader is None:
            super().__setitem__(key, pair)
            return
        for half in pair:
            half.close()
        super().__setitem__(key, (NullSender(), reader))

    def __contains__(self, key: object) -> bool:
        # A resumed GET stream is not in the table, and still the one stream that a session may have.
        return super().__contains__(key) or (key == _edges.GET_STREAM_KEY and self._book.has_get_reader())

    def __missing__(self, key: Any) -> tuple[NullSender, NullSender]:
        return NullSender(), NullSender()
