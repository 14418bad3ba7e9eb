"""Heads that moved: one iterator for many sessions."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from replaylog._journal import Bell

if TYPE_CHECKING:
    from replaylog._log import Log

__all__ = ["Moved", "Watch"]


class Moved(NamedTuple):
    """A session's head is now at least `head`; movements in between are one."""

    name: str
    head: int


class Watch:
    """Iterator of `Moved`, from its creation on; ends when it or the log is closed.

    Hints, not data: several appends to one session are one `Moved`, and an end or a reap is one too. Look at
    the session for what happened. `timeout_s`: TimeoutError when nothing moved for so long; it stays usable.
    """

    def __init__(self, log: Log, prefix: str, timeout_s: float | None) -> None:
        self._log = log
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._bell = Bell(log._hub, every=True)
        self._ready: deque[Moved] = deque()
        self._closed = False

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Moved:
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        while not self._ready:
            if self._closed or self._log.closed:
                self.close()
                raise StopIteration
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"no head under {self._prefix!r} moved for {self._timeout_s} s")
            self._bell.wait(left)
            self._collect()
        return self._ready.popleft()

    def _collect(self) -> None:
        for session in self._bell.drain():
            if session.name.startswith(self._prefix):
                self._ready.append(Moved(session.name, session.head))

    def close(self) -> None:
        """End the iteration, also in another thread that waits. Idempotent."""
        self._closed = True
        self._log._hub.ring_all()
        self._bell.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
