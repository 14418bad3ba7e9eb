"""A cursor against what a server says: the comparisons, one function each.

Guarantees: a check answers None only where continuity holds as far as the facts go; what was not
declared is never taken for declared. Pure, for any thread.

    window      floor - 1 <= cursor <= head
    successor   the next event's id is cursor + 1, in the same epoch
    same place  a control frame stands exactly at the cursor: id, epoch and tag
"""

from __future__ import annotations

from typing import Any

from replaylog.client.outcome import ClientReason
from replaylog.client.position import Position
from replaylog.client.reference import below_floor, not_next

__all__ = ["Fault", "check_epoch", "check_same_place", "check_successor", "check_window"]

Fault = tuple[ClientReason, dict[str, Any]]


def check_window(held: Position, floor: int | None, head: int | None) -> Fault | None:
    """floor - 1 <= cursor <= head, as far as they are declared."""
    if held.id is None:
        return None
    if floor is not None and held.id < floor - 1:
        return ClientReason.BELOW_FLOOR, below_floor(held.id, floor)
    if head is not None and held.id > head:
        return ClientReason.FORKED, {"cursor": held.id, "floor": floor, "head": head}
    return None


def check_epoch(held: Position, epoch: int | None) -> Fault | None:
    """Two epochs that are both known must be the same one."""
    if held.epoch is None or epoch is None or held.epoch == epoch:
        return None
    numbers = {"cursor": held.id, "expected": _hex(held.epoch, 16), "got": _hex(epoch, 16)}
    return ClientReason.EPOCH_CHANGED, numbers


def check_successor(held: Position, event: Position) -> Fault | None:
    """Both ids are numbers: is `event` the one after `held`?

    An id without an epoch after one with an epoch is another numbering, so it proves nothing.
    """
    assert held.id is not None
    assert event.id is not None
    if held.epoch is not None and event.epoch is None:
        return ClientReason.EPOCH_CHANGED, {
            "cursor": held.id,
            "expected": _hex(held.epoch, 16),
            "got": "(none)",
        }
    if fault := check_epoch(held, event.epoch):
        return fault
    return None if event.id == held.id + 1 else not_next(held.id, event.id)


def check_same_place(held: Position, stand: Position) -> Fault | None:
    """Does a control frame stand where the cursor is? Both ids are numbers."""
    assert held.id is not None
    assert stand.id is not None
    if fault := check_epoch(held, stand.epoch):
        return fault
    if stand.id > held.id:
        return ClientReason.SKIPPED, {"cursor": held.id, "got": stand.id, "skipped": stand.id - held.id}
    if stand.id < held.id:
        return ClientReason.REWOUND, {"cursor": held.id, "got": stand.id}
    if held.tag is not None and stand.tag is not None and held.tag != stand.tag:
        return ClientReason.TAG_CHANGED, {
            "cursor": held.id,
            "expected": _hex(held.tag, 8),
            "got": _hex(stand.tag, 8),
        }
    return None


def _hex(number: int, digits: int) -> str:
    return f"{number:0{digits}x}"
