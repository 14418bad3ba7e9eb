"""The hand-over between the thread that reads the socket and the application.

Guarantees: items come out in the order they went in, each once; what is held is bounded by
`events_max` and `bytes_max` (one item always fits, or a large event could never pass); a full
buffer blocks the reader, which is backpressure and costs nothing; what was put in before `finish`
comes out before its end does. A cancelled or timed-out take consumes nothing.

`put` and `finish` belong to the reader's thread; every other method may be called from any.
"""

from __future__ import annotations

import asyncio
import collections
import threading
import time
from typing import Generic, TypeVar

__all__ = ["END", "Buffer", "End"]

T = TypeVar("T")


class End:
    """What `take` gives once everything was taken and the reader has finished."""


END = End()


class Buffer(Generic[T]):
    def __init__(self, *, events_max: int, bytes_max: int) -> None:
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._items: collections.deque[tuple[T, int]] = collections.deque()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._finished = False
        self._abandoned = False
        self.size_bytes = 0
        self.is_full = False  # the reader is waiting for room right now
        self.full_count = 0  # how often it had to

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, size_bytes: int) -> bool:
        """Waits for room. False: the application has left."""
        with self._changed:
            if not self._has_room(size_bytes):
                self.is_full = True
                self.full_count += 1
                self._changed.wait_for(lambda: self._has_room(size_bytes) or self._abandoned)
                self.is_full = False
            if self._abandoned:
                return False
            self._items.append((item, size_bytes))
            self.size_bytes += size_bytes
            self._wake()
        return True

    def finish(self) -> None:
        with self._changed:
            self._finished = True
            self._wake()

    def abandon(self) -> None:
        """The application takes no more: the reader and everyone who waits are let go."""
        with self._changed:
            self._abandoned = True
            self._finished = True
            self._items.clear()
            self.size_bytes = 0
            self._wake()

    def take(self, timeout_s: float | None = None) -> T | End:
        """The next item. TimeoutError where none came in time."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while (found := self._pop()) is None:
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError(f"no event in {timeout_s} s; the stream is still usable")
                self._changed.wait(left_s)
            return found

    async def take_async(self) -> T | End:
        """The next item, awaited. The future only says "look again", so cancelling loses nothing."""
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if (found := self._pop()) is not None:
                    return found
                waiter = (loop, loop.create_future())
                self._waiters.append(waiter)
            try:
                await waiter[1]
            finally:
                with self._changed:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)

    def _pop(self) -> T | End | None:
        if self._items:
            item, size_bytes = self._items.popleft()
            self.size_bytes -= size_bytes
            if self.is_full:
                self._changed.notify_all()
            return item
        return END if self._finished else None

    def _has_room(self, size_bytes: int) -> bool:
        if not self._items:
            return True
        return len(self._items) < self._events_max and self.size_bytes + size_bytes <= self._bytes_max

    def _wake(self) -> None:
        self._changed.notify_all()
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # the loop is closed: nobody waits there any more
                continue


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
