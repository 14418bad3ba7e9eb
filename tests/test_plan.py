"""Planning: each condition, what fails it, and what would hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replaylog import Retention
from replaylog._plan import plan, plan_of
from support import FakeClock


def window(depth: int, min_interval_s: float, disconnect_max_s: float) -> Any:
    return plan(depth=depth, min_interval_s=min_interval_s, disconnect_max_s=disconnect_max_s)


def idle(keepalive_s: float, stall_max_s: float, idle_timeout_s: float) -> Any:
    return plan(keepalive_s=keepalive_s, stall_max_s=stall_max_s, idle_timeout_s=idle_timeout_s)


def test_a_64_event_window_covers_16_minutes_of_keepalives_and_little_of_a_burst() -> None:
    assert window(64, 15, 900).covers_s == 960
    assert window(64, 15, 900)
    burst = window(64, 0.05, 90)
    assert not burst
    assert (burst.covers_s, burst.depth_needed) == (3.2, 1801)
    assert str(burst.window) == (
        "window: FAILS: 64 events at one per 0.05 s cover 3.2 s, not more than an outage of 90 s; "
        "retain 1801 events or more, or keep outages below 3.2 s"
    )


@pytest.mark.parametrize(
    ("depth", "interval_s", "outage_s", "holds", "needed"),
    [
        (64, 1, 63, True, 64),
        (64, 1, 64, False, 65),
        (65, 1, 64, True, 65),
        (30, 0.1, 3, False, 31),
        (3, 0.1, 0.3, False, 4),
        (31, 0.1, 3, True, 31),
        (1, 1, 0, True, 1),
        (0, 1, 0, False, 1),
        (10**6, 0, 1, False, None),
    ],
)
def test_the_window_must_cover_more_than_the_outage(
    depth: int, interval_s: float, outage_s: float, holds: bool, needed: int | None
) -> None:
    judged = window(depth, interval_s, outage_s)
    assert (bool(judged), judged.window.holds, judged.depth_needed) == (holds, holds, needed)


@pytest.mark.parametrize(
    ("keepalive_s", "stall_s", "timeout_s", "holds"),
    [
        (15, 30, 90, True),
        (15, 30, 45, False),
        (15, 30, 45.1, True),
        (0.1, 0.2, 0.3, False),
        (15, 90, 90, False),
    ],
)
def test_the_idle_timeout_must_exceed_keepalive_and_stall(
    keepalive_s: float, stall_s: float, timeout_s: float, holds: bool
) -> None:
    judged = idle(keepalive_s, stall_s, timeout_s)
    assert bool(judged) == holds
    assert judged.idle_timeout_needed_s == pytest.approx(keepalive_s + stall_s)
    assert ("set it above" in str(judged)) != holds


def test_both_are_judged_and_the_failing_one_is_named() -> None:
    judged = plan(
        depth=64,
        min_interval_s=1,
        disconnect_max_s=88,
        keepalive_s=15,
        stall_max_s=30,
        idle_timeout_s=90,
    )
    assert not judged
    assert not judged.ok
    assert [condition.name for condition in judged.failing] == ["window"]
    assert [condition.name for condition in judged.conditions] == ["window", "idle timeout"]
    assert str(judged).splitlines()[1].startswith("idle timeout: holds: keepalive 15 s + stall 30 s is 45 s")


decimals = st.integers(1, 10**5).map(lambda n: n / 100)


@given(st.integers(0, 10**5), decimals, decimals)
def test_what_it_says_would_hold_does_and_one_less_does_not(
    depth: int, interval_s: float, outage_s: float
) -> None:
    judged = window(depth, interval_s, outage_s)
    needed = judged.depth_needed
    assert needed is not None
    assert window(needed, interval_s, outage_s)
    assert not window(needed - 1, interval_s, outage_s)
    assert bool(judged) == (depth >= needed)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({}, TypeError, "nothing to judge"),
        ({"depth": 64}, TypeError, "missing min_interval_s, disconnect_max_s"),
        ({"keepalive_s": 15, "idle_timeout_s": 90}, TypeError, "missing stall_max_s"),
        ({"depth": True, "min_interval_s": 1, "disconnect_max_s": 1}, TypeError, "depth is a bool"),
        ({"depth": "64", "min_interval_s": 1, "disconnect_max_s": 1}, TypeError, "depth is a str"),
        ({"depth": 6.5, "min_interval_s": 1, "disconnect_max_s": 1}, ValueError, "whole number"),
        ({"depth": 64, "min_interval_s": -1, "disconnect_max_s": 1}, ValueError, "min_interval_s is -1"),
        ({"depth": 64, "min_interval_s": 1, "disconnect_max_s": float("nan")}, ValueError, "is nan"),
        ({"depth": 64, "min_interval_s": float("inf"), "disconnect_max_s": 1}, ValueError, "is inf"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        plan(**settings)


# --- of a live session ------------------------------------------------------------------------------


def test_a_live_session_says_how_long_its_window_covers_at_its_own_rate(
    opener: Any, durability: str, clock: FakeClock
) -> None:
    log = opener(durability, clock=clock)
    session = log.create("s", retention=Retention(events=64))
    for n in range(200):
        session.append(f"event {n}")
        clock.advance(0.05)
    judged = plan_of(session.stats(), disconnect_max_s=90)
    assert not judged
    assert judged.covers_s == pytest.approx(3.2)
    assert judged.depth_needed == pytest.approx(1801, abs=1)
    assert plan_of(session.stats(), disconnect_max_s=3)
    assert plan_of(session.stats(), disconnect_max_s=90, depth=2000)


def test_a_burst_without_a_pause_is_covered_by_no_depth(memory_log: Any) -> None:
    stats = {"events": 64, "events_per_s": None}
    judged = plan_of(stats, disconnect_max_s=1)
    assert (judged.covers_s, judged.depth_needed) == (0, None)


@pytest.mark.parametrize("events", [0, 1])
def test_a_rate_takes_two_events(memory_log: Any, events: int) -> None:
    session = memory_log.create("s")
    for _ in range(events):
        session.append("x")
    with pytest.raises(ValueError, match="takes two"):
        plan_of(session.stats(), disconnect_max_s=1)
