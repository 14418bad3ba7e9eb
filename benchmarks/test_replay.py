"""How long until the first and the last of 64, 1,000 and 100,000 missing events, in memory and on disk?"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import replaylog

DISTANCES = [64, 1000, 100_000]


def rounds_of(distance: int) -> dict[str, int]:
    """Short batches of what is short."""
    return {"rounds": 20} if distance > 1000 else {"rounds": 100, "iterations": 10, "warmup_rounds": 5}


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.benchmark(group="replay first event")
def test_first_event(benchmark: Any, deep: replaylog.Log, distance: int) -> None:
    session = deep.session("deep-262144")
    cursor = session.head - distance
    benchmark.pedantic(lambda: next(session.resume(cursor)), rounds=100, iterations=10, warmup_rounds=5)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.benchmark(group="replay objects")
def test_objects(benchmark: Any, deep: replaylog.Log, distance: int) -> None:
    session = deep.session("deep-262144")
    cursor = session.head - distance

    def drain() -> int:
        n = 0
        for _ in session.resume(cursor):
            n += 1
        return n

    assert benchmark.pedantic(drain, **rounds_of(distance)) == distance


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.benchmark(group="replay bytes")
def test_sse_bytes(benchmark: Any, deep: replaylog.Log, distance: int) -> None:
    session = deep.session("deep-262144")
    cursor = session.head - distance
    benchmark.pedantic(lambda: sum(len(part) for part in session.resume(cursor).frames()), **rounds_of(distance))


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.benchmark(group="replay bytes")
def test_limit_memcpy(benchmark: Any, limit: ModuleType, deep: replaylog.Log, distance: int) -> None:
    session = deep.session("deep-262144")
    size = sum(len(part) for part in session.resume(session.head - distance).frames())
    benchmark.pedantic(limit.copy, (bytes(size),), **rounds_of(distance))
