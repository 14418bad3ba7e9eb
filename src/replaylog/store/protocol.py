"""What the engine asks of the layer below: load a session, read frames, take a checkpoint. Nothing else.

A store has no opinions: it neither judges cursors nor applies retention. One conformance suite runs on
every store. Thread rules: `load`, `read`, `tag`, `find_key`, `names` from any thread; `commit` from one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from replaylog._format import Row, Slot
from replaylog._ring import Chunk

__all__ = ["Change", "Store"]


class Change(NamedTuple):
    """What a checkpoint writes of one session, all of it in the same transaction as everything else."""

    row: Row
    former_expires_ns: int  # the `expiry` entry that this row replaces, 0: none
    segments: list[tuple[int, int, bytes]]  # (first id, last id, segment), to put
    low: int  # stored segments wholly below are deleted
    floor: int  # keys of ids below it are deleted
    keys: list[tuple[bytes, int]]
    is_current: bool  # this session is the one that its name stands for
    drop_all: bool  # reaped: every segment and key goes


class Store(Protocol):
    """The seam under the engine."""

    def load(self, name: str) -> Row | None:
        """The row of a name, None when the store has none."""

    def load_number(self, number: int) -> Row | None:
        """The row that is current for a session number."""

    def read(self, number: int, id: int) -> Chunk | None:
        """The stored run that holds event `id`, checked; None when there is none."""

    def tag(self, number: int, id: int) -> int:
        """tag(id) from the run that holds `id` or begins after it; CorruptLog when there is none."""

    def find_key(self, number: int, key: bytes) -> int | None:
        """The id that an idempotency key got, None when unknown."""

    def names(self, prefix: str, after: str | None) -> Iterator[Row]:
        """Rows in name order, tombstones included, strictly after `after`."""

    def expired(self, kind: int, before_ns: int, limit: int) -> list[tuple[int, Row]]:
        """(time, row) of `expiry` entries of a kind up to a time, oldest first."""

    def commit(
        self,
        changes: Iterable[Change],
        *,
        slot: Slot | None = None,
        next_number: int,
        time_high: int,
        forget: Iterable[tuple[int, Row]] = (),
    ) -> None:
        """All changes, or none, durably. `forget`: tombstones to delete, with their expiry time."""

    def tombstones(self) -> int:
        """How many tombstones are stored."""

    def used_bytes(self) -> int:
        """What the data takes of the store's room, as of the last commit."""

    def close(self) -> None:
        """Let go; idempotent."""
