"""What a verdict means outside of this process: statuses, problem types, client states.

Pure tables. The judgement itself is `judge()` in the C core (`_judge.pyx`); this module is what
servers, clients and tools share, and it imports neither the core nor anything else.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["PROBLEM_BASE", "ClientState", "Reason", "Wire", "wire_of"]

PROBLEM_BASE = "https://replaylog.dev/problems/"


class Reason(enum.Enum):
    """The answer to "can I replay from this cursor?". The value is the wire form."""

    RESUMABLE = "resumable"  # events are missing and all of them are there
    AT_HEAD = "at-head"  # nothing is missing
    BELOW_FLOOR = "below-floor"  # events after the cursor are gone
    FORKED = "forked"  # the cursor belongs to another history
    REAPED = "reaped"  # the session existed; its events are gone
    UNKNOWN = "unknown"  # no such session
    MALFORMED = "malformed"  # not a cursor


class ClientState(enum.Enum):
    """The one state that a client must be in after a verdict."""

    DELAYED = "delayed"
    RESUMPTION_FAILED = "resumption-failed"
    SESSION_LOST = "session-lost"
    FINISHED = "finished"


class Wire(NamedTuple):
    """How a reason goes over HTTP. `problem` is the type's last segment, "" for a stream."""

    status: int
    problem: str
    title: str
    client: ClientState


_FAILED = ClientState.RESUMPTION_FAILED
_LOST = ClientState.SESSION_LOST

_WIRE: dict[Reason, Wire] = {
    Reason.RESUMABLE: Wire(200, "", "", ClientState.DELAYED),
    Reason.AT_HEAD: Wire(200, "", "", ClientState.DELAYED),
    Reason.BELOW_FLOOR: Wire(409, "cursor-below-floor", "Events after the cursor are gone", _FAILED),
    Reason.FORKED: Wire(409, "cursor-forked", "The cursor belongs to another history", _FAILED),
    Reason.REAPED: Wire(410, "session-reaped", "The session was reaped", _LOST),
    Reason.UNKNOWN: Wire(404, "session-unknown", "No such session", _LOST),
    Reason.MALFORMED: Wire(400, "cursor-malformed", "Not a cursor", _FAILED),
}


def wire_of(reason: Reason) -> Wire:
    """Status, problem type and client state for a reason."""
    return _WIRE[reason]
