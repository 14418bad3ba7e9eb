"""What an HTTP answer means for a cursor, before a byte of the stream is read.

Guarantees: the checks run in the order of the reference, and the first that fails is the answer; a
status alone never proves a resumption; a header that cannot be read counts as absent. Pure, for
any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from replaylog._cursor import ID_MAX
from replaylog._verdict import Reason, wire_of
from replaylog.client import checks
from replaylog.client.checks import Fault
from replaylog.client.outcome import ClientReason
from replaylog.client.position import Position
from replaylog.client.reference import below_floor

__all__ = [
    "BY_VERDICT",
    "Declared",
    "TimeoutConflict",
    "fault_of_stream",
    "integer",
    "is_no_verdict",
    "lost_numbers",
    "problem_of",
    "proves",
    "reason_without_stream",
    "restart_of",
]

_INTEGER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_EPOCH = re.compile(r"[0-9a-f]{16}", re.ASCII)
_DURABLE = {"?1": True, "?0": False}
_SERVED = (Reason.RESUMABLE.value, Reason.AT_HEAD.value)

_BY_STATUS: dict[int, ClientReason] = {
    400: ClientReason.BAD_REQUEST,
    401: ClientReason.UNAUTHORIZED,
    403: ClientReason.FORBIDDEN,
    404: ClientReason.UNKNOWN,
    410: ClientReason.REAPED,
}
BY_VERDICT: dict[str, ClientReason] = {
    Reason.BELOW_FLOOR.value: ClientReason.BELOW_FLOOR,
    Reason.FORKED.value: ClientReason.FORKED,
    Reason.REAPED.value: ClientReason.REAPED,
    Reason.UNKNOWN.value: ClientReason.UNKNOWN,
    Reason.MALFORMED.value: ClientReason.MALFORMED,
}


class TimeoutConflict(NamedTuple):
    """The server may rightly be silent for longer than the client is willing to wait."""

    keepalive_s: float
    stall_max_s: float
    idle_timeout_s: float

    def __str__(self) -> str:
        least = self.keepalive_s + self.stall_max_s
        return (
            f"idle_timeout_s={self.idle_timeout_s:g} is not above the server's keepalive "
            f"{self.keepalive_s:g} s + stall {self.stall_max_s:g} s: a healthy stream will be "
            f"taken for a silent one; set idle_timeout_s above {least:g}"
        )


class Declared(NamedTuple):
    """What an answer's headers state; None where they state nothing that can be read."""

    floor: int | None = None
    head: int | None = None
    epoch: int | None = None
    verdict: str | None = None
    durable: bool | None = None
    keepalive_s: float | None = None
    stall_max_s: float | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    location: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Declared:
        h = {name.lower(): value.strip() for name, value in headers.items()}
        return cls(
            floor=_integer(h.get("replay-floor")),
            head=_integer(h.get("replay-head")),
            epoch=_epoch(h.get("replay-epoch")),
            verdict=h.get("replay-verdict"),
            durable=_DURABLE.get(h.get("session-durable", "")),
            keepalive_s=_seconds(h.get("replay-keepalive")),
            stall_max_s=_seconds(h.get("replay-stall-max")),
            content_type=h.get("content-type"),
            content_encoding=h.get("content-encoding"),
            location=h.get("location"),
        )

    @property
    def speaks(self) -> bool:
        """The server declares something about replay."""
        return not (self.floor is None and self.head is None and self.verdict is None)

    @property
    def is_stream(self) -> bool:
        """A body that can be read as it is. A missing content type is let pass."""
        kind = (self.content_type or "text/event-stream").partition(";")[0].strip().lower()
        return kind == "text/event-stream" and (self.content_encoding or "identity").lower() == "identity"

    def conflict(self, idle_timeout_s: float) -> TimeoutConflict | None:
        """Present where keepalive + stall is not below the idle timeout."""
        if self.keepalive_s is None:
            return None
        stall_max_s = self.stall_max_s or 0.0
        if self.keepalive_s + stall_max_s < idle_timeout_s:
            return None
        return TimeoutConflict(self.keepalive_s, stall_max_s, idle_timeout_s)


def is_no_verdict(status: int) -> bool:
    """The server is there and cannot answer now: neither a proof nor a refusal."""
    return status in (408, 429) or status >= 500


def fault_of_stream(held: Position | None, declared: Declared, *, require_proof: bool) -> Fault | None:
    """The first reason not to read a 200's stream."""
    if not declared.is_stream:
        kinds = {"content_type": declared.content_type, "content_encoding": declared.content_encoding}
        return ClientReason.NOT_A_STREAM, {"status": 200, **kinds}
    if declared.verdict in BY_VERDICT:
        return BY_VERDICT[declared.verdict], lost_numbers(held, 200, declared.floor, declared.head)
    if held is None:
        return None
    if fault := checks.check_window(held, declared.floor, declared.head):
        return fault
    if fault := checks.check_epoch(held, declared.epoch):
        return fault
    if held.fresh or not require_proof:
        return None
    if declared.durable is False:
        return ClientReason.NOT_DURABLE, {}
    if held.id is None and not declared.speaks:
        return ClientReason.NO_PROOF, {}
    return None


def proves(held: Position | None, declared: Declared) -> bool:
    """Do the headers acknowledge the cursor? Asked after `fault_of_stream` found nothing.

    A floor that admits the cursor does; a head equal to it does, as nothing can be missing; so does
    a server that says outright that it will replay.
    """
    if declared.floor is not None or declared.verdict in _SERVED:
        return True
    if held is None:
        return False
    return declared.speaks if held.id is None else declared.head == held.id


def reason_without_stream(
    held: Position | None, status: int, declared: Declared, problem: Mapping[str, Any]
) -> Fault:
    """What an answer other than 200 concludes: the end, a loss or a refusal."""
    if status == 204:
        return _fault_at_end(held, declared) or (ClientReason.ENDED, {"status": 204})
    if 300 <= status < 400 and declared.location is not None:
        return ClientReason.REDIRECTED, {"status": status, "location": declared.location}
    reason = _BY_STATUS.get(status, ClientReason.STATUS)
    verdict = str(declared.verdict or problem.get("verdict"))
    # A proxy's 409 or 404 says nothing about a cursor: the verdict counts only with its own status.
    if verdict in BY_VERDICT and wire_of(Reason(verdict)).status == status:
        reason = BY_VERDICT[verdict]
    floor = declared.floor if declared.floor is not None else integer(problem.get("floor"))
    head = declared.head if declared.head is not None else integer(problem.get("head"))
    return reason, {**lost_numbers(held, status, floor, head), **restart_of(problem)}


def lost_numbers(held: Position | None, status: int, floor: int | None, head: int | None) -> dict[str, Any]:
    """The numbers of a refusal, with the lost range where cursor and floor give one.

    A reader without a cursor asked from the start: that is what was refused.
    """
    numbers: dict[str, Any] = {"status": status}
    numbers |= {name: value for name, value in (("floor", floor), ("head", head)) if value is not None}
    cursor = held.id if held is not None else 0
    if floor is not None and cursor is not None and cursor < floor - 1:
        numbers |= below_floor(cursor, floor)
    return numbers


def restart_of(problem: Mapping[str, Any]) -> dict[str, Any]:
    """From where a reader that accepts the loss can start again."""
    restart_from = problem.get("restart_from")
    return {"restart_from": restart_from} if isinstance(restart_from, str | int) else {}


def problem_of(text: str | bytes | None) -> dict[str, Any]:
    """The JSON object in `text`, or {}: a body that says nothing is not an error of its own."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):  # not JSON: the status and the headers have to do
        return {}
    return found if isinstance(found, dict) else {}


def integer(value: object) -> int | None:
    """An id out of JSON: a bool or a float is none."""
    if type(value) is int and 0 <= value <= ID_MAX + 1:
        return value
    return None


def _fault_at_end(held: Position | None, declared: Declared) -> Fault | None:
    """A 204 whose declared head is not the cursor ends a session that was not read to its end."""
    if held is None or held.id is None or declared.head is None:
        return None
    return checks.check_same_place(held, Position("", declared.head, declared.epoch))


def _integer(text: str | None) -> int | None:
    return int(text) if text and _INTEGER.fullmatch(text) else None


def _seconds(text: str | None) -> float | None:
    return float(text) if text and _SECONDS.fullmatch(text) else None


def _epoch(text: str | None) -> int | None:
    return int(text, 16) if text and _EPOCH.fullmatch(text) else None
