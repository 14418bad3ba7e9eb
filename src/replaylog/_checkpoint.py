"""From the sessions in memory to the store, in one durable transaction.

Invariants:
1. The block number is read *before* the sessions are taken: every record up to it belongs to a session that
   is taken, so its extents may be recycled afterwards. Records after it may be applied twice; recovery skips
   what the rows already hold.
2. Only what readers may see is written (in `sync` mode: what is flushed).
3. What fell below the floor before it was ever written is not written; stored runs go once no promise
   (`replay_grace_s`) covers them.

One checkpoint at a time; on the maintenance thread, or on the thread that closes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from replaylog._format import STATE_REAPED, Row, Slot
from replaylog.store.protocol import Change

if TYPE_CHECKING:
    from replaylog._session import LogCore, Session

__all__ = ["Checkpoint"]


class Checkpoint:
    """One run over the sessions that changed."""

    def __init__(self, log: LogCore, *, tombstone_age_ns: int) -> None:
        self._log = log
        self._tombstone_age_ns = tombstone_age_ns
        self._exported: list[tuple[Session, int, int | None, list[Any], int]] = []

    def run(self, *, slot: tuple[int, Slot] | None, next_number: int) -> int:
        """Write what changed and `slot` with it; how many sessions. On failure everything stays to be done."""
        dirty_bytes = self._log._dirty_size()
        taken = self._log._take_dirty()
        try:
            self._log._store.commit(
                self._changes(taken),
                slot=slot,
                next_number=next_number,
                time_high=self._log._numbers()["time_high"],
            )
        except BaseException:
            for session, _, _, keys, _ in self._exported:
                session._export_failed(keys)
            self._log._give_back_dirty(taken, dirty_bytes)
            raise
        for session, head, segment_first, keys, expires_ns in self._exported:
            session._expires_ns = expires_ns
            session._exported(head, segment_first, keys)
        return len(taken)

    def _changes(self, taken: list[Session]) -> Iterator[Change]:
        for session in taken:
            if not session._born():
                if not session._refused():
                    self._log._give_back_dirty([session], 0)  # its creation is still being flushed
                continue
            yield self._change(session)

    def _change(self, session: Session) -> Change:
        # Before the export: an end or a reap that is posted after it must find the session dirty, or the
        # extent with its record would be recycled while the row never learned of it.
        in_flight = session._in_flight()
        head, facts, segments, low, keys = session._export()
        if in_flight:
            self._log._give_back_dirty([session], 0)
        row = self._row(session, facts)
        self._exported.append((session, head, segments[-1][0] if segments else None, keys, row.expires_ns))
        return Change(
            row=row,
            former_expires_ns=session._expires_ns,
            segments=segments,
            low=low,
            floor=row.floor,
            keys=keys,
            is_current=self._is_current(session),
            drop_all=bool(row.state & STATE_REAPED),
        )

    def _is_current(self, session: Session) -> bool:
        """A tombstone stays what its name stands for until the new session is born."""
        now = self._log._sessions.get(session.name)
        return now is not None and now._stands_for(session)

    def _row(self, session: Session, facts: tuple[Any, ...]) -> Row:
        *values, floor_expires_ns = facts
        row = Row._make((session.name, *values, 0, True))
        if row.state & STATE_REAPED:
            return row._replace(expires_ns=row.changed_ns + self._tombstone_age_ns, meta=None)
        return row._replace(expires_ns=max(0, floor_expires_ns))
