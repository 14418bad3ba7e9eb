"""A second reader of the format, written from FORMAT.md alone: struct, lmdb and msgpack, nothing of replaylog.

`read_log(directory)` yields what a reader may be shown: sessions with their retained events. Every CRC, the chain of
blocks and the chain of tags are checked; `Damaged` says where something is not what was written. It neither applies
limits by age nor locks anything: for directories that nobody writes.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import msgpack

BLOCK = struct.Struct("<IHHQQQIIqIIII")
RECORD = struct.Struct("<IBBHQQQQIIII")
SEGMENT = struct.Struct("<IHHQQQIIIIII")
ENTRY = struct.Struct("<qII")
BLOCK_MAGIC, SEGMENT_MAGIC = int.from_bytes(b"RLJB", "little"), int.from_bytes(b"RLSG", "little")
EVENTS, CREATE, END, REAP, TRIM, LIMITS = 1, 2, 3, 4, 5, 6
BORN, ENDED, REAPED = 1, 2, 4
BYTES, STR, JSON = 1, 2, 3
BASE64, LINES = 4, 8
ALIGN = 512


class Damaged(Exception):
    """What was read is not what was written."""


class Event(NamedTuple):
    id: int
    kind: str
    payload: Any
    tag: int
    time_ns: int
    token: str


class Session(NamedTuple):
    name: str
    number: int
    epoch: int
    floor: int
    head: int
    head_tag: int
    state: str
    meta: Any
    reason: str
    events: list[Event]


# ---- CRC32C and tags ------------------------------------------------------------------------------------


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C (Castagnoli), continued from `crc`."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def tag_zero(epoch: int) -> int:
    return crc32c(epoch.to_bytes(8, "little"))


def tag_next(tag: int, id: int, kind_of_payload: int, kind: bytes, stored: bytes) -> int:
    head = struct.pack("<QBB", id, kind_of_payload, len(kind)) + kind + struct.pack("<I", len(stored))
    return crc32c(head + stored, tag)


# ---- runs: index and SSE text ------------------------------------------------------------------------------


def parse_text(text: bytes, flags: int) -> tuple[str, str, bytes]:
    """(token, kind, stored payload bytes) of one event's SSE text."""
    if not text.endswith(b"\n\n"):
        raise Damaged("an event without its blank line")
    token, kind, data = "", "message", []
    for line in text[:-2].split(b"\n"):
        field, colon, value = line.partition(b": ")
        if not colon:
            raise Damaged(f"a line without a field: {line!r:.60}")
        if field == b"id":
            token = value.decode("ascii")
        elif field == b"event":
            kind = value.decode()
        elif field == b"data":
            data.append(value)
        else:
            raise Damaged(f"an unknown field {field!r:.60}")
    if flags & BASE64:
        if not kind.endswith(";base64") or len(data) != 1:
            raise Damaged("base64 without its mark")
        return token, kind.removesuffix(";base64"), base64.b64decode(data[0], validate=True)
    if len(data) != 1 and not flags & LINES:
        raise Damaged(f"{len(data)} data lines without the flag")
    return token, kind, b"\n".join(data)


def payload_of(stored: bytes, flags: int) -> Any:
    if flags & 3 == BYTES:
        return stored
    return stored.decode() if flags & 3 == STR else json.loads(stored)


def read_run(index: bytes, text: bytes, epoch: int, first: int, tag: int) -> list[Event]:
    """The events of a run; their tags are computed again, from `tag` = tag(first - 1)."""
    events, start = [], 0
    for n, (time_ns, end_flags, named_tag) in enumerate(ENTRY.iter_unpack(index)):
        end, flags, id = end_flags & 0x0FFFFFFF, end_flags >> 28, first + n
        token, kind, stored = parse_text(text[start:end], flags)
        tag = tag_next(tag, id, flags & 3, kind.encode(), stored)
        if tag != named_tag or token != f"{epoch:016x}.{id}.{tag:08x}":
            raise Damaged(f"id {id}: tag {tag:08x}, the index says {named_tag:08x}, the text {token}")
        events.append(Event(id, kind, payload_of(stored, flags), tag, time_ns, token))
        start = end
    if start != len(text):
        raise Damaged(f"{len(text) - start} bytes after the last event")
    return events


def read_segment(data: bytes) -> tuple[int, int, int, list[Event]]:
    """(epoch, first id, tag before it, events)."""
    if len(data) < SEGMENT.size:
        raise Damaged("a segment shorter than its header")
    head = SEGMENT.unpack_from(data)
    magic, version, _, epoch, first, _, count, text_bytes, tag_before, text_crc, _, index_crc = head
    if magic != SEGMENT_MAGIC or version != 1 or len(data) != SEGMENT.size + 16 * count + text_bytes:
        raise Damaged("not a segment")
    index = data[SEGMENT.size : SEGMENT.size + 16 * count]
    text = data[SEGMENT.size + 16 * count :]
    if crc32c(data[: SEGMENT.size - 4] + index) != index_crc or crc32c(text) != text_crc:
        raise Damaged("a segment that fails its CRC")
    return epoch, first, tag_before, read_run(index, text, epoch, first, tag_before)


# ---- the journal --------------------------------------------------------------------------------------------


class Block(NamedTuple):
    number: int
    flushed: int
    last_crc: int
    crc: int
    body: bytes
    bytes: int


def block_head(extent: bytes, at: int, incarnation: int) -> tuple[Any, ...] | None:
    """The header's fields, where a valid one of this incarnation stands."""
    if at + BLOCK.size > len(extent):
        return None
    head = BLOCK.unpack_from(extent, at)
    good = head[:2] == (BLOCK_MAGIC, 1) and head[3] == incarnation
    return head if good and crc32c(extent[at : at + BLOCK.size - 4]) == head[-1] else None


def block_at(extent: bytes, at: int, incarnation: int) -> Block | None:
    head = block_head(extent, at, incarnation)
    if head is None:
        return None
    _, _, _, _, number, flushed, last_crc, body_bytes, _, _, _, body_crc, crc = head
    body = extent[at + BLOCK.size : at + BLOCK.size + body_bytes]
    if len(body) != body_bytes or crc32c(body, crc32c(incarnation.to_bytes(8, "little"))) != body_crc:
        return None
    return Block(number, flushed, last_crc, crc, body, -(-(BLOCK.size + body_bytes) // ALIGN) * ALIGN)


def chain(extents: list[bytes], incarnation: int, checkpointed: int) -> Iterator[bytes]:
    """The bodies of the blocks after the checkpoint."""
    starts = {head[4]: extent for extent in extents if (head := block_head(extent, 0, incarnation))}
    number = max((start for start in starts if start <= checkpointed + 1), default=0)
    extent, at, last_crc = starts.get(number), 0, None
    while extent is not None:
        block = block_at(extent, at, incarnation)
        if block is None or block.number != number:
            if at == 0 or number not in starts:
                break
            extent, at = starts[number], 0
            continue
        if last_crc is not None and block.last_crc != last_crc:
            break
        if number > checkpointed:
            yield block.body
        last_crc, at, number = block.crc, at + block.bytes, number + 1
    missing = max(number, checkpointed + 1)
    for extent in extents:
        for at in range(0, len(extent), ALIGN):
            head = block_head(extent, at, incarnation)
            if head is not None and head[5] >= missing:
                raise Damaged(f"block {missing} was flushed, says block {head[4]}, and is not there")


def records(body: bytes) -> Iterator[tuple[int, int, int, int, int, int, bytes, bytes, bytes]]:
    """(type, session number, first, floor, count, tag before, index, text, key)."""
    at = 0
    while at < len(body):
        size, kind, _, key_bytes, number, first, floor, _, count, text_bytes, tag, _ = RECORD.unpack_from(body, at)
        index_at = at + RECORD.size
        text_at = index_at + 16 * count
        key_at = text_at + text_bytes
        if size % 8 or key_at + key_bytes > at + size or at + size > len(body):
            raise Damaged(f"a record of {size} bytes")
        index, text, key = body[index_at:text_at], body[text_at:key_at], body[key_at : key_at + key_bytes]
        yield kind, number, first, floor, count, tag, index, text, key
        at += size


# ---- the whole -----------------------------------------------------------------------------------------------


class _Building:
    """A session while the journal is applied to it."""

    def __init__(self, name: str, number: int, epoch: int, meta: Any) -> None:
        self.name, self.number, self.epoch, self.meta = name, number, epoch, meta
        self.floor, self.head, self.state, self.reason = 1, 0, BORN, ""
        self.tag = tag_zero(epoch)
        self.events: list[Event] = []

    def add(self, events: list[Event], tag_before: int) -> None:
        events = [event for event in events if event.id > self.head]
        if not events:
            return
        if events[0].id != self.head + 1 or tag_before != self.tag:
            raise Damaged(f"session {self.name!r}: id {events[0].id} after {self.head}, or another tag before it")
        self.events += events
        self.head, self.tag = events[-1].id, events[-1].tag

    def finish(self) -> Session:
        if self.state & REAPED:
            self.events, self.floor, self.meta = [], self.head + 1, None
        self.events = [event for event in self.events if event.id >= self.floor]
        if [event.id for event in self.events] != list(range(self.floor, self.head + 1)):
            raise Damaged(f"session {self.name!r}: not every id from {self.floor} to {self.head} is there")
        state = "reaped" if self.state & REAPED else "ended" if self.state & ENDED else "open"
        return Session(self.name, self.number, self.epoch, self.floor, self.head, self.tag, state, self.meta,
                       self.reason, self.events)  # fmt: skip


def unsealed(table: str, key: bytes, value: bytes) -> bytes:
    """The body of a value, behind a CRC of its table, its key and itself."""
    if crc32c(table.encode() + key + value[4:]).to_bytes(4, "little") != value[:4]:
        raise Damaged(f"table {table!r}, key {key!r}")
    return value[4:]


def read_log(directory: Path) -> dict[str, Session]:
    """Every session, tombstones included, by name."""
    sessions: dict[str, _Building] = {}
    env = lmdb.open(str(directory / "data.mdb"), subdir=False, readonly=True, lock=False, max_dbs=6)
    try:
        tables = {name: env.open_db(name.encode(), create=False) for name in ("meta", "sessions", "names", "segments")}
        with env.begin() as txn:
            meta = dict(txn.cursor(tables["meta"]))
            if meta[b"uuid"].hex() != (directory / "uuid").read_text().strip() or meta[b"format"] != bytes(7) + b"\x01":
                raise Damaged("another store, or another format")
            for name, value in txn.cursor(tables["sessions"]):
                session = _from_row(name.decode(), unsealed("sessions", name, value))
                _read_segments(txn.cursor(tables["segments"]), session)
                sessions[session.name] = session
    finally:
        env.close()
    for key, value in sorted(meta.items()):
        if key.startswith(b"slot-"):
            incarnation, checkpointed, _ = msgpack.unpackb(unsealed("meta", key, value))
            extents = sorted((directory / "journal").glob(key[5:].decode() + "-*"))
            if incarnation:
                for body in chain([path.read_bytes() for path in extents], incarnation, checkpointed):
                    _apply(sessions, body)
    return {name: session.finish() for name, session in sorted(sessions.items())}


def _from_row(name: str, value: bytes) -> _Building:
    number, epoch, state, head, head_tag, _, floor, _, _, _, _, _, _, _, meta, reason, _, _, _ = msgpack.unpackb(value)
    session = _Building(name, number, epoch, meta)
    session.state, session.floor, session.head, session.tag, session.reason = state, floor, head, head_tag, reason
    return session


def _read_segments(cursor: Any, session: _Building) -> None:
    """The stored runs, each from where the one before ended; runs below the floor may be gone."""
    events: list[Event] = []
    for key, value in cursor.iternext() if cursor.set_range(struct.pack(">QQ", session.number, 0)) else ():
        if struct.unpack(">QQ", key)[0] != session.number:
            break
        epoch, first, tag_before, run = read_segment(value)
        if epoch != session.epoch or key != struct.pack(">QQ", session.number, first):
            raise Damaged(f"session {session.name!r}: a segment of another")
        if events and (events[-1].id, events[-1].tag) != (first - 1, tag_before):
            raise Damaged(f"session {session.name!r}: segments that do not follow one another")
        if not events and first == 1 and tag_before != tag_zero(epoch):
            raise Damaged(f"session {session.name!r}: the first tag")
        events += run
    if events and (events[-1].id, events[-1].tag) != (session.head, session.tag):
        raise Damaged(f"session {session.name!r}: segments end at id {events[-1].id}, the row says {session.head}")
    session.events = events


def _apply(sessions: dict[str, _Building], body: bytes) -> None:
    for kind, number, first, floor, _, tag, index, text, _ in records(body):
        if kind == CREATE:
            name, epoch, meta, *_ = msgpack.unpackb(text)
            if name not in sessions or sessions[name].number < number:
                sessions[name] = _Building(name, number, epoch, meta)
            continue
        session = next((one for one in sessions.values() if one.number == number), None)
        if session is None:
            continue  # reaped and created again since
        if kind == EVENTS:
            session.floor = max(session.floor, floor)
            session.add(read_run(index, text, session.epoch, first, tag), tag)
        elif kind == TRIM:
            session.floor = max(session.floor, first)
        elif kind == END:
            session.state, session.reason = session.state | ENDED, text.decode()
        elif kind == REAP:
            session.state, session.reason = session.state | REAPED, msgpack.unpackb(text)[0]
        elif kind != LIMITS:
            raise Damaged(f"a record of type {kind}")
