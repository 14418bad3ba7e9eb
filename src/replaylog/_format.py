"""Every name and number that stands on disk. FORMAT.md draws the bytes and works an example.

The byte layouts of segments (`_ring.pyx`), blocks and records (`_journal.pyx`) are C structs; this module
holds what Python writes: the LMDB tables, their keys, the session row, the slot record. Pure.

Enum values on disk are numbered by hand and never renumbered; zero is reserved.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgpack

from replaylog._errors import CorruptLog

__all__ = [
    "FORMAT_VERSION",
    "REC_CREATE",
    "REC_END",
    "REC_EVENTS",
    "REC_LIMITS",
    "REC_REAP",
    "REC_TRIM",
    "STATE_BORN",
    "STATE_ENDED",
    "STATE_REAPED",
    "TABLES",
    "Row",
    "Slot",
    "expiry_key",
    "key_by_id",
    "key_by_name",
    "pack",
    "pack_row",
    "segment_key",
    "split_segment_key",
    "unpack",
    "unpack_row",
]

FORMAT_VERSION = 1

# Journal records.
REC_EVENTS = 1
REC_CREATE = 2
REC_END = 3
REC_REAP = 4
REC_TRIM = 5
REC_LIMITS = 6

# Session state, bits.
STATE_BORN = 1
STATE_ENDED = 2
STATE_REAPED = 4

# LMDB tables.
TABLES = ("meta", "sessions", "names", "segments", "keys", "expiry")

# Keys of `meta`.
META_FORMAT = b"format"
META_UUID = b"uuid"
META_NEXT = b"next"  # the next session number
META_TIME = b"time"  # no event in the store is later (ns)
META_TOMBS = b"tombstones"  # how many
META_LIMITS = b"limits"  # [[events, bytes, age_ns, ended_ns] of each opening with other limits]
META_SLOT = b"slot-%d"
META_KEYS = frozenset((META_FORMAT, META_UUID, META_NEXT, META_TIME, META_TOMBS, META_LIMITS))

# Kinds of `expiry` keys.
EXPIRY_EVENT = 1
EXPIRY_TOMBSTONE = 2

_NUMBER = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
_EXPIRY = struct.Struct(">BQQ")


class Row(NamedTuple):
    """One session in the `sessions` table (and, with `stored` false, one that was just created)."""

    name: str
    number: int
    epoch: int
    state: int
    head: int
    head_tag: int
    cum: int  # frame bytes of all events ever
    floor: int
    floor_tag: int  # tag(floor - 1)
    floor_cum: int  # frame bytes of all events below the floor (kept with a bytes limit)
    limit_events: int
    limit_bytes: int
    limit_age_ns: int
    own_limits: bool  # given at creation; otherwise the log's, as it is open
    generation: int  # which of the log's limits were in force when this was written
    meta: Any
    reason: str
    changed_ns: int  # time of the last event, or of the reap
    fence: int
    expires_ns: int  # under which time it stands in `expiry`, 0: not there
    stored: bool


class Slot(NamedTuple):
    """A writing process's place in `meta`: recovery starts its journal after `block`."""

    incarnation: int  # 0: nothing to recover
    block: int
    owner: str


def pack(value: object) -> bytes:
    """msgpack of a row, meta or control record."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes, where: str) -> Any:
    """The value in msgpack bytes of ours; CorruptLog otherwise. Extension types are refused."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False, ext_hook=_no_extensions)
    except (ValueError, msgpack.UnpackException) as error:
        raise CorruptLog(where=where, found=f"bytes that do not unpack ({error})", expected="msgpack") from error


def _no_extensions(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code}")


def pack_row(row: Row) -> bytes:
    """A row without its name (the key) and without `stored`."""
    return pack(row[1:-1])


def unpack_row(name: str, data: bytes) -> Row:
    """The row in the value of a `sessions` entry."""
    values = unpack(data, f"row of session {name!r}")
    if not isinstance(values, list) or len(values) != len(Row._fields) - 2:
        raise CorruptLog(where=f"row of session {name!r}", found=f"{values!r:.80}", expected="a session row")
    return Row._make((name, *values, True))


def number_key(number: int) -> bytes:
    """Key of `names`."""
    return _NUMBER.pack(number)


def segment_key(number: int, first: int) -> bytes:
    """Key of `segments`: session number, first id."""
    return _PAIR.pack(number, first)


def split_segment_key(key: bytes) -> tuple[int, int]:
    """(session number, first id)."""
    number, first = _PAIR.unpack(key)
    return number, first


def key_by_name(number: int, key: bytes) -> bytes:
    """Key of `keys`: from an idempotency key to its id."""
    return b"k" + _NUMBER.pack(number) + key


def key_by_id(number: int, id: int) -> bytes:
    """Key of `keys`: from an id to its idempotency key, for trimming."""
    return b"i" + _PAIR.pack(number, id)


def expiry_key(kind: int, time_ns: int, number: int) -> bytes:
    """Key of `expiry`, ordered by time within a kind."""
    return _EXPIRY.pack(kind, time_ns, number)


def split_expiry_key(key: bytes) -> tuple[int, int, int]:
    """(kind, time, session number)."""
    kind, time_ns, number = _EXPIRY.unpack(key)
    return kind, time_ns, number


def pack_u64(value: int) -> bytes:
    """A big-endian u64 value."""
    return _NUMBER.pack(value)


def unpack_u64(data: bytes) -> int:
    """The number in a big-endian u64 value."""
    (value,) = _NUMBER.unpack(data)
    return int(value)
