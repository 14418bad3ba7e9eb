"""Retention: the limits past which the oldest events are trimmed and the floor rises. Pure.

Each limit is None (no such limit) or positive. `bytes` counts the events as they are stored and sent:
the SSE text of each frame, about 60 bytes more than its payload.
"""

from __future__ import annotations

import dataclasses

__all__ = ["Retention"]


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
