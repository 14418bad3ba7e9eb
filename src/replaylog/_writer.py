"""The two threads behind a log on disk: the flush and the maintenance.

The flush thread runs in C without the GIL and serves appends that nobody waits for. The maintenance thread
checkpoints (every `interval_s`, or when told), flushes in `relaxed` mode every `flush_s`, lets cold sessions
age, forgets old tombstones and frees memory. A log that was never appended to has neither.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from replaylog._errors import LogFull

if TYPE_CHECKING:
    from replaylog._log import Log

__all__ = ["Maintenance"]

RETRY_S = 0.25  # after a checkpoint that found no room
SWEEP_S = 1.0  # how often cold sessions and tombstones are looked at

logger = logging.getLogger("replaylog")


class Maintenance:
    """Starts and stops both threads; `kick` asks for a checkpoint, `wait_done` waits for one."""

    def __init__(self, log: Log, *, interval_s: float, flush_s: float | None) -> None:
        self._log = log
        self._interval_s = interval_s
        self._flush_s = flush_s
        self._wanted = threading.Event()
        self._done = threading.Condition()
        self._rounds = 0
        self._stopping = False
        self.failing = False  # the last checkpoint failed: waiting for the next one makes no room
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Once, at the first append."""
        for name, target in (("replaylog-flush", self._log._journal.run), ("replaylog-maintenance", self._loop)):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def kick(self) -> None:
        """A checkpoint as soon as possible."""
        self._wanted.set()

    def wait_done(self, timeout_s: float) -> None:
        """Wait for the end of the next round, at most so long."""
        with self._done:
            rounds = self._rounds
            self.kick()
            self._done.wait_for(lambda: self._rounds > rounds or self._stopping, timeout_s)

    def dismiss(self) -> None:
        """Both threads end as soon as they can."""
        self._stopping = True
        self.kick()
        self._log._journal.stop_writing()

    def stop(self, timeout_s: float) -> None:
        """Join both threads."""
        self.dismiss()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        with self._done:
            self._done.notify_all()

    def _loop(self) -> None:
        now = time.monotonic()
        next_checkpoint, next_flush, next_sweep = now + self._interval_s, now, now + SWEEP_S
        while not self._stopping:
            now = time.monotonic()
            if self._flush_s is not None and now >= next_flush:
                self._flush()
                next_flush = now + self._flush_s
            if (self._wanted.is_set() and not self.failing) or now >= next_checkpoint:
                self._wanted.clear()
                next_checkpoint = time.monotonic() + (self._interval_s if self._round() else RETRY_S)
            if now >= next_sweep:
                self._sweep()
                next_sweep = time.monotonic() + SWEEP_S
            due = min(next_checkpoint, next_sweep, next_flush if self._flush_s is not None else next_sweep)
            if self.failing:
                self._wanted.clear()  # kicks do not hurry a full disk
            self._wanted.wait(max(0.001, due - time.monotonic()))

    def _flush(self) -> None:
        try:
            self._log._journal.sync()
        except OSError as error:
            logger.error("flush failed, the log is poisoned: %s", error)

    def _round(self) -> bool:
        """One checkpoint; False when it must be tried again soon. Each change for the worse is logged once."""
        failed_before, self.failing = self.failing, False
        try:
            self._log._checkpoint()
        except Exception as error:  # noqa: BLE001 - a failed checkpoint loses nothing: the journal still has it
            self.failing = True
            if isinstance(error, LogFull):
                self._log._set_quota_full(True)
            if not failed_before:
                logger.error("checkpoint failed, the journal keeps what it held: %s", error)
            return False
        finally:
            with self._done:
                self._rounds += 1
                self._done.notify_all()
        return True

    def _sweep(self) -> None:
        try:
            self._log._sweep()
        except Exception as error:  # noqa: BLE001 - a sweep only tidies up; the next one tries again
            logger.error("sweep failed: %r", error)
