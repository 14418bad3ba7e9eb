"""From a journal to sessions: what a process that died had promised.

Invariants:
1. Only the chain of the slot's incarnation is read, from the block after its checkpoint, each block naming
   the CRC of the one before. Recycled history and payloads that imitate blocks cannot come back.
2. The first invalid block ends the chain, unless a later header says that it was flushed: then it is damage.
3. What was read is flushed (and, by a writer, committed to the store) before anybody is shown it: a block
   killed between write and flush is in the page cache and could still be lost by a power cut.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from replaylog import _format as fmt
from replaylog import _journal
from replaylog._errors import CorruptLog
from replaylog._format import Row, Slot
from replaylog._frame import first_tag
from replaylog._ring import chunk_from_run
from replaylog._session import Session

if TYPE_CHECKING:
    from replaylog._directory import Directory
    from replaylog._log import Log

__all__ = ["create_row", "recover"]

BLOCK_ALIGN = 512


def recover(log: Log, directory: Directory, slots: dict[int, Slot]) -> tuple[int, int, int]:
    """Apply every slot's chain to the sessions of `log`; (next session number, time high, records)."""
    next_number = time_high = records = 0
    for number, slot in slots.items():
        if not slot.incarnation:
            continue
        chain = Chain(directory, number, slot)
        try:
            for block_time, body in chain:
                time_high = max(time_high, block_time)
                for record in _journal.records_of(body, f"journal of slot {number}"):
                    next_number = max(next_number, _apply(log, record) + 1)
                    records += 1
            chain.flush()
        finally:
            chain.close()
    return next_number, time_high, records


class Chain:
    """The blocks of one incarnation, in order; iterate once."""

    def __init__(self, directory: Directory, slot_number: int, slot: Slot) -> None:
        self.slot = slot
        self.where = f"journal of slot {slot_number}"
        self._files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for _, path in directory.extents(slot_number)]
        self._maps = [
            mmap.mmap(fd, 0, prot=mmap.PROT_READ) if os.fstat(fd).st_size else mmap.mmap(-1, BLOCK_ALIGN)
            for fd in self._files
        ]
        self._views = [memoryview(m) for m in self._maps]
        self._starts = {
            first: view for view in self._views if (first := _journal.first_block(view, slot.incarnation)) > 0
        }

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """(time high, body) of each block after the checkpoint."""
        block = self.slot.block + 1
        view, at = self._locate(block)
        if view is None and self.slot.block:
            self._require(self.slot.block)
        last_crc = None
        while view is not None:
            found = _journal.block_at(view, at, self.slot.incarnation)
            if found is None or found[0] != block:
                if at == 0 or block not in self._starts:
                    break
                view, at = self._starts[block], 0  # the chain goes on in another extent
                continue
            _, _, named_crc, crc, time_high, body = found
            if last_crc is not None and named_crc != last_crc:
                break
            yield time_high, body
            last_crc = crc
            at += _journal.block_bytes(len(body))
            block += 1
        self._refuse_damage(block)

    def _locate(self, block: int) -> tuple[memoryview | None, int]:
        """Where a valid block of that number stands. Not by walking: damage in what is check-pointed is no loss."""
        for view in self._views:
            at = _journal.find_block(view, self.slot.incarnation, block)
            if at >= 0:
                return view, at
        return None, 0

    def _require(self, block: int) -> None:
        """The newest block that a checkpoint took is never written over: without it this is not the journal."""
        if not any(_journal.has_block(view, self.slot.incarnation, block) for view in self._views):
            wanted = f"the journal of incarnation {self.slot.incarnation:x}"
            raise CorruptLog(where=self.where, found=f"no block {block}", expected=wanted)

    def _refuse_damage(self, block: int) -> None:
        """`block` is missing or invalid: was it ever flushed?"""
        for view in self._views:
            witness = _journal.claims_flushed(view, 0, self.slot.incarnation, block)
            if witness:
                raise CorruptLog(
                    where=self.where,
                    found=f"no valid block {block}, though block {witness} says that it was flushed",
                    expected=f"block {block}",
                )

    def flush(self) -> None:
        """What was read is durable from here on."""
        for fd in self._files:
            os.fdatasync(fd)

    def close(self) -> None:
        """Let go of the files."""
        self._starts.clear()
        for view in self._views:
            view.release()
        for mapped in self._maps:
            mapped.close()
        for fd in self._files:
            os.close(fd)


def create_row(name: str, number: int, body: list[Any], generation: int) -> Row:
    """The row of a new session from its CREATE record: [name, epoch, meta, events, bytes, age_ns, own, time_ns]."""
    _, epoch, meta, events, size, age_ns, own, time_ns = body
    tag = first_tag(epoch)
    return Row(
        name=name,
        number=number,
        epoch=epoch,
        state=0,
        head=0,
        head_tag=tag,
        cum=0,
        floor=1,
        floor_tag=tag,
        floor_cum=0,
        limit_events=events,
        limit_bytes=size,
        limit_age_ns=age_ns,
        own_limits=own,
        generation=generation,
        meta=meta,
        reason="",
        changed_ns=time_ns,
        fence=1,
        expires_ns=0,
        stored=False,
    )


def _apply(log: Log, record: tuple[int, int, int, int, int, int, int, bytes, bytes]) -> int:
    """One record; a session that the store holds already in a later state is left as it is."""
    kind, number, first, floor, _, count, tag_before, content, key = record
    if kind == fmt.REC_CREATE:
        _create(log, number, content)
        return number
    session = _session_of(log, number)
    if session is None:
        return number  # reaped and created again since: `_create` was asked first, so it cannot be one that never was
    if kind == fmt.REC_EVENTS:
        cum, last = session._next_run()
        if first + count - 1 > last:
            run = chunk_from_run(session.epoch, first, cum, tag_before, count, content)
            session._recover_events(floor, run, key)
        return number
    where = f"journal record of session {session.name!r}"
    if kind == fmt.REC_TRIM:
        session._recover_floor(first)
    elif kind == fmt.REC_END:
        session._recover_state(fmt.STATE_ENDED, content.decode(), 0)
    elif kind == fmt.REC_REAP:
        session._recover_state(fmt.STATE_REAPED, *fmt.unpack(content, where))
        session._recover_floor(session.head + 1)
    elif kind == fmt.REC_LIMITS:
        session._limits(*fmt.unpack(content, where))
        session._recover_floor(0)
    else:
        raise CorruptLog(where=f"session {session.name!r}", found=f"a record of type {kind}", expected="1 to 6")
    return number


def _create(log: Log, number: int, content: bytes) -> None:
    body = fmt.unpack(content, f"creation of session number {number}")
    name = body[0]
    known = log._sessions.get(name)
    stored = log._store.load(name) if known is None else None
    if (known is not None and known._number >= number) or (stored is not None and stored.number >= number):
        return
    session = Session(log, create_row(name, number, body, log._recovered_generation))
    log._sessions[name] = session
    log._by_number[number] = session
    session._publish_born()
    session._recover_floor(0)


def _session_of(log: Log, number: int) -> Session | None:
    session = log._by_number.get(number)
    if session is None:
        row = log._store.load_number(number)
        if row is None:
            return None
        session = Session(log, row)
        log._sessions[session.name] = session
        log._by_number[number] = session
    return session
