"""The client's side of the replay proof, as a state machine without I/O and without a clock.

Guarantees, for any sequence of inputs:
  1. It is in exactly one of DELAYED, RESUMPTION_FAILED, SESSION_LOST, FINISHED; only the first is
     ever left.
  2. `on_event` hands out an event only if it is the immediate successor of the one before (of the
     cursor, for the first): never out of order, never twice, never past a hole.
  3. `last_event_id` moves only to what was proven; a drop, an error or an empty stream leaves it.
  4. The boundary is the proof, not the time: a stream proven at head may be silent for ever.

Fed by one thread. Times are seconds on any monotonic clock of the caller's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from replaylog._cursor import parse
from replaylog._verdict import ClientState
from replaylog.client import answers, checks, control
from replaylog.client.answers import Declared, TimeoutConflict
from replaylog.client.checks import Fault
from replaylog.client.outcome import STATE_OF, TRANSITIONS, ClientReason, StreamResumptionError, explain
from replaylog.client.position import (
    CursorLike,
    IdOf,
    Position,
    StreamEvent,
    event_of,
    position_of,
    starting_position,
)
from replaylog.client.sse import Frame

__all__ = [
    "EMPTY_RECONNECTS_MAX",
    "IDLE_TIMEOUT_S",
    "PROVEN_RECONNECTS_MAX",
    "UNREACHABLE_MAX_S",
    "Verifier",
]

IDLE_TIMEOUT_S = 90.0
UNREACHABLE_MAX_S = 300.0
EMPTY_RECONNECTS_MAX = 5  # in a row, by a server that proved nothing
PROVEN_RECONNECTS_MAX = 100  # in a row, by a server that proved the cursor and then sent no event


@dataclasses.dataclass(slots=True)
class _Connection:
    """What is known of the stream that is open now."""

    opened_s: float
    proven: bool
    head: int | None = None
    events: int = 0


class Verifier:
    """Feed it each answer, each frame, the end of each connection; ask `state` what to do.

    `cursor`: None (the first id is accepted), an id (0: the first must be 1), or a token. `id_of`
    reads an id field: a Cursor, an int, or None for opaque. `require_proof=False` accepts servers
    that cannot prove a thing about an opaque or undurable cursor; a visible gap is never accepted.
    """

    def __init__(
        self,
        cursor: CursorLike = None,
        *,
        id_of: IdOf = parse,
        require_proof: bool = True,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        proof_max_s: float | None = None,
        unreachable_max_s: float = UNREACHABLE_MAX_S,
        empty_reconnects_max: int = EMPTY_RECONNECTS_MAX,
        proven_reconnects_max: int = PROVEN_RECONNECTS_MAX,
    ) -> None:
        self._held = starting_position(cursor, id_of)
        self._id_of = id_of
        self._require_proof = require_proof
        self._idle_timeout_s = idle_timeout_s
        self._proof_max_s = idle_timeout_s if proof_max_s is None else proof_max_s
        self._unreachable_max_s = unreachable_max_s
        self._reconnects_max = {False: empty_reconnects_max, True: proven_reconnects_max}
        self._connection: _Connection | None = None
        self.events = 0  # proven, over all connections
        self.reconnects = 0  # without progress, in a row
        self.withheld = 0  # events without an id that came before the stream was proven
        self.unreachable_since_s: float | None = None
        self.last_seen_s: float | None = None
        self.timeout_conflict: TimeoutConflict | None = None
        self.reason = ClientReason.CONNECTING
        self.numbers: Mapping[str, Any] = self._with_cursor({})

    # --- what is known ---------------------------------------------------------------------------

    @property
    def state(self) -> ClientState:
        return STATE_OF[self.reason]

    @property
    def explanation(self) -> str:
        return explain(self.reason, self.numbers)

    @property
    def last_event_id(self) -> str | None:
        """What the next request carries: the last proven position."""
        return self._held.text if self._held is not None else None

    @property
    def id(self) -> int | None:
        """The number of the last proven position, where it has one."""
        return self._held.id if self._held is not None else None

    @property
    def is_open(self) -> bool:
        """A stream was accepted and has not been closed: its frames can be fed."""
        return self._connection is not None and self.state is ClientState.DELAYED

    @property
    def is_proven(self) -> bool:
        return self._connection is not None and self._connection.proven

    @property
    def error(self) -> StreamResumptionError | None:
        """What to raise: None while delayed and when finished."""
        if self.state in (ClientState.DELAYED, ClientState.FINISHED):
            return None
        return StreamResumptionError(self.explanation, reason=self.reason, numbers=self.numbers)

    def unreachable_left_s(self, now_s: float) -> float:
        """How long the server may go on without a usable answer."""
        since_s = now_s if self.unreachable_since_s is None else self.unreachable_since_s
        return since_s + self._unreachable_max_s - now_s

    # --- what happens ----------------------------------------------------------------------------

    def on_response(
        self, status: int, headers: Mapping[str, str], *, now_s: float, problem: str | bytes | None = None
    ) -> ClientState:
        """An answer to a request that carried `last_event_id`. `problem`: a refusal's body, if read.

        Redirects inside the origin are the transport's: what arrives here as 3xx is refused.
        """
        self._connection = None
        if self.state is not ClientState.DELAYED:
            return self.state
        if answers.is_no_verdict(status):
            return self.on_unreachable(now_s=now_s)
        self.unreachable_since_s = None
        self.last_seen_s = now_s
        declared = Declared.of(headers)
        if status == 200:
            self._opened(declared, now_s)
        else:
            told = answers.problem_of(problem)
            self._enter(*answers.reason_without_stream(self._held, status, declared, told))
        return self.state

    def on_unreachable(self, *, now_s: float) -> ClientState:
        """No answer, or one that is no verdict: the state is kept until `unreachable_max_s`."""
        self._connection = None
        if self.unreachable_since_s is None:
            self.unreachable_since_s = now_s
        if self.unreachable_left_s(now_s) <= 0:
            unreachable_s = round(now_s - self.unreachable_since_s, 3)
            bound_s = self._unreachable_max_s
            self._enter(
                ClientReason.UNREACHABLE, {"unreachable_s": unreachable_s, "unreachable_max_s": bound_s}
            )
        return self.state

    def on_bytes(self, *, now_s: float) -> ClientState:
        """Something arrived, a keepalive included. It proves that the server lives, nothing else."""
        self.last_seen_s = now_s
        at = self._connection
        if at is not None and self._must_prove(at) and now_s - at.opened_s >= self._proof_max_s:
            self._enter(ClientReason.EMPTY, {"reconnects": self.reconnects})
        return self.state

    def on_idle(self, *, now_s: float) -> ClientState:
        """Nothing arrived for the idle timeout: not a loss, unless the stream is still unproven."""
        at = self._connection
        if at is not None and self._must_prove(at):
            self._enter(ClientReason.EMPTY, {"reconnects": self.reconnects})
        return self.on_close(now_s=now_s)

    def on_close(self, *, now_s: float) -> ClientState:
        """The connection ended, in whatever way. An end without progress counts towards a bound."""
        at, self._connection = self._connection, None
        if at is None or self.state is not ClientState.DELAYED:
            return self.state
        if at.events or self._at_head(at):
            self.reconnects = 0
        else:
            self.reconnects += 1
        if self.reconnects > self._reconnects_max[at.proven]:
            self._enter(ClientReason.EMPTY, {"reconnects": self.reconnects})
        else:
            self._enter(ClientReason.DROPPED, {"reconnects": self.reconnects})
        return self.state

    def on_event(self, frame: Frame, *, now_s: float) -> StreamEvent | None:
        """The event to hand to the application, if this frame is one and may be handed out."""
        self.on_bytes(now_s=now_s)
        if not self.is_open:
            return None
        if control.is_control(frame):
            self._control(frame)
            return None
        if not frame.has_id or not frame.id:
            return self._unnumbered(frame)
        return self._numbered(frame, position_of(frame.id, self._id_of))

    def refuse(self, reason: ClientReason, numbers: Mapping[str, Any]) -> ClientState:
        """The transport found that it cannot go on, e.g. an event larger than its bound."""
        self._enter(reason, numbers)
        return self.state

    def _opened(self, declared: Declared, now_s: float) -> None:
        self.timeout_conflict = declared.conflict(self._idle_timeout_s)
        fault = answers.fault_of_stream(self._held, declared, require_proof=self._require_proof)
        if fault is not None:
            self._enter(*fault)
            return
        at = _Connection(now_s, answers.proves(self._held, declared), declared.head)
        self._connection = at
        self._settle(at)

    # --- frames ----------------------------------------------------------------------------------

    def _unnumbered(self, frame: Frame) -> StreamEvent | None:
        """Not counted, so it proves nothing; handed out only on a stream that is above suspicion."""
        at = self._open_connection()
        if frame.data is None:
            return None
        if self._must_prove(at):
            self.withheld += 1
            return None
        return event_of(frame, None, self.last_event_id)

    def _numbered(self, frame: Frame, position: Position) -> StreamEvent | None:
        at, held = self._open_connection(), self._held
        if frame.data is None and held is not None and held.text == position.text:
            return None  # an id alone, restating the cursor
        fault = None if held is None else self._fault_after(held, position)
        if fault is not None:
            self._enter(*fault)
            return None
        self._held = position
        at.proven = True
        at.events += 1
        self.events += 1
        self._settle(at)
        return event_of(frame, position.id, position.text) if frame.data is not None else None

    def _fault_after(self, held: Position, position: Position) -> Fault | None:
        if held.id is not None and position.id is not None:
            return checks.check_successor(held, position)
        if held.text == position.text:
            return ClientReason.DUPLICATE, {"expected": "another id", "got": position.text}
        trusted = not self._require_proof or (self.is_proven and position.id is None)
        return None if trusted and held.id is None else (ClientReason.NO_PROOF, {"got": position.text})

    def _control(self, frame: Frame) -> None:
        told = control.told_by(frame, self._held, require_proof=self._require_proof)
        if told.fault is not None:
            self._enter(*told.fault)
        elif told.stand is not None:
            self._adopt(told.stand, told.head)
            if told.end_reason is not None:
                self._enter(ClientReason.ENDED, {"end_reason": told.end_reason})

    def _adopt(self, stand: Position, head: int | None) -> None:
        """The server stands where the cursor is, which proves the stream."""
        at = self._open_connection()
        self._held = stand
        at.proven = True
        at.head = head if head is not None else at.head
        self._settle(at)

    # --- state -----------------------------------------------------------------------------------

    def _open_connection(self) -> _Connection:
        assert self._connection is not None
        return self._connection

    def _must_prove(self, at: _Connection) -> bool:
        """A cursor is at stake, and nothing has shown yet that this stream continues it."""
        at_stake = self._held is not None and not self._held.fresh
        return self._require_proof and at_stake and not at.proven

    def _at_head(self, at: _Connection) -> bool:
        return at.proven and at.head is not None and self.id is not None and self.id >= at.head

    def _settle(self, at: _Connection) -> None:
        """Delayed, and why."""
        if not at.proven:
            self._enter(ClientReason.UNPROVEN, {})
        elif self._at_head(at):
            self._enter(ClientReason.AT_HEAD, {"head": at.head})
        else:
            self._enter(ClientReason.PROVEN, {"head": at.head})

    def _with_cursor(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        cursor = self.id if self.id is not None else self.last_event_id
        return {"cursor": cursor, **numbers}

    def _enter(self, reason: ClientReason, numbers: Mapping[str, Any]) -> None:
        if STATE_OF[reason] in TRANSITIONS[self.state]:
            self.reason = reason
            self.numbers = self._with_cursor(numbers)
