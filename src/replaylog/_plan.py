"""Will these settings let a reader resume? The conditions of validity, as arithmetic.

Guarantees: a condition holds only strictly (at equality the last event may just be gone, or the
keepalive just late); decimal settings are compared as written, so 30 events x 0.1 s is 3 s and not
a little more; each condition says what would make it hold. Pure, for any thread.

    window         depth x shortest interval between events > longest disconnect
    idle timeout   idle timeout > keepalive interval + longest stall of one write
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

__all__ = ["Condition", "Plan", "plan", "plan_of"]


class Condition(NamedTuple):
    """One condition of validity: it holds while `has` is greater than `needs_more_than`."""

    name: str
    has: float
    needs_more_than: float
    explanation: str

    @property
    def holds(self) -> bool:
        return self.has > self.needs_more_than

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        return f"{self.name}: {'holds' if self.holds else 'FAILS'}: {self.explanation}"


class Plan(NamedTuple):
    """The conditions that could be judged, and what would hold. True where all of them do.

    `window` and `idle` are None where their numbers were not given. `depth_needed` is None where no
    depth would do (or none was asked about); `covers_s` is the longest outage below which the window
    suffices.
    """

    window: Condition | None = None
    idle: Condition | None = None
    covers_s: float | None = None
    depth_needed: int | None = None
    min_interval_needed_s: float | None = None
    idle_timeout_needed_s: float | None = None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return tuple(condition for condition in (self.window, self.idle) if condition is not None)

    @property
    def failing(self) -> tuple[Condition, ...]:
        return tuple(condition for condition in self.conditions if not condition.holds)

    @property
    def ok(self) -> bool:
        return not self.failing

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "a reader can resume" if self.ok else "a reader can lose events, or be cut for nothing"
        return "\n".join([*map(str, self.conditions), verdict])


def plan(
    *,
    depth: int | None = None,
    min_interval_s: float | None = None,
    disconnect_max_s: float | None = None,
    keepalive_s: float | None = None,
    stall_max_s: float | None = None,
    idle_timeout_s: float | None = None,
) -> Plan:
    """Judge a window (the first three) and an idle timeout (the last three), either or both.

    `depth` is the number of events retained, `min_interval_s` the shortest time between two events,
    averaged over the window: a burst that fills the window in 3 s leaves 3 s.
    """
    window = _given(depth=depth, min_interval_s=min_interval_s, disconnect_max_s=disconnect_max_s)
    idle = _given(keepalive_s=keepalive_s, stall_max_s=stall_max_s, idle_timeout_s=idle_timeout_s)
    if window is None and idle is None:
        raise TypeError(
            "nothing to judge: give depth=, min_interval_s= and disconnect_max_s=, "
            "or keepalive_s=, stall_max_s= and idle_timeout_s="
        )
    judged = Plan()
    if window is not None:
        judged = _with_window(judged, *window)
    if idle is not None:
        judged = _with_idle(judged, *idle)
    return judged


def plan_of(stats: Mapping[str, Any], *, disconnect_max_s: float, depth: int | None = None) -> Plan:
    """The same question of a live session: does its window cover this outage at the rate that was observed?

    `stats` is `session.stats()`; `.covers_s` of the answer is how long the window lasts. `depth`: instead of
    the session's limit of events; without either, what is retained now.
    """
    events, rate = stats["events"], stats["events_per_s"]
    if events < 2:
        raise ValueError(
            f"{events} event(s) retained: a rate takes two; use plan() with the rate that you expect"
        )
    # No time between the first and the last: a burst that no depth covers.
    interval_s = 1 / rate if rate else 0.0
    depth = depth or stats.get("events_max") or events
    return plan(depth=depth, min_interval_s=interval_s, disconnect_max_s=disconnect_max_s)


def _with_window(judged: Plan, depth: Fraction, interval_s: Fraction, outage_s: Fraction) -> Plan:
    covers_s = depth * interval_s
    # More than outage / interval: at equality the event after the cursor is the next to go.
    depth_needed = math.floor(outage_s / interval_s) + 1 if interval_s else None
    fact = f"{int(depth)} events at one per {_s(interval_s)} cover {_s(covers_s)}"
    if covers_s > outage_s:
        explanation = f"{fact}, more than an outage of {_s(outage_s)}"
    elif depth_needed is None:
        explanation = f"{fact}: no depth covers an outage of {_s(outage_s)} at this rate; bound the rate"
    else:
        explanation = (
            f"{fact}, not more than an outage of {_s(outage_s)}; retain {depth_needed} events or more"
        )
        explanation += f", or keep outages below {_s(covers_s)}" if covers_s else ""
    return judged._replace(
        window=Condition("window", float(covers_s), float(outage_s), explanation),
        covers_s=float(covers_s),
        depth_needed=depth_needed,
        min_interval_needed_s=float(outage_s / depth) if depth else None,
    )


def _with_idle(judged: Plan, keepalive_s: Fraction, stall_s: Fraction, timeout_s: Fraction) -> Plan:
    least_s = keepalive_s + stall_s
    fact = f"keepalive {_s(keepalive_s)} + stall {_s(stall_s)} is {_s(least_s)}"
    if timeout_s > least_s:
        explanation = f"{fact}, less than the idle timeout of {_s(timeout_s)}"
    else:
        explanation = f"{fact}, not less than the idle timeout of {_s(timeout_s)}; set it above {_s(least_s)}"
        room_s = timeout_s - stall_s
        explanation += f", or the keepalive below {_s(room_s)}" if room_s > 0 else ""
    return judged._replace(
        idle=Condition("idle timeout", float(timeout_s), float(least_s), explanation),
        idle_timeout_needed_s=float(least_s),
    )


def _given(**settings: float | None) -> tuple[Fraction, Fraction, Fraction] | None:
    """The settings of one condition, all or none: one judged on a guess would be no judgement."""
    missing = [name for name, value in settings.items() if value is None]
    if len(missing) == len(settings):
        return None
    if missing:
        raise TypeError(f"missing {', '.join(missing)}: it takes {', '.join(settings)} together")
    first, second, third = _exact(settings)
    return first, second, third


def _exact(settings: dict[str, float | None]) -> Iterator[Fraction]:
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} is a {type(value).__name__}: pass a number")
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}: pass a finite number, 0 or more")
        if name == "depth" and value != int(value):
            raise ValueError(f"depth is {value}: pass a whole number of events")
        yield Fraction(str(value))


def _s(seconds: Fraction) -> str:
    return f"{float(seconds):g} s"
