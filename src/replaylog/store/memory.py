"""The store of `durability="memory"`, and the oracle that the conformance suite holds others against.

Plain dicts: obviously right, never fast. Gone with the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from replaylog._errors import CorruptLog
from replaylog._format import STATE_REAPED, Row, Slot
from replaylog._ring import Chunk, read_segment
from replaylog.store.protocol import Change

__all__ = ["MemoryStore"]


class MemoryStore:
    """Rows, segments and keys in dicts."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.numbers: dict[int, str] = {}
        self.segments: dict[int, dict[int, tuple[int, bytes]]] = {}
        self.keys: dict[int, dict[bytes, int]] = {}
        self.slot: Slot | None = None
        self.next_number = 1
        self.time_high = 0

    def load(self, name: str) -> Row | None:
        """The row of a name, None when there is none."""
        return self.rows.get(name)

    def load_number(self, number: int) -> Row | None:
        """The row that is current for a session number."""
        row = self.rows.get(self.numbers.get(number, ""))
        return row if row is not None and row.number == number else None

    def read(self, number: int, id: int) -> Chunk | None:
        """The stored run that holds event `id`."""
        for first, (last, data) in self.segments.get(number, {}).items():
            if first <= id <= last:
                return read_segment(data, f"session number {number}")
        return None

    def tag(self, number: int, id: int) -> int:
        """tag(id) from the run that holds `id` or begins after it."""
        for first, (last, data) in self.segments.get(number, {}).items():
            if first - 1 <= id <= last:
                chunk = read_segment(data, f"session number {number}")
                return chunk.tag_before if id == first - 1 else chunk.event(id).tag
        raise CorruptLog(where=f"session number {number}", found="no segment", expected=f"the tag of id {id}")

    def find_key(self, number: int, key: bytes) -> int | None:
        """The id that an idempotency key got."""
        return self.keys.get(number, {}).get(key)

    def names(self, prefix: str, after: str | None) -> Iterator[Row]:
        """Rows in the order of their names' UTF-8, strictly after `after`."""
        for name in sorted(self.rows, key=lambda n: n.encode()):
            if name.startswith(prefix) and (after is None or name.encode() > after.encode()):
                yield self.rows[name]

    def expired(self, kind: int, before_ns: int, limit: int) -> list[tuple[int, Row]]:
        """(time, row) of rows whose time is over, oldest first."""
        tombstone = kind == 2
        due = sorted(
            (row.expires_ns, row.name)
            for row in self.rows.values()
            if 0 < row.expires_ns <= before_ns and bool(row.state & STATE_REAPED) == tombstone
        )
        return [(time, self.rows[name]) for time, name in due[:limit]]

    def commit(
        self,
        changes: Iterable[Change],
        *,
        slot: Slot | None = None,
        next_number: int,
        time_high: int,
        forget: Iterable[tuple[int, Row]] = (),
    ) -> None:
        """All changes; there is nothing that could fail half-way."""
        for change in changes:
            self._apply(change)
            time_high = max(time_high, change.row.changed_ns)
        for _, row in forget:
            if (now := self.rows.get(row.name)) is not None and now.number == row.number:
                del self.rows[row.name]
            self.numbers.pop(row.number, None)
        self.slot = slot if slot is not None else self.slot
        self.next_number = next_number
        self.time_high = max(self.time_high, time_high)

    def _apply(self, change: Change) -> None:
        number = change.row.number
        if change.is_current:
            self.rows[change.row.name] = change.row._replace(stored=True)
            self.numbers[number] = change.row.name
        if change.drop_all:
            self.segments.pop(number, None)
            self.keys.pop(number, None)
            return
        segments = self.segments.setdefault(number, {})
        for first, last, data in change.segments:
            segments[first] = (last, data)
        for first in [f for f, (last, _) in segments.items() if last < change.low]:
            del segments[first]
        keys = self.keys.setdefault(number, {})
        keys.update(change.keys)
        for key in [k for k, id in keys.items() if id < change.floor]:
            del keys[key]

    def tombstones(self) -> int:
        """How many tombstones there are."""
        return sum(1 for row in self.rows.values() if row.state & STATE_REAPED)

    def used_bytes(self) -> int:
        """What the segments take."""
        return sum(len(data) for runs in self.segments.values() for _, data in runs.values())

    def close(self) -> None:
        """Nothing to let go."""
