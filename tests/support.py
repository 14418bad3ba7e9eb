"""Small things that several test files use: the fake clock, logs to open, the modes."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import replaylog

FULL = os.environ.get("REPLAYLOG_FULL") == "1"
DURABILITIES = ("memory", "sync", "relaxed")
DISK = ("sync", "relaxed")
EXTENT_BYTES = 1 << 20


class FakeClock:
    """Nanoseconds that pass only when told to."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1_000_000_000)


def open_log(durability: str, path: Path | None, **settings: Any) -> Any:
    """`replaylog.open` with small extents; `path` is left out where there is no disk."""
    if durability == "memory":
        return replaylog.open(None, durability="memory", **settings)
    settings.setdefault("journal_extent_bytes", EXTENT_BYTES)
    return replaylog.open(path, durability=durability, **settings)


def in_threads(count: int, action: Any) -> list[Any]:
    """What each thread returned or raised."""
    outcomes: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(n: int) -> None:
        barrier.wait()
        try:
            outcomes[n] = action(n)
        except replaylog.ReplayLogError as error:
            outcomes[n] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return outcomes


def shown(value: Any) -> str:
    """A test id for any value: the same in every run, so without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", ascii(value))[:40]
