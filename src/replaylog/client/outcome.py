"""What a client can conclude, and the words for it.

Guarantees: every reason belongs to exactly one state; DELAYED is the only state that can be left.
Pure tables, for any thread.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from replaylog._errors import ReplayLogError
from replaylog._verdict import ClientState

__all__ = ["STATE_OF", "TRANSITIONS", "ClientReason", "StreamResumptionError", "explain"]


class ClientReason(enum.Enum):
    """Why the client is in the state that it is in."""

    # delayed: wait
    CONNECTING = "connecting"  # no answer yet
    UNPROVEN = "unproven"  # a stream is open and has shown nothing yet
    PROVEN = "proven"  # the next event is known to follow the cursor
    AT_HEAD = "at-head"  # proven, and nothing is missing: silence means that nothing happens
    BACKPRESSURE = "backpressure"  # the application reads slower than the server sends
    DROPPED = "dropped"  # the connection ended; the cursor is kept for the next one
    # resumption failed: escalate
    BELOW_FLOOR = "below-floor"
    FORKED = "forked"
    MALFORMED = "malformed"
    OVERRUN = "overrun"
    GAP = "gap"
    DUPLICATE = "duplicate"
    SKIPPED = "skipped"
    REWOUND = "rewound"
    EPOCH_CHANGED = "epoch-changed"
    TAG_CHANGED = "tag-changed"
    NOT_DURABLE = "not-durable"
    EMPTY = "empty"
    NO_PROOF = "no-proof"
    UNREACHABLE = "unreachable"
    BAD_REQUEST = "bad-request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    STATUS = "status"
    REDIRECTED = "redirected"
    NOT_A_STREAM = "not-a-stream"
    TOO_LARGE = "too-large"
    # session lost: re-initialize
    UNKNOWN = "unknown"
    REAPED = "reaped"
    # finished
    ENDED = "ended"


_R = ClientReason
_DELAYED = (_R.CONNECTING, _R.UNPROVEN, _R.PROVEN, _R.AT_HEAD, _R.BACKPRESSURE, _R.DROPPED)

STATE_OF: dict[ClientReason, ClientState] = {
    **dict.fromkeys(ClientReason, ClientState.RESUMPTION_FAILED),
    **dict.fromkeys(_DELAYED, ClientState.DELAYED),
    **dict.fromkeys((_R.UNKNOWN, _R.REAPED), ClientState.SESSION_LOST),
    _R.ENDED: ClientState.FINISHED,
}

# A verdict is final: a later stream that looks healthy must not talk the client out of a loss.
TRANSITIONS: dict[ClientState, frozenset[ClientState]] = {
    ClientState.DELAYED: frozenset(ClientState),
    ClientState.RESUMPTION_FAILED: frozenset(),
    ClientState.SESSION_LOST: frozenset(),
    ClientState.FINISHED: frozenset(),
}

_SENTENCES: dict[ClientReason, str] = {
    _R.CONNECTING: "no answer yet; cursor {cursor}",
    _R.UNPROVEN: "the stream is open and has shown nothing that proves continuity from cursor {cursor} yet",
    _R.PROVEN: "the stream continues from cursor {cursor}",
    _R.AT_HEAD: "cursor {cursor} is the head: nothing is missing",
    _R.BACKPRESSURE: "the application reads slowly: {buffered_events} event(s), {buffered_bytes} bytes "
    "are buffered, and the socket is not read until there is room; nothing is lost",
    _R.DROPPED: "the connection ended; reconnecting from cursor {cursor}",
    _R.BELOW_FLOOR: "cursor {cursor} below replay floor {floor}; events {lost_first}..{lost_last} are lost",
    _R.FORKED: "cursor {cursor} is not of the server's history (its head is {head}): start a new session, "
    "or read again from the start",
    _R.MALFORMED: "the server does not take {cursor} for a cursor: send one that it issued",
    _R.OVERRUN: "the reader fell off the window: cursor {cursor} below replay floor {floor}; read faster, "
    "or retain more",
    _R.GAP: "replay gap: expected event id {expected}, got {got}; silent skip of {skipped} event(s)",
    _R.DUPLICATE: "duplicate: expected event id {expected}, got {got}, which cursor {cursor} is already past",
    _R.SKIPPED: "the server stands at id {got}, the cursor at {cursor}: {skipped} event(s) were skipped",
    _R.REWOUND: "the server stands at id {got}, behind cursor {cursor}: "
    "it lost its tail, or is another history",
    _R.EPOCH_CHANGED: "epoch {got} does not continue epoch {expected}: the session was created anew, "
    "cursor {cursor} means another event there",
    _R.TAG_CHANGED: "tag {got} at id {cursor} is not {expected}: the ids were used again for another history",
    _R.NOT_DURABLE: "session not durable across reconnect; implicit re-creation cannot honor Last-Event-ID",
    _R.EMPTY: "reconnect returned an empty stream; cannot prove continuity",
    _R.NO_PROOF: "nothing can prove that the stream continues cursor {cursor}: the ids are opaque and the "
    "server declares no Replay-* header; pass id_of=, or require_proof=False",
    _R.UNREACHABLE: "no usable answer for {unreachable_s} s, the bound is "
    "unreachable_max_s={unreachable_max_s}; cursor {cursor} is still good for a later try",
    _R.BAD_REQUEST: "unexpected reconnect status={status}: the server takes the request for malformed",
    _R.UNAUTHORIZED: "unexpected reconnect status={status}: the credentials are missing or expired",
    _R.FORBIDDEN: "unexpected reconnect status={status}: this reader may not read the session",
    _R.STATUS: "unexpected reconnect status={status}",
    _R.REDIRECTED: "unexpected reconnect status={status}: redirected to {location}, another origin or one "
    "redirect too many; connect to the final address",
    _R.NOT_A_STREAM: "status=200 with content type {content_type}, encoding {content_encoding}: "
    "not a plain text/event-stream",
    _R.TOO_LARGE: "{size} bytes exceed {bound}={limit}: raise {bound}, or have the server send "
    "smaller events",
    _R.UNKNOWN: "session lost: status={status}; re-initialize required",
    _R.REAPED: "session lost: status={status}; re-initialize required",
    _R.ENDED: "the session has ended; cursor {cursor} is its last event",
}


class _Facts(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return "unknown"


def explain(reason: ClientReason, numbers: Mapping[str, Any]) -> str:
    """The sentence for a reason, built from its numbers."""
    return _SENTENCES[reason].format_map(_Facts(numbers))


class StreamResumptionError(ReplayLogError, RuntimeError):
    """Continuity from the client's cursor cannot be proven.

    `state` says what to do: RESUMPTION_FAILED, escalate; SESSION_LOST, re-initialize. `reason` says
    why, `numbers` how much (`cursor`, `floor`, `expected`, `got`, `restart_from` ... where known).
    """

    def __init__(
        self,
        message: str = "",
        *,
        reason: ClientReason | None = None,
        numbers: Mapping[str, Any] | None = None,
    ) -> None:
        RuntimeError.__init__(self, message)
        self.facts = dict(numbers or {})
        self.numbers = self.facts
        self.reason = reason
        self.state = STATE_OF[reason] if reason is not None else ClientState.RESUMPTION_FAILED

    @classmethod
    def because(cls, reason: ClientReason, **numbers: Any) -> StreamResumptionError:
        return cls(explain(reason, numbers), reason=reason, numbers=numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (str(self), self.reason, self.facts))


def _rebuild(message: str, reason: ClientReason | None, numbers: dict[str, Any]) -> StreamResumptionError:
    return StreamResumptionError(message, reason=reason, numbers=numbers)
