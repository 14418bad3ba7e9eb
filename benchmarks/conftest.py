"""Fixtures of the in-process benchmarks. Not part of the test run: `pytest benchmarks` asks for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import limits
import measure

import replaylog


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    """The same header as the runner's."""
    machine_info["replaylog"] = measure.machine(Path.cwd())


def pytest_report_header(config: pytest.Config) -> str:
    """Rule: a benchmark prints machine and settings."""
    return measure.header(measure.machine(Path.cwd()), {"disk": "the directory of pytest's --basetemp"})


@pytest.fixture(scope="session")
def limit() -> ModuleType:
    """The compiled limits."""
    return limits.load()


@pytest.fixture(params=["memory", "relaxed", "sync"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[replaylog.Log]:
    """A log in each mode."""
    path = None if request.param == "memory" else tmp_path / "log"
    retention = replaylog.Retention(events=4096)
    with replaylog.open(path, durability=request.param, retention=retention, memory_bytes=2 << 30) as opened:
        yield opened


@pytest.fixture(scope="module")
def deep_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log with sessions of 64, 4,096 and 262,144 events."""
    path = tmp_path_factory.mktemp("deep") / "log"
    with replaylog.open(path, memory_bytes=2 << 30) as opened:
        fill(opened)
    return path


@pytest.fixture(scope="module", params=["memory", "disk"])
def deep(request: pytest.FixtureRequest, deep_path: Path) -> Iterator[replaylog.Log]:
    """The same events, in memory or only on disk."""
    if request.param == "disk":
        with replaylog.open(deep_path) as opened:
            yield opened
        return
    with replaylog.open(None, durability="memory", memory_bytes=2 << 30) as opened:
        fill(opened)
        yield opened


def fill(log: replaylog.Log) -> None:
    """Sessions `deep-<depth>` that retain everything."""
    for depth in (64, 4096, 262_144):
        session = log.create(f"deep-{depth}", retention=replaylog.Retention(events=1 << 20))
        for at in range(0, depth, 4096):
            part = range(at, min(depth, at + 4096))
            session.extend([(measure.payload_of(i), "message") for i in part])
