"""All open streams of an application: their bound, their stall clock, their end.

Guarantees: a stream whose write has been blocked for `stall_max_s` is ended then, not at the next
tick of some timer; after `drain` no stream is open. Runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.types import Scope, Send

from replaylog import _http
from replaylog.asgi._feed import Feeds
from replaylog.asgi._settings import Settings

if TYPE_CHECKING:
    from replaylog.asgi._stream import Stream

__all__ = ["Abort", "Streams", "Writable"]

# Closes the connection of a request at once, unsent bytes or not. Only the server can.
Abort = Callable[[Scope], None]
# Whether a send would be done at once. Only the server knows.
Writable = Callable[[Send], bool]


class Streams:
    """The streams of one application: give the same one to each of its `EventStream`s, and `drain` it
    before the server waits for its connections. Settings by keyword, as in `Settings`."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        abort: Abort | None = None,
        writable: Writable | None = None,
        **named: Any,
    ) -> None:
        if settings is not None and named:
            raise TypeError("settings= or single settings by name, not both")
        self.settings = settings = settings or Settings(**named)
        self.abort = abort
        self.writable = writable
        self.feeds = Feeds()
        self.steady = _http.steady_headers(
            settings.keepalive_s, settings.stall_max_s if settings.stall_enforced else None
        )
        self._open: set[Stream] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self.draining = False

    def __len__(self) -> int:
        return len(self._open)

    def closed_to_new(self) -> str:
        """Why no stream can be opened now; "" when one can."""
        if self.draining:
            return "the server is shutting down: connect again"
        if len(self._open) >= self.settings.streams_max:
            return f"streams_max={self.settings.streams_max} streams are open: try again, or raise it"
        return ""

    def add(self, stream: Stream) -> None:
        self._open.add(stream)
        if self._timer is None:
            self._look_for_stalls()

    def discard(self, stream: Stream) -> None:
        self._open.discard(stream)
        if not self._open and self.draining:
            self._empty.set()

    def _look_for_stalls(self) -> None:
        """One timer watches every stream's write: one per write would cost more than the write. It looks
        again when the first is due; a write that blocks after this look is due later than that."""
        loop, stall_max_s = asyncio.get_running_loop(), self.settings.stall_max_s
        now_s = loop.time()
        due_s = now_s + stall_max_s
        for stream in list(self._open):
            if (since_s := stream.blocked_since_s) is None:
                continue
            if since_s + stall_max_s <= now_s:
                stream.stall()
            else:
                due_s = min(due_s, since_s + stall_max_s)
        self._timer = loop.call_at(due_s, self._look_for_stalls) if self._open else None

    async def drain(self, timeout_s: float = 2.0) -> None:
        """End every stream with its `retry:`; no new one opens. Who does not take it in time is cut off."""
        self.draining = True
        for stream in list(self._open):
            stream.stop()
        if not self._open:
            return
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:  # readers that do not read: nothing is lost, they resume from their cursor
            for stream in list(self._open):
                stream.stall()
            await self._empty.wait()
