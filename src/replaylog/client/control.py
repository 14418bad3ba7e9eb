"""The server's own frames, `replay` and `replay-*`: what each one tells a reader at a cursor.

Guarantees: a control frame is never an event, so it is never the first event; one whose position
cannot be read tells nothing; one that stands anywhere but at the cursor is a fault. Pure, for any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from replaylog._cursor import parse
from replaylog.client import checks
from replaylog.client.answers import BY_VERDICT, integer, lost_numbers, problem_of, restart_of
from replaylog.client.checks import Fault
from replaylog.client.outcome import ClientReason
from replaylog.client.position import Position
from replaylog.client.sse import Frame

__all__ = ["Told", "is_control", "told_by"]


class Told(NamedTuple):
    """A fault, or the place where reader and server stand together, or (all None) nothing."""

    fault: Fault | None = None
    stand: Position | None = None
    head: int | None = None
    end_reason: str | None = None  # not None: the session has ended at `stand`


def is_control(frame: Frame) -> bool:
    return frame.event == "replay" or frame.event.startswith("replay-")


def told_by(frame: Frame, held: Position | None, *, require_proof: bool) -> Told:
    """What a control frame tells a reader at `held`."""
    data = problem_of(frame.data)
    if frame.event in _REFUSALS:
        return Told(_REFUSALS[frame.event](held, data))
    stand = _stand(frame)
    if stand is None or frame.event not in _PLACES:
        return Told()
    if fault := _fault_at(held, stand, require_proof):
        return Told(fault)
    return _PLACES[frame.event](stand, data)


def _replay(stand: Position, data: Mapping[str, Any]) -> Told:
    """The first frame: where the server resumes from. It upgrades an integer to a token."""
    head = integer(data.get("head"))
    fault = checks.check_window(stand, integer(data.get("floor")), head)
    return Told(fault) if fault else Told(stand=stand, head=head)


def _caught_up(stand: Position, data: Mapping[str, Any]) -> Told:
    """The backlog is through: what the server holds beyond the cursor would have been lost."""
    return Told(stand=stand, head=stand.id)


def _end(stand: Position, data: Mapping[str, Any]) -> Told:
    reason = data.get("reason")
    return Told(stand=stand, head=stand.id, end_reason=reason if isinstance(reason, str) else "")


def _overrun(held: Position | None, data: Mapping[str, Any]) -> Fault:
    return ClientReason.OVERRUN, _numbers(held, data)


def _refused(held: Position | None, data: Mapping[str, Any]) -> Fault:
    return BY_VERDICT.get(str(data.get("verdict")), ClientReason.STATUS), _numbers(held, data)


def _numbers(held: Position | None, data: Mapping[str, Any]) -> dict[str, Any]:
    window = integer(data.get("floor")), integer(data.get("head"))
    return {**lost_numbers(held, 200, *window), **restart_of(data)}


def _stand(frame: Frame) -> Position | None:
    """Where the frame says that it is, if it says so with a token."""
    found = parse(frame.id) if frame.has_id else None
    if found is None or found.epoch is None:
        return None
    return Position(frame.id, found.id, found.epoch, found.tag)


def _fault_at(held: Position | None, stand: Position, require_proof: bool) -> Fault | None:
    if held is None:
        return None
    if held.id is None:
        return (ClientReason.NO_PROOF, {"got": stand.text}) if require_proof else None
    return checks.check_same_place(held, stand)


_PLACES: dict[str, Callable[[Position, Mapping[str, Any]], Told]] = {
    "replay": _replay,
    "replay-caught-up": _caught_up,
    "replay-end": _end,
}
_REFUSALS: dict[str, Callable[[Position | None, Mapping[str, Any]], Fault]] = {
    "replay-overrun": _overrun,
    "replay-refused": _refused,
}
