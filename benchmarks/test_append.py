"""What does one append cost, in each mode and size, and what is the least that it could?"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import limits
import measure
import pytest

import replaylog

SIZES = [20, 200, 2048, 65536]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.benchmark(group="append")
def test_append(benchmark: Any, log: replaylog.Log, size: int) -> None:
    session = log.create("s")
    payload = measure.payload_of(7, size)
    if log.durability == "memory":
        benchmark.pedantic(session.append, (payload,), rounds=200, iterations=100, warmup_rounds=50)
    else:
        benchmark.pedantic(session.append, (payload,), rounds=500, warmup_rounds=20)


@pytest.mark.benchmark(group="append")
def test_limit_empty_method(benchmark: Any, limit: ModuleType) -> None:
    benchmark.pedantic(limit.Empty().method, (b"",), rounds=200, iterations=500, warmup_rounds=20)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [limits.RecycledFile, limits.GrowingFile])
@pytest.mark.benchmark(group="append")
def test_limit_write_and_flush(benchmark: Any, kind: Any, size: int, tmp_path: Path) -> None:
    file = kind(tmp_path / "file")
    block = b"x" * ((size + 511) // 512 * 512)
    benchmark.pedantic(file.append, (block,), rounds=500, warmup_rounds=20)
    file.close()


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "thread"])
@pytest.mark.benchmark(group="append")
def test_limit_flush_behind_a_hand_off(benchmark: Any, leads: bool, tmp_path: Path) -> None:
    flusher = limits.Flusher(tmp_path / "file", leads=leads)
    benchmark.pedantic(flusher.commit, (b"x" * 200,), rounds=500, warmup_rounds=20)
    flusher.close()
