"""Who waits for which session: one task per session and loop, however many streams follow it.

Guarantees: a stream that joined is told of everything that is published after its last look; a session
that nobody follows costs nothing. Runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from replaylog import aio
from replaylog._errors import LogClosed

if TYPE_CHECKING:
    from replaylog._session import Session
    from replaylog.asgi._stream import Stream

__all__ = ["Feed", "Feeds"]

# So many streams are told before the loop may do something else: one append to 10,000 followers must
# not hold up every other request for as long as that takes.
BURST = 256


class Feeds:
    """The sessions that are followed on this loop."""

    def __init__(self) -> None:
        self._feeds: dict[Session, Feed] = {}

    def join(self, log: aio.Log, session: Session, stream: Stream) -> None:
        """From now on `stream.moved()` is called after each publication."""
        feed = self._feeds.get(session)
        if feed is None:
            feed = self._feeds[session] = Feed(log, session)
        feed.streams.add(stream)

    def leave(self, session: Session, stream: Stream) -> None:
        """Idempotent."""
        feed = self._feeds.get(session)
        if feed is None:
            return
        feed.streams.discard(stream)
        if not feed.streams:
            del self._feeds[session]
            feed.close()


class Feed:
    """The streams of one session, and the task that tells them."""

    def __init__(self, log: aio.Log, session: Session) -> None:
        self._log = log
        self._session = session
        self.streams: set[Stream] = set()
        self._task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        bell = aio._exchange(self._log.sync)
        mine: set[asyncio.Future[None]] = set()
        try:
            while not self._log.closed:
                seen = self._seen()
                # After the look and not before: what comes in between is in `seen` already.
                await self._tell()
                await bell.moved(self._session, self._is_past(seen), None, mine)
        except LogClosed:  # between two of these lines
            pass
        await self._tell()

    def _seen(self) -> tuple[int, str]:
        return self._session.head, self._session.state

    def _is_past(self, seen: tuple[int, str]) -> Callable[[], bool]:
        return lambda: self._log.closed or self._seen() != seen

    async def _tell(self) -> None:
        left = BURST
        for stream in list(self.streams):
            stream.moved()
            if (left := left - 1) == 0:
                left = BURST
                await asyncio.sleep(0)
