"""The store on disk: LMDB, written by checkpoints alone, always durably.

Guarantees: every commit is one durable transaction; every read is checked by CRC; no read transaction
outlives its call; a full map or disk is LogFull before or instead of half a commit. Layout: FORMAT.md.

`sync=True, metasync=True, writemap=False`: a writemap never sped up a durable commit and turns a full disk
into SIGBUS; `metasync=False` loses exactly the last acknowledged commit. The write transaction is begun and
committed on the thread that calls `commit`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from replaylog import _format as fmt
from replaylog._errors import CorruptLog, FormatMismatch, LogFull
from replaylog._format import Row, Slot
from replaylog._ring import Chunk, read_segment, segment_span, segment_tag
from replaylog.store.protocol import Change

__all__ = ["DATA_FILE", "EmbeddedStore"]

DATA_FILE = "data.mdb"
READERS_MAX = 1024
MAP_HEADROOM = 1.25  # a full LMDB map refuses even deletes: the quota lies below the map
MAP_EXTRA_BYTES = 64 << 20
NAMES_PAGE = 256  # rows per read transaction in a listing
_META_PAGES = 2
# Offsets in an LMDB meta page (64-bit build): what says how long the file must be.
_META_BYTES = 160
_META_MAGIC = slice(16, 20)
_META_PAGE_SIZE = slice(40, 44)
_META_LAST_PAGE = slice(136, 144)
_LMDB_MAGIC = (0xBEEFC0DE).to_bytes(4, "little")


class EmbeddedStore:
    """LMDB under the engine."""

    def __init__(self, path: Path, *, map_bytes: int, readonly: bool = False, mode: int = 0o600) -> None:
        self.path = path
        self.map_bytes = map_bytes
        self.readonly = readonly
        _refuse_truncated(path / DATA_FILE)
        try:
            self._env = lmdb.open(
                str(path / DATA_FILE),
                subdir=False,
                map_size=int(map_bytes * MAP_HEADROOM) + MAP_EXTRA_BYTES,
                max_dbs=len(fmt.TABLES),
                max_readers=READERS_MAX,
                mode=mode,
                readonly=readonly,
                create=not readonly,
                max_spare_txns=8,
            )
            self._env.reader_check()
            self._open_tables()
        except lmdb.Error as error:
            raise CorruptLog(where=str(path / DATA_FILE), found=str(error), expected="an LMDB file") from error
        self._used_bytes = 0
        self._write_lock = threading.Lock()
        self._measure()

    def _open_tables(self) -> None:
        try:
            self._tables = {name: self._env.open_db(name.encode(), create=False) for name in fmt.TABLES}
        except lmdb.NotFoundError:
            if self.readonly:
                raise
            with self._env.begin(write=True) as txn:  # a new store: all tables, or none
                self._tables = {name: self._env.open_db(name.encode(), txn=txn) for name in fmt.TABLES}
        self._sessions, self._names = self._tables["sessions"], self._tables["names"]
        self._segments, self._keys, self._expiry = (self._tables[name] for name in ("segments", "keys", "expiry"))

    # -- meta ---------------------------------------------------------------------------------------

    def identify(self, uuid: bytes) -> None:
        """Write format and UUID into a new store, or compare them."""
        with self._read(self._tables["meta"]) as txn:
            version, stored = txn.get(fmt.META_FORMAT), txn.get(fmt.META_UUID)
        if version is None:
            self._write_meta({fmt.META_FORMAT: fmt.pack_u64(fmt.FORMAT_VERSION), fmt.META_UUID: uuid})
            return
        if fmt.unpack_u64(bytes(version)) != fmt.FORMAT_VERSION:
            found = fmt.unpack_u64(bytes(version))
            raise FormatMismatch(path=str(self.path), found=found, expected=fmt.FORMAT_VERSION)
        if bytes(stored) != uuid:
            raise CorruptLog(
                where=str(self.path / DATA_FILE), found=f"the data of store {bytes(stored).hex()}", expected=uuid.hex()
            )

    def uuid(self) -> bytes | None:
        """The UUID in the data file, None when it is new."""
        with self._read(self._tables["meta"]) as txn:
            found = txn.get(fmt.META_UUID)
            return None if found is None else bytes(found)

    def _write_meta(self, values: dict[bytes, bytes]) -> None:
        with self._writing() as txn:
            for key, value in values.items():
                txn.put(key, value, db=self._tables["meta"])

    def slots(self) -> dict[int, Slot]:
        """Every slot that ever wrote here."""
        out = {}
        prefix = fmt.META_SLOT.split(b"%", 1)[0]
        with self._read(self._tables["meta"]) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(prefix)
            while found and bytes(cursor.key()).startswith(prefix):
                values = fmt.unpack(bytes(cursor.value()), "a slot record")
                out[int(bytes(cursor.key())[len(prefix) :])] = Slot(*values)
                found = cursor.next()
        return out

    def write_slot(self, slot_number: int, slot: Slot) -> None:
        """Commit a slot record on its own: an attach."""
        self._write_meta({fmt.META_SLOT % slot_number: fmt.pack(list(slot))})

    def limits(self) -> list[tuple[int, int, int, int]]:
        """(events, bytes, age_ns, ended_ns) of each opening with other default limits, oldest first."""
        with self._read(self._tables["meta"]) as txn:
            value = txn.get(fmt.META_LIMITS)
            found = None if value is None else bytes(value)
        rows = [] if found is None else fmt.unpack(found, "the limits in meta")
        return [(events, size, age_ns, ended_ns) for events, size, age_ns, ended_ns in rows]

    def write_limits(self, history: list[tuple[int, int, int, int]]) -> None:
        """Commit a new generation before anything is judged by it."""
        self._write_meta({fmt.META_LIMITS: fmt.pack(history)})

    def counters(self) -> tuple[int, int]:
        """(next session number, time high)."""
        with self._read(self._tables["meta"]) as txn:
            number, time = txn.get(fmt.META_NEXT), txn.get(fmt.META_TIME)
            return (
                fmt.unpack_u64(bytes(number)) if number is not None else 1,
                fmt.unpack_u64(bytes(time)) if time is not None else 0,
            )

    # -- reading: short transactions, any thread ----------------------------------------------------

    def _read(self, table: Any) -> Any:
        """A short read transaction, to be used as a context manager."""
        try:
            return self._env.begin(db=table, buffers=True)
        except lmdb.ReadersFullError:
            self._env.reader_check()  # slots of readers that died
            return self._env.begin(db=table, buffers=True)

    def is_empty(self) -> bool:
        """No session was ever stored here, or none is left."""
        with self._read(self._sessions) as txn:
            return bool(txn.stat(self._sessions)["entries"] == 0)

    def load(self, name: str) -> Row | None:
        """The row of a name."""
        try:
            key = name.encode("utf-8")
        except UnicodeEncodeError:
            return None
        if not 1 <= len(key) <= 255:
            return None
        with self._read(self._sessions) as txn:
            found = txn.get(key)
            return None if found is None else fmt.unpack_row(name, bytes(found))

    def load_number(self, number: int) -> Row | None:
        """The row that is current for a session number."""
        with self._read(self._names) as txn:
            name = txn.get(fmt.number_key(number))
            name = None if name is None else bytes(name).decode()
        row = None if name is None else self.load(name)
        return row if row is not None and row.number == number else None

    def read(self, number: int, id: int) -> Chunk | None:
        """The stored run that holds event `id`, with both CRCs checked."""
        with self._read(self._segments) as txn:
            cursor = txn.cursor()
            if not _seek_run(cursor, number, id):
                return None
            where = f"session number {number}, segment at id {fmt.split_segment_key(bytes(cursor.key()))[1]}"
            chunk: Chunk = read_segment(cursor.value(), where)
            return chunk if chunk.first <= id <= chunk.last else None

    def tag(self, number: int, id: int) -> int:
        """tag(id) from an index alone."""
        with self._read(self._segments) as txn:
            cursor = txn.cursor()
            where = f"session number {number}"
            if _seek_run(cursor, number, id) and id <= segment_span(cursor.value(), where)[1]:
                return int(segment_tag(cursor.value(), id, where))
            if cursor.set_key(fmt.segment_key(number, id + 1)):
                return int(segment_tag(cursor.value(), id, where))
        row = self.load_number(number)  # nothing retained: the row keeps the tags at both ends
        if row is not None and id == row.head:
            return row.head_tag
        if row is not None and id == row.floor - 1:
            return row.floor_tag
        raise CorruptLog(where=where, found="no segment", expected=f"the tag of id {id}")

    def find_key(self, number: int, key: bytes) -> int | None:
        """The id that an idempotency key got."""
        with self._read(self._keys) as txn:
            found = txn.get(fmt.key_by_name(number, key))
            return None if found is None else fmt.unpack_u64(bytes(found))

    def names(self, prefix: str, after: str | None) -> Iterator[Row]:
        """Rows in the order of their names' UTF-8; one short transaction per NAMES_PAGE rows."""
        start = prefix.encode()
        last = None if after is None else after.encode()
        while page := self._names_page(start, last):
            yield from page
            last = page[-1].name.encode()

    def _names_page(self, prefix: bytes, after: bytes | None) -> list[Row]:
        rows: list[Row] = []
        with self._read(self._sessions) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(max(prefix, after) if after is not None else prefix or b"\0")
            while found and len(rows) < NAMES_PAGE and bytes(cursor.key()).startswith(prefix):
                key = bytes(cursor.key())
                if after is None or key > after:
                    rows.append(fmt.unpack_row(key.decode(), bytes(cursor.value())))
                found = cursor.next()
        return rows

    def expired(self, kind: int, before_ns: int, limit: int) -> list[tuple[int, Row]]:
        """(time, row) of `expiry` entries of a kind up to a time, oldest first."""
        out: list[tuple[int, int, str]] = []
        with self._read(self._expiry) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(fmt.expiry_key(kind, 0, 0))
            while found and len(out) < limit:
                entry, time_ns, number = fmt.split_expiry_key(bytes(cursor.key()))
                if entry != kind or time_ns > before_ns:
                    break
                out.append((time_ns, number, bytes(cursor.value()).decode()))
                found = cursor.next()
        rows = [(time_ns, number, self.load(name)) for time_ns, number, name in out]
        return [(time_ns, row) for time_ns, number, row in rows if row is not None and row.number == number]

    # -- writing: one thread ------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        with self._write_lock:
            try:
                with self._env.begin(write=True) as txn:
                    yield txn
            except (lmdb.MapFullError, lmdb.DiskError) as error:
                raise LogFull(used=self._used_bytes, limit=self.map_bytes, bound="map_bytes") from error
            except lmdb.Error as error:
                if "SHORT_WRITE" in str(error) or "No space" in str(error):
                    raise LogFull(used=self._used_bytes, limit=self.map_bytes, bound="map_bytes") from error
                raise

    def commit(
        self,
        changes: Iterable[Change],
        *,
        slot: tuple[int, Slot] | None = None,
        next_number: int,
        time_high: int,
        forget: Iterable[tuple[int, Row]] = (),
    ) -> None:
        """All changes in one durable transaction."""
        with self._writing() as txn:
            delta = 0
            for change in changes:
                delta += self._apply(txn, change)
                time_high = max(time_high, change.row.changed_ns)
            delta -= sum(self._forget(txn, time_ns, row) for time_ns, row in forget)
            meta = self._tables["meta"]
            if slot is not None:
                txn.put(fmt.META_SLOT % slot[0], fmt.pack(list(slot[1])), db=meta)
            txn.put(fmt.META_NEXT, fmt.pack_u64(next_number), db=meta)
            txn.put(fmt.META_TIME, fmt.pack_u64(time_high), db=meta)
            if delta:
                found = txn.get(fmt.META_TOMBS, db=meta)
                count = 0 if found is None else fmt.unpack_u64(bytes(found))
                txn.put(fmt.META_TOMBS, fmt.pack_u64(max(0, count + delta)), db=meta)
        self._measure()

    def _apply(self, txn: Any, change: Change) -> int:
        """One session's changes; by how many the tombstones grew."""
        row, number = change.row, change.row.number
        if change.drop_all:
            self._delete_all(txn, number)
        else:
            for first, _, data in change.segments:
                txn.put(fmt.segment_key(number, first), data, db=self._segments)
            if row.floor > 1:
                self._trim(txn, number, change.low)
                self._trim_keys(txn, number, change.floor)
            for key, id in change.keys:
                txn.put(fmt.key_by_name(number, key), fmt.pack_u64(id), db=self._keys)
                txn.put(fmt.key_by_id(number, id), key, db=self._keys)
        kind = fmt.EXPIRY_TOMBSTONE if row.state & fmt.STATE_REAPED else fmt.EXPIRY_EVENT
        self._replace_expiry(txn, kind, change)
        return self._put_row(txn, change) if change.is_current else 0

    def _put_row(self, txn: Any, change: Change) -> int:
        name = change.row.name.encode()
        before = txn.get(name, db=self._sessions)
        was_tombstone = before is not None and bool(
            fmt.unpack_row(change.row.name, bytes(before)).state & fmt.STATE_REAPED
        )
        txn.put(name, fmt.pack_row(change.row), db=self._sessions)
        if before is None or fmt.unpack_row(change.row.name, bytes(before)).number != change.row.number:
            txn.put(fmt.number_key(change.row.number), name, db=self._names)
            if before is not None:
                old = fmt.unpack_row(change.row.name, bytes(before))
                txn.delete(fmt.number_key(old.number), db=self._names)
                if old.expires_ns:
                    old_kind = fmt.EXPIRY_TOMBSTONE if old.state & fmt.STATE_REAPED else fmt.EXPIRY_EVENT
                    txn.delete(fmt.expiry_key(old_kind, old.expires_ns, old.number), db=self._expiry)
        return bool(change.row.state & fmt.STATE_REAPED) - was_tombstone

    def _replace_expiry(self, txn: Any, kind: int, change: Change) -> None:
        row = change.row
        if change.former_expires_ns and change.former_expires_ns != row.expires_ns:
            for former in (fmt.EXPIRY_EVENT, fmt.EXPIRY_TOMBSTONE):
                txn.delete(fmt.expiry_key(former, change.former_expires_ns, row.number), db=self._expiry)
        if row.expires_ns and change.is_current:
            txn.put(fmt.expiry_key(kind, row.expires_ns, row.number), row.name.encode(), db=self._expiry)

    def _trim(self, txn: Any, number: int, low: int) -> None:
        """Delete the runs that lie wholly below `low`: those whose successor begins at or below it."""
        cursor = txn.cursor(db=self._segments)
        if not cursor.set_range(fmt.segment_key(number, 0)):
            return
        key = bytes(cursor.key())
        while fmt.split_segment_key(key)[0] == number and fmt.split_segment_key(key)[1] < low:
            has_next = cursor.next()
            following = bytes(cursor.key()) if has_next else b""
            if has_next and fmt.split_segment_key(following)[0] == number:
                gone = fmt.split_segment_key(following)[1] <= low
            else:
                value = txn.get(key, db=self._segments)
                gone = segment_span(value, f"session number {number}")[1] < low
            if not gone:
                return
            txn.delete(key, db=self._segments)
            if not has_next:
                return
            cursor.set_range(following)
            key = following

    def _trim_keys(self, txn: Any, number: int, floor: int) -> None:
        cursor = txn.cursor(db=self._keys)
        prefix = b"i" + fmt.number_key(number)
        while cursor.set_range(prefix) and bytes(cursor.key()).startswith(prefix):
            by_id, name = bytes(cursor.key()), bytes(cursor.value())
            if by_id >= fmt.key_by_id(number, floor):
                return
            by_name = fmt.key_by_name(number, name)
            if txn.get(by_name, db=self._keys) == by_id[-8:]:
                txn.delete(by_name, db=self._keys)
            txn.delete(by_id, db=self._keys)

    def _delete_all(self, txn: Any, number: int) -> None:
        for table, prefix in (
            (self._segments, fmt.number_key(number)),
            (self._keys, b"i" + fmt.number_key(number)),
            (self._keys, b"k" + fmt.number_key(number)),
        ):
            cursor = txn.cursor(db=table)
            while cursor.set_range(prefix) and bytes(cursor.key()).startswith(prefix):
                txn.delete(bytes(cursor.key()), db=table)

    def _forget(self, txn: Any, time_ns: int, row: Row) -> int:
        """Delete a tombstone; how many went."""
        txn.delete(fmt.expiry_key(fmt.EXPIRY_TOMBSTONE, time_ns, row.number), db=self._expiry)
        name = row.name.encode()
        found = txn.get(name, db=self._sessions)
        if found is None or fmt.unpack_row(row.name, bytes(found)).number != row.number:
            return 0
        txn.delete(name, db=self._sessions)
        txn.delete(fmt.number_key(row.number), db=self._names)
        return 1

    # -- room, care -----------------------------------------------------------------------------------

    def tombstones(self) -> int:
        """How many tombstones are stored."""
        with self._read(self._tables["meta"]) as txn:
            found = txn.get(fmt.META_TOMBS)
            return 0 if found is None else fmt.unpack_u64(bytes(found))

    def _measure(self) -> None:
        with self._env.begin() as txn:
            stats = [txn.stat(table) for table in self._tables.values()]
        pages = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats) + _META_PAGES
        self._used_bytes = pages * stats[0]["psize"]

    def used_bytes(self) -> int:
        """Pages in use, without those that LMDB holds for re-use."""
        return self._used_bytes

    def reader_check(self) -> int:
        """Clear slots of readers that died; how many."""
        return int(self._env.reader_check())

    def copy(self, to: Path) -> None:
        """A consistent, compact snapshot of the data file."""
        self._env.copy(str(to), compact=True)

    def segments_of(self, number: int) -> Iterator[tuple[int, Chunk | CorruptLog]]:
        """(first id, run or what is wrong with it) of a session, in order, for `verify`."""
        first = 0
        while True:
            with self._read(self._segments) as txn:
                cursor = txn.cursor()
                if not cursor.set_range(fmt.segment_key(number, first)):
                    return
                found_number, first = fmt.split_segment_key(bytes(cursor.key()))
                if found_number != number:
                    return
                try:
                    run: Chunk | CorruptLog = read_segment(cursor.value(), f"segment at id {first}")
                except CorruptLog as error:
                    run = error
            yield first, run
            first += 1

    def close(self) -> None:
        """Let go of the environment; idempotent."""
        self._env.close()


def _seek_run(cursor: Any, number: int, id: int) -> bool:
    """Put the cursor on the last run of the session that begins at or before `id`."""
    key = fmt.segment_key(number, id)
    if cursor.set_range(key):
        if bytes(cursor.key()) == key:
            return True
        found = cursor.prev()
    else:
        found = cursor.last()
    return bool(found) and fmt.split_segment_key(bytes(cursor.key()))[0] == number


def _refuse_truncated(file: Path) -> None:
    """LMDB maps the file: reading a page past its end is SIGBUS. Compare the size with the last page first."""
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        return
    if size == 0:
        return
    with file.open("rb") as data:
        head = data.read(_META_BYTES)
        page_size = int.from_bytes(head[_META_PAGE_SIZE], "little") or os.sysconf("SC_PAGE_SIZE")
        data.seek(page_size)
        metas = [head, data.read(_META_BYTES)]
    if size < 2 * page_size or any(meta[_META_MAGIC] != _LMDB_MAGIC for meta in metas):
        raise CorruptLog(where=str(file), found=f"{size} bytes that are no LMDB file", expected="two meta pages")
    needed = (max(int.from_bytes(meta[_META_LAST_PAGE], "little") for meta in metas) + 1) * page_size
    if size < needed:
        raise CorruptLog(where=str(file), found=f"{size} bytes", expected=f"at least {needed}: it was truncated")
