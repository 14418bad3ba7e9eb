"""The decision boundary as two functions: is this reconnect a resumption from that cursor?

Guarantees: what is returned is the immediate successor of the cursor, and what follows it follows
without a gap; anything else is a `StreamResumptionError`. The first check that fails is the one
that is named. Pure, for any thread.

An empty stream fails here, because one look at a reconnect is all there is. `Verifier` watches the
stream go on, and keeps one that is *proven* at head as delayed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from replaylog.client.outcome import ClientReason, StreamResumptionError

__all__ = ["Event", "ReconnectResult", "drain_with_continuity", "verify_resumption"]

_SESSION_LOST = {404: ClientReason.UNKNOWN, 410: ClientReason.REAPED}


@dataclasses.dataclass(frozen=True)
class Event:
    """A numbered event."""

    id: int
    kind: str
    payload: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ReconnectResult:
    """What a reconnect brought. `replay_floor` is the lowest id that the server can still replay."""

    http_status: int
    replay_floor: int | None
    first_event: Event | None
    session_durable: bool


def verify_resumption(cursor: int, result: ReconnectResult, retained_floor: int | None = None) -> Event:
    """The event that proves the resumption from `cursor`, or StreamResumptionError.

    `retained_floor` is used where the server declared no floor of its own.
    """
    because = StreamResumptionError.because
    status = result.http_status
    if status in _SESSION_LOST:
        raise because(_SESSION_LOST[status], status=status, cursor=cursor)
    if status != 200:
        raise because(ClientReason.STATUS, status=status, cursor=cursor)
    floor = result.replay_floor if result.replay_floor is not None else retained_floor
    if floor is not None and cursor < floor - 1:
        raise because(ClientReason.BELOW_FLOOR, **below_floor(cursor, floor))
    if not result.session_durable:
        raise because(ClientReason.NOT_DURABLE, cursor=cursor)
    event = result.first_event
    if event is None:
        raise because(ClientReason.EMPTY, cursor=cursor)
    if event.id != cursor + 1:
        reason, numbers = not_next(cursor, event.id)
        raise because(reason, **numbers)
    return event


def drain_with_continuity(cursor: int, events: Iterable[Event], result: ReconnectResult) -> list[Event]:
    """The first event and all of `events`, which come after it; StreamResumptionError at a break."""
    drained = [verify_resumption(cursor, result)]
    for event in events:
        last = drained[-1].id
        if event.id != last + 1:
            reason, numbers = not_next(last, event.id)
            raise StreamResumptionError(
                f"non-contiguous stream: expected {last + 1}, got {event.id}", reason=reason, numbers=numbers
            )
        drained.append(event)
    return drained


def below_floor(cursor: int, floor: int) -> dict[str, int]:
    """The numbers of a cursor whose successors are gone."""
    return {
        "cursor": cursor,
        "floor": floor,
        "lost": floor - 1 - cursor,
        "lost_first": cursor + 1,
        "lost_last": floor - 1,
    }


def not_next(cursor: int, got: int) -> tuple[ClientReason, dict[str, int]]:
    """Why `got` is not the successor of `cursor`: a hole, or something already seen.

    A repeated id counted as a gap would be a negative number of skipped events.
    """
    assert got != cursor + 1
    numbers = {"cursor": cursor, "expected": cursor + 1, "got": got}
    if got <= cursor:
        return ClientReason.DUPLICATE, numbers
    return ClientReason.GAP, {**numbers, "skipped": got - cursor - 1}
