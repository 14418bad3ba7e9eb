"""Retention: the limits past which the oldest events are trimmed and the floor rises. Pure.

Each limit is None (no such limit) or positive. `bytes` counts the events as they are stored and sent:
the SSE text of each frame, about 60 bytes more than its payload.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

__all__ = ["Limits", "Retention"]

GENERATIONS_MAX = 4096  # openings with other limits that are remembered


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """At most `events` events, `bytes` bytes of frames, `age_s` seconds of age; whichever is reached first.

    The newest event is always kept against `events` and `bytes`; `age_s` may empty the window.
    """

    events: int | None = None
    bytes: int | None = None
    age_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("events", "bytes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"Retention({name}={value!r}): a positive int, or None for no limit")
        age_s = self.age_s
        if age_s is not None and (isinstance(age_s, bool) or not isinstance(age_s, int | float) or not 0 < age_s < 1e9):
            raise ValueError(f"Retention(age_s={self.age_s!r}): positive seconds below 1e9, or None for no limit")

    @property
    def age_ns(self) -> int:
        """The age limit in ns, 0 for none."""
        return 0 if self.age_s is None else max(1, round(self.age_s * 1e9))

    @property
    def limits(self) -> tuple[int, int, int]:
        """(events, bytes, age_ns) as they are stored, 0 for none."""
        return self.events or 0, self.bytes or 0, self.age_ns

    @classmethod
    def of(cls, limits: tuple[int, int, int]) -> Retention:
        """From their stored form."""
        events, size, age_ns = limits
        return cls(events=events or None, bytes=size or None, age_s=age_ns / 1e9 if age_ns else None)


class Limits:
    """The limits that a log was opened with, one generation each, for sessions without their own.

    A floor that narrow limits gave must not fall when the log is opened with wider ones, also for a session
    that was not touched in between: its row names the generation that it was written under, and all limits
    since then have applied to it.

    stored: [(events, bytes, age_ns, ended_ns)], oldest first; ended_ns is 0 for the one in force.
    """

    def __init__(self, stored: list[tuple[int, int, int, int]], current: tuple[int, int, int], now_ns: int) -> None:
        self.current = current
        self.history = list(stored)
        if not stored or stored[-1][:3] != current:
            if stored:
                self.history[-1] = (*stored[-1][:3], now_ns)
            self.history.append((*current, 0))
        if len(self.history) > GENERATIONS_MAX:
            raise ValueError(
                f"the log was opened with other default limits more than GENERATIONS_MAX={GENERATIONS_MAX} times: "
                "give sessions their own with create(retention=)"
            )

    @property
    def generation(self) -> int:
        """The one in force."""
        return len(self.history) - 1

    def tightest(self, generation: int) -> tuple[int, int, int]:
        """What binds a row of that generation: events, bytes, and the time (ns) up to which events aged; 0: none."""
        since = self.history[generation:]
        return (
            _least(events for events, _, _, _ in since),
            _least(size for _, size, _, _ in since),
            max((ended - age for _, _, age, ended in since if age and ended), default=0),
        )


def _least(limits: Iterable[int]) -> int:
    return min((limit for limit in limits if limit), default=0)
