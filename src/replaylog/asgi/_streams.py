"""All open streams of an `App`: their bound, their stall clock, their end.

Guarantees: a stream whose write has been blocked for `stall_max_s` is ended then, not at the next
tick of some timer; after `drain` no stream is open. Runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.types import Scope

from replaylog.asgi._settings import Settings

if TYPE_CHECKING:
    from replaylog.asgi._stream import Stream

__all__ = ["Abort", "Streams"]

# Closes the connection of a request at once, unsent bytes or not. Only the server can.
Abort = Callable[[Scope], None]


class Streams:
    """The registry. One timer watches every stream's write: one per write would cost more than the write."""

    def __init__(self, settings: Settings, abort: Abort | None) -> None:
        self._settings = settings
        self.abort = abort
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
        if len(self._open) >= self._settings.streams_max:
            return f"streams_max={self._settings.streams_max} streams are open: try again, or raise it"
        return ""

    def add(self, stream: Stream) -> None:
        self._open.add(stream)
        self._empty.clear()
        if self._timer is None:
            self._look_for_stalls()

    def discard(self, stream: Stream) -> None:
        self._open.discard(stream)
        if not self._open:
            self._empty.set()

    def _look_for_stalls(self) -> None:
        """Looks again when the first write is due; one that blocks after this look is due later than that."""
        loop, stall_max_s = asyncio.get_running_loop(), self._settings.stall_max_s
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

    async def drain(self, timeout_s: float) -> None:
        """End every stream with its `retry:`; cut off those that do not take it in time."""
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
