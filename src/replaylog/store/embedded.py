"""The store on disk: LMDB, written by checkpoints alone, always durably.

Guarantees: every commit is one durable transaction; every read is checked by CRC; no read transaction
outlives its call; a full map or disk is LogFull before or instead of half a commit. Layout: FORMAT.md.

`sync=True, metasync=True, writemap=False`: a writemap never sped up a durable commit and turns a full disk
into SIGBUS; `metasync=False` loses exactly the last acknowledged commit. The write transaction is begun and
committed on the thread that calls `commit`.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import lmdb

from replaylog import _format as fmt
from replaylog._errors import CorruptLog, FormatMismatch, LogClosed, LogFull, LogLocked, OutcomeUnknown
from replaylog._format import Row, Slot
from replaylog._frame import crc
from replaylog._ring import Chunk, read_segment, segment_span, segment_tag
from replaylog.store.protocol import Change
from replaylog.store.truncation import refuse_truncated

__all__ = ["DATA_FILE", "EmbeddedStore"]

DATA_FILE = "data.mdb"
READERS_MAX = 1024
CLOSE_WAIT_S = 10.0  # for readers under way
FULL_BELOW_BYTES = 1 << 20  # free space of the disk under which a failed write means that it is full
MAP_HEADROOM = 1.25  # a full LMDB map refuses even deletes: the quota lies below the map
MAP_EXTRA_BYTES = 64 << 20
NAMES_PAGE = 256  # rows per read transaction in a listing
_META_PAGES = 2
# What LMDB says when its pages are not what it wrote; a full disk, map or reader table is not among them.
_DAMAGE = (
    lmdb.BadTxnError,
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    struct.error,
)

P = ParamSpec("P")
T = TypeVar("T")


def _names_damage(method: Callable[P, T]) -> Callable[P, T]:
    """What LMDB or a key of impossible form says about damage becomes CorruptLog."""

    @functools.wraps(method)
    def named(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except _DAMAGE as error:
            raise CorruptLog(where=DATA_FILE, found=f"damaged pages ({error})", expected="pages as written") from error

    return named


_TABLE_CRCS = {name: crc(name.encode()) for name in fmt.TABLES}


def sealed(table: str, key: bytes, body: bytes) -> bytes:
    """A value: the CRC of where it stands and of what it is, then the body."""
    return crc(body, crc(key, _TABLE_CRCS[table])).to_bytes(4, "little") + body


def unsealed(table: str, key: bytes, value: Any) -> bytes:
    """The body of a value; CorruptLog where it, or its key, is not what was written."""
    whole = bytes(value)
    body = whole[4:]
    if whole[:4] != crc(body, crc(key, _TABLE_CRCS[table])).to_bytes(4, "little"):
        raise CorruptLog(where=f"table {table!r}, key {key!r}", found="a value that fails its CRC", expected="its own")
    return body


class EmbeddedStore:
    """LMDB under the engine."""

    def __init__(self, path: Path, *, map_bytes: int, readonly: bool = False, mode: int = 0o600) -> None:
        self.path = path
        self.map_bytes = map_bytes
        self._gate = threading.Condition(threading.Lock())
        self._reading = 0
        self._closed = False
        self.readonly = readonly
        refuse_truncated(path / DATA_FILE)
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
            self._used_bytes = 0
            self._measure()
        except lmdb.Error as error:
            if "already open" in str(error):
                raise LogLocked(path=str(path), holder="this process") from error
            raise CorruptLog(where=str(path / DATA_FILE), found=str(error), expected="an LMDB file") from error
        self._write_lock = threading.Lock()

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

    @_names_damage
    def identify(self, uuid: bytes) -> None:
        """Write format and UUID into a new store, or compare them."""
        with self._read(self._tables["meta"]) as txn:
            version, stored = txn.get(fmt.META_FORMAT), txn.get(fmt.META_UUID)
        if version is None:
            # These two say what the rest is and whose: plain in every version.
            self._write_meta({fmt.META_FORMAT: fmt.pack_u64(fmt.FORMAT_VERSION), fmt.META_UUID: uuid}, plain=True)
            return
        if fmt.unpack_u64(bytes(version)) != fmt.FORMAT_VERSION:
            found = fmt.unpack_u64(bytes(version))
            raise FormatMismatch(path=str(self.path), found=found, expected=fmt.FORMAT_VERSION)
        if bytes(stored) != uuid:
            raise CorruptLog(
                where=str(self.path / DATA_FILE), found=f"the data of store {bytes(stored).hex()}", expected=uuid.hex()
            )

    @_names_damage
    def uuid(self) -> bytes | None:
        """The UUID in the data file, None when it is new."""
        with self._read(self._tables["meta"]) as txn:
            found = txn.get(fmt.META_UUID)
            return None if found is None else bytes(found)

    def _write_meta(self, values: dict[bytes, bytes], *, plain: bool = False) -> None:
        with self._writing() as txn:
            for key, value in values.items():
                txn.put(key, value if plain else sealed("meta", key, value), db=self._tables["meta"])

    def _meta(self, txn: Any, key: bytes) -> bytes | None:
        found = txn.get(key, db=self._tables["meta"])
        return None if found is None else unsealed("meta", key, found)

    @_names_damage
    def slots(self) -> dict[int, Slot]:
        """Every slot that ever wrote here."""
        out = {}
        prefix = fmt.META_SLOT.split(b"%", 1)[0]
        with self._read(self._tables["meta"]) as txn:
            for key, value in txn.cursor():
                name = bytes(key)
                if name.startswith(prefix):
                    values = fmt.unpack(unsealed("meta", name, value), "a slot record")
                    out[int(name[len(prefix) :])] = Slot(*values)
                elif name not in fmt.META_KEYS:  # a slot under another name would be a journal that nobody reads
                    raise CorruptLog(where="table 'meta'", found=f"the key {name!r}", expected="a key of this format")
        return out

    def write_slot(self, slot_number: int, slot: Slot) -> None:
        """Commit a slot record on its own: an attach."""
        self._write_meta({fmt.META_SLOT % slot_number: fmt.pack(list(slot))})

    @_names_damage
    def limits(self) -> list[tuple[int, int, int, int]]:
        """(events, bytes, age_ns, ended_ns) of each opening with other default limits, oldest first."""
        with self._read(self._tables["meta"]) as txn:
            found = self._meta(txn, fmt.META_LIMITS)
        rows = [] if found is None else fmt.unpack(found, "the limits in meta")
        return [(events, size, age_ns, ended_ns) for events, size, age_ns, ended_ns in rows]

    def write_limits(self, history: list[tuple[int, int, int, int]]) -> None:
        """Commit a new generation before anything is judged by it."""
        self._write_meta({fmt.META_LIMITS: fmt.pack(history)})

    @_names_damage
    def counters(self) -> tuple[int, int]:
        """(next session number, time high)."""
        with self._read(self._tables["meta"]) as txn:
            number, time = self._meta(txn, fmt.META_NEXT), self._meta(txn, fmt.META_TIME)
            return (
                fmt.unpack_u64(number) if number is not None else 1,
                fmt.unpack_u64(time) if time is not None else 0,
            )

    # -- reading: short transactions, any thread ----------------------------------------------------

    @contextmanager
    def _read(self, table: Any) -> Iterator[Any]:
        """A short read transaction. `close` waits for those under way: their pages would be unmapped under them."""
        with self._gate:
            if self._closed:
                raise LogClosed(why="close() was called")
            self._reading += 1
        try:
            try:
                txn = self._env.begin(db=table, buffers=True)
            except lmdb.ReadersFullError:
                self._env.reader_check()  # slots of readers that died
                txn = self._env.begin(db=table, buffers=True)
            with txn:
                yield txn
        finally:
            with self._gate:
                self._reading -= 1
                if not self._reading:
                    self._gate.notify_all()

    def is_empty(self) -> bool:
        """No session was ever stored here, or none is left."""
        with self._read(self._sessions) as txn:
            return bool(txn.stat(self._sessions)["entries"] == 0)

    @_names_damage
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
            return None if found is None else fmt.unpack_row(name, unsealed("sessions", key, found))

    @_names_damage
    def load_number(self, number: int) -> Row | None:
        """The row that is current for a session number."""
        with self._read(self._names) as txn:
            key = fmt.number_key(number)
            found = txn.get(key)
            name = None if found is None else unsealed("names", key, found).decode()
        row = None if name is None else self.load(name)
        return row if row is not None and row.number == number else None

    @_names_damage
    def read(self, number: int, id: int) -> Chunk | None:
        """The stored run that holds event `id`, with both CRCs checked."""
        with self._read(self._segments) as txn:
            cursor = txn.cursor()
            if not _seek_run(cursor, number, id):
                return None
            first = fmt.split_segment_key(bytes(cursor.key()))[1]
            where = f"session number {number}, segment at id {first}"
            chunk = _segment_at(first, cursor.value(), where)
            return chunk if chunk.first <= id <= chunk.last else None

    @_names_damage
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

    @_names_damage
    def find_key(self, number: int, key: bytes) -> int | None:
        """The id that an idempotency key got."""
        with self._read(self._keys) as txn:
            by_name = fmt.key_by_name(number, key)
            found = txn.get(by_name)
            return None if found is None else fmt.unpack_u64(unsealed("keys", by_name, found))

    def names(self, prefix: str, after: str | None) -> Iterator[Row]:
        """Rows in the order of their names' UTF-8; one short transaction per NAMES_PAGE rows."""
        start = prefix.encode()
        last = None if after is None else after.encode()
        while page := self._names_page(start, last):
            yield from page
            last = page[-1].name.encode()

    @_names_damage
    def _names_page(self, prefix: bytes, after: bytes | None) -> list[Row]:
        rows: list[Row] = []
        with self._read(self._sessions) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(max(prefix, after) if after is not None else prefix or b"\0")
            while found and len(rows) < NAMES_PAGE and bytes(cursor.key()).startswith(prefix):
                key = bytes(cursor.key())
                if after is None or key > after:
                    body = unsealed("sessions", key, cursor.value())
                    rows.append(fmt.unpack_row(key.decode(), body))
                found = cursor.next()
        return rows

    @_names_damage
    def expired(self, kind: int, before_ns: int, limit: int) -> list[tuple[int, Row]]:
        """(time, row) of `expiry` entries of a kind up to a time, oldest first."""
        out: list[tuple[int, int, str]] = []
        with self._read(self._expiry) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(fmt.expiry_key(kind, 0, 0))
            while found and len(out) < limit:
                key = bytes(cursor.key())
                entry, time_ns, number = fmt.split_expiry_key(key)
                if entry != kind or time_ns > before_ns:
                    break
                out.append((time_ns, number, unsealed("expiry", key, cursor.value()).decode()))
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
                if isinstance(error, _DAMAGE):
                    raise
                self._refuse_full(error)
                raise OutcomeUnknown(cause=f"the data file: {error}") from error

    def _refuse_full(self, error: Exception) -> None:
        """LMDB says EIO for a write that the disk cut short: look at the disk."""
        disk = os.statvfs(self.path)
        free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        if free < FULL_BELOW_BYTES or "No space" in str(error):
            raise LogFull(used=total - free, limit=total, bound="the disk's size") from error

    @_names_damage
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
                key = fmt.META_SLOT % slot[0]
                txn.put(key, sealed("meta", key, fmt.pack(list(slot[1]))), db=meta)
            numbers = {fmt.META_NEXT: next_number, fmt.META_TIME: time_high}
            if delta:
                found = self._meta(txn, fmt.META_TOMBS)
                count = 0 if found is None else fmt.unpack_u64(found)
                numbers[fmt.META_TOMBS] = max(0, count + delta)
            for key, number in numbers.items():
                txn.put(key, sealed("meta", key, fmt.pack_u64(number)), db=meta)
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
                by_name, by_id = fmt.key_by_name(number, key), fmt.key_by_id(number, id)
                txn.put(by_name, sealed("keys", by_name, fmt.pack_u64(id)), db=self._keys)
                txn.put(by_id, sealed("keys", by_id, key), db=self._keys)
        kind = fmt.EXPIRY_TOMBSTONE if row.state & fmt.STATE_REAPED else fmt.EXPIRY_EVENT
        self._replace_expiry(txn, kind, change)
        return self._put_row(txn, change) if change.is_current else 0

    def _put_row(self, txn: Any, change: Change) -> int:
        row, name = change.row, change.row.name.encode()
        found = txn.get(name, db=self._sessions)
        before = None if found is None else fmt.unpack_row(row.name, unsealed("sessions", name, found))
        txn.put(name, sealed("sessions", name, fmt.pack_row(row)), db=self._sessions)
        if before is None or before.number != row.number:
            by_number = fmt.number_key(row.number)
            txn.put(by_number, sealed("names", by_number, name), db=self._names)
            if before is not None:
                txn.delete(fmt.number_key(before.number), db=self._names)
                if before.expires_ns:
                    kind = fmt.EXPIRY_TOMBSTONE if before.state & fmt.STATE_REAPED else fmt.EXPIRY_EVENT
                    txn.delete(fmt.expiry_key(kind, before.expires_ns, before.number), db=self._expiry)
        was_tombstone = before is not None and bool(before.state & fmt.STATE_REAPED)
        return bool(row.state & fmt.STATE_REAPED) - was_tombstone

    def _replace_expiry(self, txn: Any, kind: int, change: Change) -> None:
        row = change.row
        if change.former_expires_ns and change.former_expires_ns != row.expires_ns:
            for former in (fmt.EXPIRY_EVENT, fmt.EXPIRY_TOMBSTONE):
                txn.delete(fmt.expiry_key(former, change.former_expires_ns, row.number), db=self._expiry)
        if row.expires_ns and change.is_current:
            key = fmt.expiry_key(kind, row.expires_ns, row.number)
            txn.put(key, sealed("expiry", key, row.name.encode()), db=self._expiry)

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
            by_id = bytes(cursor.key())
            if by_id >= fmt.key_by_id(number, floor):
                return
            by_name = fmt.key_by_name(number, unsealed("keys", by_id, cursor.value()))
            found = txn.get(by_name, db=self._keys)
            if found is not None and unsealed("keys", by_name, found) == by_id[-8:]:
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
        if found is None or fmt.unpack_row(row.name, unsealed("sessions", name, found)).number != row.number:
            return 0
        txn.delete(name, db=self._sessions)
        txn.delete(fmt.number_key(row.number), db=self._names)
        return 1

    # -- room, care -----------------------------------------------------------------------------------

    @_names_damage
    def tombstones(self) -> int:
        """How many tombstones are stored."""
        with self._read(self._tables["meta"]) as txn:
            found = self._meta(txn, fmt.META_TOMBS)
            return 0 if found is None else fmt.unpack_u64(found)

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
                    run: Chunk | CorruptLog = _segment_at(first, cursor.value(), f"segment at id {first}")
                except CorruptLog as error:
                    run = error
            yield first, run
            first += 1

    @_names_damage
    def disagreements(self) -> list[str]:
        """Where the tables do not fit together, for `verify`: an entry that is gone leaves its partner behind."""
        problems = []
        with self._env.begin() as txn:
            by_number = {key: unsealed("names", key, name) for key, name in txn.cursor(self._names)}
            rows = {
                name: fmt.unpack_row(name.decode(), unsealed("sessions", name, value))
                for name, value in txn.cursor(self._sessions)
            }
            for key, name in by_number.items():
                if name not in rows or fmt.number_key(rows[name].number) != key:
                    problems.append(f"session {name.decode()!r}: number {fmt.unpack_u64(key)} has no row")
            for name, row in rows.items():
                if fmt.number_key(row.number) not in by_number:
                    problems.append(f"session {name.decode()!r}: its number {row.number} has no name")
            cursor = txn.cursor(self._segments)
            found = cursor.first()
            while found:
                number = fmt.split_segment_key(cursor.key())[0]
                if fmt.number_key(number) not in by_number:
                    problems.append(f"session number {number}: segments without a session")
                found = cursor.set_range(fmt.segment_key(number + 1, 0))
        return problems

    def close(self) -> None:
        """Let go of the environment once nobody reads; idempotent."""
        with self._gate:
            self._closed = True
            idle = self._gate.wait_for(lambda: not self._reading, CLOSE_WAIT_S)
        if idle:  # else a reader is stuck, or this very thread reads: the process's end takes it
            self._env.close()


def _segment_at(first: int, value: Any, where: str) -> Chunk:
    """The run in a segment, which begins where its key says."""
    chunk: Chunk = read_segment(value, where)
    if chunk.first != first:
        raise CorruptLog(where=where, found=f"a segment from id {chunk.first} on", expected=f"one from id {first} on")
    return chunk


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
