"""What a request for a session's events asks, and what its answer says: pure text, for ASGI and WSGI.

Guarantees: a cursor is taken as it came, never repaired; the first frame and the headers are made from
one verdict, so they cannot disagree. No I/O, no framework; callable from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

from replaylog import _sse
from replaylog._cursor import START, Origin
from replaylog._verdict import PROBLEM_BASE, Reason, wire_of

if TYPE_CHECKING:
    from replaylog import Verdict

__all__ = [
    "Asked",
    "Headers",
    "ending",
    "hex_epoch",
    "is_finished",
    "opening",
    "problem_members",
    "read",
    "steady_headers",
    "verdict_headers",
]

Headers = list[tuple[str, str]]
Query = dict[str, list[str]]

EVENT_STREAM: tuple[str, str] = ("content-type", _sse.MEDIA_TYPE)
_ORIGINS = {origin.value: origin for origin in Origin}
_NONE: Query = {}


class Asked(NamedTuple):
    """A request for events. `until_head`: end after the backlog, for who does not want to follow."""

    cursor: str | Origin = START
    in_band: bool = False
    until_head: bool = False


def read(last_event_ids: list[str], refuse: str, query: Query) -> Asked:
    """What is asked. The header wins over the query; an empty one counts as absent.

    What was given more than once is joined as HTTP joins it, and no cursor has a comma.
    """
    given = ", ".join(last_event_ids)
    if not query:
        return Asked(given or START, refuse == "event")
    cursor: str | Origin = given or ", ".join(query.get("last_event_id", ()))
    if not cursor:
        cursor = START
        if "from" in query:
            origin = ", ".join(query["from"])
            cursor = _ORIGINS.get(origin, f"from={origin}")
    in_band = (refuse or query.get("refuse", [""])[-1]) == "event"
    return Asked(cursor, in_band, query.get("until", [""])[-1] == "head")


def query_of(text: str) -> Query:
    """The fields of a query string, each with all its values."""
    if not text:
        return _NONE
    if not any(mark in text for mark in "&;%+"):
        name, _, value = text.partition("=")
        return {name: [value]}
    fields: Query = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        fields.setdefault(name, []).append(value)
    return fields


# --- the answer ----------------------------------------------------------------------------------


def hex_epoch(epoch: int | None) -> str | None:
    """An epoch as it goes over the wire: 64 bits do not fit a JavaScript number."""
    return None if epoch is None else f"{epoch:016x}"


def is_finished(verdict: Verdict) -> bool:
    """Nothing is missing, nothing will come, and the reader knows it."""
    return verdict.reason is Reason.AT_HEAD and verdict.ended and verdict.seen_end


def steady_headers(keepalive_s: float, stall_max_s: float | None) -> Headers:
    """What every answer of this resource carries, whatever the verdict. No stall limit: not enforced."""
    headers = [
        ("cache-control", "no-store, no-transform"),
        ("x-accel-buffering", "no"),
        (_sse.KEEPALIVE.lower(), f"{keepalive_s:g}"),
    ]
    if stall_max_s is not None:
        headers.append((_sse.STALL_MAX.lower(), f"{stall_max_s:g}"))
    return headers


_VERDICT, _PROOF, _DURABLE = _sse.VERDICT.lower(), _sse.PROOF.lower(), _sse.SESSION_DURABLE.lower()
_FLOOR, _HEAD, _EPOCH, _STATE = (
    _sse.FLOOR.lower(),
    _sse.HEAD.lower(),
    _sse.EPOCH.lower(),
    _sse.STATE.lower(),
)


def verdict_headers(verdict: Verdict, facts: Verdict | None = None) -> Headers:
    """`facts` is the verdict that knows the session, where `verdict` does not: a malformed cursor's."""
    facts = facts or verdict
    headers = [
        (_VERDICT, verdict.reason.value),
        (_PROOF, verdict.proof),
        (_DURABLE, "?1" if verdict.session_durable else "?0"),
    ]
    if (floor := facts.floor) is not None:
        headers.append((_FLOOR, str(floor)))
    if (head := facts.head) is not None:
        headers.append((_HEAD, str(head)))
    if (epoch := facts.epoch) is not None:
        headers.append((_EPOCH, f"{epoch:016x}"))
    if (state := facts.state) is not None:
        headers.append((_STATE, state))
    return headers


def problem_members(verdict: Verdict, facts: Verdict | None = None) -> dict[str, Any]:
    """The refusal of a cursor as the members of its problem document (RFC 9457)."""
    facts, wire = facts or verdict, wire_of(verdict.reason)
    return {
        "type": PROBLEM_BASE + wire.problem,
        "title": wire.title,
        "status": wire.status,
        "detail": verdict.explanation,
        "verdict": verdict.reason.value,
        "cursor": verdict.cursor,
        "floor": facts.floor,
        "head": facts.head,
        "epoch": hex_epoch(facts.epoch),
        "lost": verdict.lost,
        "restart_from": facts.restart_from,
    }


def opening(verdict: Verdict) -> bytes:
    """The first frame. Written out, not dumped: every value is a number or a word of ours."""
    assert verdict.from_token is not None
    return (
        f"id: {verdict.from_token}\nevent: {_sse.REPLAY}\ndata: "
        f'{{"verdict":"{verdict.reason.value}","from":{verdict.cursor},"floor":{verdict.floor},'
        f'"head":{verdict.head},"epoch":"{verdict.epoch:016x}","proof":"{verdict.proof}"}}\n\n'
    ).encode("ascii")


def caught_up(token: str) -> bytes:
    """After the backlog. The head may have moved on by now: this names where the reader is."""
    return f'id: {token}\nevent: {_sse.CAUGHT_UP}\ndata: {{"head":{id_of(token)}}}\n\n'.encode("ascii")


def ending(token: str, reason: str) -> bytes:
    """The last frame of a session that has ended."""
    return _sse.control(_sse.END, token + _sse.END_MARK, {"head": id_of(token), "reason": reason})


def id_of(token: str) -> int:
    """The id inside a token of ours."""
    return int(token.split(".", 2)[1])


def raw(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """As ASGI wants them."""
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]
