"""What a log was opened with, checked. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from replaylog._retention import Retention

__all__ = ["Durability", "Settings"]

Durability = Literal["sync", "relaxed", "memory"]


class Settings(NamedTuple):
    """The arguments of `replaylog.open()`, in the units of the engine."""

    retention: Retention | None
    durability: Durability
    memory_bytes: int
    map_bytes: int
    extent_bytes: int
    extents_max: int
    backlog_bytes: int
    event_bytes_max: int
    grace_ns: int
    interval_s: float
    checkpoint_bytes: int
    flush_s: float
    tombstones_max: int
    tombstone_age_ns: int
    close_timeout_s: float
    readonly: bool
    file_mode: int
    allow_network: bool
    clock: Callable[[], int] | None
    broken: str
