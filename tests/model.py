"""The oracle: a Log as a list of events per session, slow and plain on purpose.

Guarantees: what it answers follows from the contract by reading, not by running. Every event ever
appended stays in the list; `floor` alone says what is gone. It shares no code with the engine: the
checksum, the token and the order of judgement are written here a second time.

Tests call it from one thread. The epoch is the only thing that it takes from the engine, because
it is drawn at random.
"""

from __future__ import annotations

import base64
import enum
import json
import re
from dataclasses import dataclass, field
from typing import Any

MESSAGE = "message"
ID_MAX = 2**63 - 1
NS = 1_000_000_000

# --- tag: CRC32C chained over the events -----------------------------------------------------------


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc32c_table()


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC32C (Castagnoli) of `data`, continued from `crc`."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def stored(payload: Any) -> tuple[int, bytes]:
    """The payload's type number and the bytes that are kept of it."""
    if type(payload) is bytes:
        return 1, payload
    if type(payload) is str:
        return 2, payload.encode()
    return 3, json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def tag_at_start(epoch: int) -> int:
    return crc32c(epoch.to_bytes(8, "little"))


def tag_after(before: int, id: int, kind: str, payload: Any) -> int:
    number, data = stored(payload)
    label = kind.encode()
    head = id.to_bytes(8, "little") + bytes([number, len(label)]) + label
    return crc32c(head + len(data).to_bytes(4, "little") + data, before)


def token_of(epoch: int, id: int, tag: int) -> str:
    return f"{epoch:016x}.{id}.{tag:08x}"


def frame_of(token: str, kind: str, payload: Any) -> bytes:
    """The event as SSE text."""
    data = stored(payload)[1]
    try:
        verbatim = "\r" not in data.decode()
    except UnicodeDecodeError:
        verbatim = False
    lines = data.split(b"\n") if verbatim else [base64.b64encode(data)]
    label = kind if verbatim else f"{kind};base64"
    out = f"id: {token}\n".encode()
    if label != MESSAGE:
        out += f"event: {label}\n".encode()
    return out + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


# --- what a reader may say ------------------------------------------------------------------------


class Origin(enum.Enum):
    START = "start"
    FLOOR = "floor"
    HEAD = "head"


Asked = Origin | int | str | bytes | None


_TOKEN = re.compile(r"([0-9a-f]{16})\.(0|[1-9][0-9]*)\.([0-9a-f]{8})(\.end)?")
_DIGITS = re.compile(r"0|[1-9][0-9]*")


@dataclass(frozen=True)
class Cursor:
    id: int
    epoch: int | None = None
    tag: int | None = None
    seen_end: bool = False


def parse(text: str | bytes | int) -> Cursor | None:
    if isinstance(text, int):
        return Cursor(text) if 0 <= text <= ID_MAX else None
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    if not text.isascii():
        return None
    if match := _TOKEN.fullmatch(text):
        epoch, id, tag, end = match.groups()
        cursor = Cursor(int(id), int(epoch, 16), int(tag, 16), end is not None)
    elif _DIGITS.fullmatch(text):
        cursor = Cursor(int(text))
    else:
        return None
    return cursor if cursor.id <= ID_MAX else None


# --- the log ---------------------------------------------------------------------------------------


class Refused(Exception):
    """The oracle's one error; `error` is the name of the engine's class."""

    def __init__(self, error: str, **facts: Any) -> None:
        super().__init__(error, facts)
        self.error = error
        self.facts = facts


@dataclass(frozen=True)
class Limits:
    events: int | None = None
    bytes: int | None = None
    age_s: float | None = None


@dataclass(frozen=True)
class Event:
    id: int
    kind: str
    payload: Any
    time_ns: int
    tag: int
    cursor: str
    frame: bytes


@dataclass(frozen=True)
class Verdict:
    reason: str
    floor: int | None = None
    head: int | None = None
    missing: int | None = None
    lost: int | None = None
    ended: bool = False

    @property
    def ok(self) -> bool:
        return self.reason in ("resumable", "at-head")


def size_of(event: Event) -> int:
    """The bytes that an event counts towards `Retention.bytes`: its SSE text."""
    return len(event.frame)


@dataclass
class Session:
    name: str
    epoch: int
    limits: Limits | None = None  # None: the log's
    meta: Any = None
    state: str = "open"
    floor: int = 1
    events: list[Event] = field(default_factory=list)  # every event ever, trimmed ones too
    keys: dict[str, int] = field(default_factory=dict)
    ended: bool = False  # stays when the session is reaped
    reap_reason: str = ""

    @property
    def head(self) -> int:
        return len(self.events)

    def tag_at(self, id: int) -> int:
        return self.events[id - 1].tag if id else tag_at_start(self.epoch)

    def token(self, id: int) -> str:
        return token_of(self.epoch, id, self.tag_at(id))

    def after(self, cursor: int) -> list[Event]:
        assert cursor >= self.floor - 1
        return self.events[cursor:]

    def add(self, payload: Any, kind: str, time_ns: int) -> int:
        id = self.head + 1
        tag = tag_after(self.tag_at(id - 1), id, kind, payload)
        token = token_of(self.epoch, id, tag)
        self.events.append(Event(id, kind, payload, time_ns, tag, token, frame_of(token, kind, payload)))
        return id


class Log:
    """Sessions and tombstones. `clock()` gives nanoseconds."""

    def __init__(self, clock: Any, limits: Limits = Limits()) -> None:
        self.clock = clock
        self.limits = limits
        self.sessions: dict[str, Session] = {}

    # --- retention

    def settle(self) -> None:
        """Raise every floor to where the limits put it now."""
        for session in self.sessions.values():
            if session.state != "reaped":
                session.floor = max(session.floor, self._floor_by_limits(session))

    def _floor_by_limits(self, session: Session) -> int:
        limits = session.limits or self.limits
        floor = session.floor
        if limits.events is not None:
            floor = max(floor, session.head - limits.events + 1)
        if limits.bytes is not None:
            # The newest event stays, however large: a limit by bytes alone never empties a session.
            while floor < session.head and sum(map(size_of, session.events[floor - 1 :])) > limits.bytes:
                floor += 1
        if limits.age_s is not None:
            horizon = self.clock() - round(limits.age_s * NS)
            while floor <= session.head and session.events[floor - 1].time_ns <= horizon:
                floor += 1
        return floor

    # --- sessions

    def create(self, name: str, epoch: int, limits: Limits | None = None, meta: Any = None) -> Session:
        known = self.sessions.get(name)
        if known is not None and known.state != "reaped":
            raise Refused("SessionExists", name=name, epoch=known.epoch, head=known.head)
        session = self.sessions[name] = Session(name, epoch, limits, meta)
        return session

    def session(self, name: str) -> Session:
        session = self.sessions.get(name)
        if session is None:
            raise Refused("SessionUnknown", name=name)
        if session.state == "reaped":
            raise Refused("SessionReaped", name=name, epoch=session.epoch, last_id=session.head)
        return session

    def reap(self, name: str, reason: str = "") -> None:
        session = self.session(name)
        session.state = "reaped"
        session.reap_reason = reason
        session.floor = session.head + 1

    # --- events

    def append(
        self,
        name: str,
        payload: Any,
        kind: str = MESSAGE,
        key: str | None = None,
        expect_head: int | None = None,
    ) -> int:
        session = self._open(name)
        if key is not None and (id := self._id_of_key(session, key, payload, kind)):
            return id
        if expect_head is not None and expect_head != session.head:
            raise Refused("HeadMoved", name=name, expected=expect_head, head=session.head)
        id = session.add(payload, kind, self.clock())
        if key is not None:
            session.keys[key] = id
        self.settle()
        return id

    def _id_of_key(self, session: Session, key: str, payload: Any, kind: str) -> int:
        """The id that the key has got, 0 where it has none inside the window."""
        self.settle()
        id = session.keys.get(key, 0)
        if id < session.floor:
            return 0
        before = session.events[id - 1]
        if (before.kind, stored(before.payload)) != (kind, stored(payload)):
            raise Refused("KeyReused", name=session.name, key=key, id=id)
        return id

    def extend(self, name: str, events: list[tuple[Any, str]]) -> range:
        session = self._open(name)
        first = session.head + 1
        for payload, kind in events:
            session.add(payload, kind, self.clock())
        self.settle()
        return range(first, session.head + 1)

    def trim(self, name: str, floor: int) -> None:
        session = self.session(name)
        assert floor <= session.head + 1
        session.floor = max(session.floor, floor)

    def end(self, name: str, payload: Any = None, kind: str = MESSAGE) -> None:
        session = self._open(name)
        if payload is not None:
            session.add(payload, kind, self.clock())
        session.state, session.ended = "ended", True
        self.settle()

    def _open(self, name: str) -> Session:
        session = self.session(name)
        if session.state == "ended":
            raise Refused("SessionEnded", name=name, head=session.head)
        return session

    # --- the verdict

    def check(self, name: str, cursor: Asked = None) -> Verdict:
        """Can this reader resume? In the order of STORAGE "Tag, token, order of the verdict"."""
        self.settle()
        session = self.sessions.get(name)
        position = self._position(session, cursor)
        if position is None:
            return Verdict("malformed")
        if session is None:
            return Verdict("unknown")
        floor, head, ended = session.floor, session.head, session.state == "ended"
        if session.state == "reaped":
            return Verdict("reaped", floor, head)
        if position.epoch not in (None, session.epoch):
            return Verdict("forked", floor, head, ended=ended)
        if position.id > head:
            return Verdict("forked", floor, head, ended=ended)
        missing = head - position.id
        if position.id < floor - 1:
            return Verdict("below-floor", floor, head, missing, floor - 1 - position.id, ended)
        if position.seen_end and not (ended and position.id == head):
            return Verdict("forked", floor, head, ended=ended)  # it saw an end that is not there
        if position.tag not in (None, session.tag_at(position.id)):
            return Verdict("forked", floor, head, ended=ended)
        return Verdict("resumable" if missing else "at-head", floor, head, missing, 0, ended)

    def _position(self, session: Session | None, cursor: Asked) -> Cursor | None:
        if cursor is None or cursor is Origin.START:
            return Cursor(0)
        if cursor is Origin.FLOOR:
            return Cursor(session.floor - 1 if session else 0)
        if cursor is Origin.HEAD:
            return Cursor(session.head if session else 0)
        return parse(cursor)

    def replay(self, name: str, cursor: Asked = None) -> list[Event]:
        verdict = self.check(name, cursor)
        if not verdict.ok:
            raise Refused("NotResumable", verdict=verdict)
        session = self.sessions[name]
        assert verdict.missing is not None
        return session.after(session.head - verdict.missing)
