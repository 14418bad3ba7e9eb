"""What does "can I replay from here?" cost, at each depth and number of sessions?"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import replaylog

DEPTHS = [64, 4096, 262_144]
FAST = {"rounds": 200, "iterations": 200, "warmup_rounds": 20}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("form", ["int", "token"])
@pytest.mark.benchmark(group="verdict")
def test_verdict_of_a_held_session(benchmark: Any, deep: replaylog.Log, depth: int, form: str) -> None:
    session = deep.session(f"deep-{depth}")
    cursor = depth // 2 if form == "int" else session.resume(depth // 2).verdict.from_token
    assert benchmark.pedantic(session.check, (cursor,), **FAST)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.benchmark(group="verdict")
def test_verdict_by_name(benchmark: Any, deep: replaylog.Log, depth: int) -> None:
    token = deep.session(f"deep-{depth}").resume(depth // 2).verdict.from_token
    assert benchmark.pedantic(deep.check, (f"deep-{depth}", token), **FAST)


@pytest.mark.parametrize("sessions", [10, 10_000])
@pytest.mark.parametrize("how", ["held", "by-name"])
@pytest.mark.benchmark(group="verdict")
def test_verdict_among_sessions(benchmark: Any, sessions: int, how: str) -> None:
    with replaylog.open(None, durability="memory") as log:
        for i in range(sessions):
            log.create(f"s{i}").append(b"x")
        name = f"s{sessions // 2}"
        if how == "held":
            assert benchmark.pedantic(log.session(name).check, (0,), **FAST)
        else:
            assert benchmark.pedantic(log.check, (name, 0), **FAST)


@pytest.mark.parametrize("form", ["window", "tag"])
@pytest.mark.benchmark(group="verdict")
def test_verdict_of_a_cold_session(benchmark: Any, tmp_path: Path, form: str) -> None:
    with replaylog.open(tmp_path / "log") as log:
        held = [log.create(f"s{i}", wait=False) for i in range(4000)]
        for session in held:
            session.extend([(b"x" * 200, "message")] * 4)
        cursors = [2 if form == "window" else s.resume(2).verdict.from_token for s in held]
    with replaylog.open(tmp_path / "log") as log:
        asked = iter([(f"s{i}", cursor) for i, cursor in enumerate(cursors)])
        benchmark.pedantic(log.check, setup=lambda: (next(asked), {}), rounds=3000)


@pytest.mark.parametrize("what", ["floor", "head"])
@pytest.mark.benchmark(group="window")
def test_window(benchmark: Any, deep: replaylog.Log, what: str) -> None:
    from operator import attrgetter

    benchmark.pedantic(attrgetter(what), (deep.session("deep-262144"),), **FAST)


@pytest.mark.benchmark(group="window")
def test_limit_attribute(benchmark: Any, limit: ModuleType) -> None:
    from operator import attrgetter

    benchmark.pedantic(attrgetter("number"), (limit.Empty(),), **FAST)


@pytest.mark.benchmark(group="verdict")
def test_limit_empty_method(benchmark: Any, limit: ModuleType) -> None:
    benchmark.pedantic(limit.Empty().method, (b"",), **FAST)
