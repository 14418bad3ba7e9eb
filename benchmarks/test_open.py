"""How long until a process has its first verdict: after a clean close, and after a kill?"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import measure
import pytest

import replaylog


@pytest.mark.parametrize("sessions", [10, 10_000])
@pytest.mark.benchmark(group="open")
def test_open_and_first_verdict_after_a_clean_close(benchmark: Any, tmp_path: Path, sessions: int) -> None:
    path = tmp_path / "log"
    with replaylog.open(path) as log:
        for session in [log.create(f"s{i}", wait=False) for i in range(sessions)]:
            session.append_nowait(b"x" * 200)
    opened: list[replaylog.Log] = []

    def close() -> None:
        while opened:
            opened.pop().close()

    def ask() -> bool:
        opened.append(replaylog.open(path))
        return bool(opened[0].check("s7", 0))

    assert benchmark.pedantic(ask, setup=close, rounds=50, warmup_rounds=2)
    close()


@pytest.mark.parametrize("mib", [2, 16])
@pytest.mark.benchmark(group="recovery")
def test_recovery_of_a_journal(benchmark: Any, tmp_path: Path, mib: int) -> None:
    killed, copy = tmp_path / "killed", tmp_path / "copy"
    log = replaylog.open(killed, checkpoint_interval_s=3600.0, checkpoint_bytes=1 << 40)
    sessions = [log.create(f"s{i}", wait=False) for i in range(1000)]
    while log.stats()["journal_bytes_written"] < mib << 20:
        for session in sessions:
            session.append_nowait(measure.payload_of(7))
        log.flush()
    log._abandon()
    opened: list[replaylog.Log] = []

    def fresh() -> None:
        while opened:
            opened.pop().close()
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(killed, copy)

    benchmark.pedantic(lambda: opened.append(replaylog.open(copy)), setup=fresh, rounds=5)
    benchmark.extra_info["ms_per_MiB"] = benchmark.stats.stats.min * 1e3 / mib
    opened.pop().close()
