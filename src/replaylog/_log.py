"""A log: many sessions in one directory (or in memory), each with its own gap-free numbering.

Guarantees: no read creates a session; `create` makes exactly one; a verdict never raises for what a client
can send; what `append` acknowledged survives what the durability mode says. Safe from any thread; after
`os.fork` the child's handles raise LogClosed.
"""

from __future__ import annotations

import atexit
import copy
import heapq
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from replaylog import _format as fmt
from replaylog._checkpoint import Checkpoint
from replaylog._directory import SLOT, Directory
from replaylog._errors import (
    Backlogged,
    CorruptLog,
    EventTooLarge,
    LogFull,
    LogLocked,
    NotResumable,
    OutcomeUnknown,
    ReplayLogError,
    SessionExists,
    SessionReaped,
    SessionUnknown,
)
from replaylog._format import Row, Slot
from replaylog._journal import Hub, Journal
from replaylog._judge import Verdict
from replaylog._payload import META_BYTES_MAX, check_name, encode_json
from replaylog._recovery import create_row, recover
from replaylog._retention import Limits, Retention
from replaylog._session import LogCore, Replay, Session
from replaylog._settings import Durability, Settings
from replaylog._watch import Watch
from replaylog._writer import Maintenance
from replaylog.store.embedded import EmbeddedStore
from replaylog.store.memory import MemoryStore

__all__ = ["Durability", "Log", "SessionInfo", "open"]


DEFAULT_RETENTION = Retention(events=65_536)
QUOTA_HEADROOM = 0.05  # of map_bytes: deletes need pages too
JOURNAL_WEIGHT = 1.5  # pages that a byte of events may take once it is check-pointed
EVICT_TO = 0.9  # of memory_bytes
EVICT_BATCH = 4096
SWEEP_ROWS = 1024
VIEW_ATTEMPTS_MAX = 50
EXTENT_BYTES_MIN = 65_536

_OPEN, _CLOSED, _FORKED, _READONLY = 0, 1, 2, 3
_logs: weakref.WeakSet[Log] = weakref.WeakSet()


class SessionInfo(NamedTuple):
    """One line of `sessions()`."""

    name: str
    epoch: int
    floor: int
    head: int
    state: str
    meta: Any


def open(
    path: str | os.PathLike[str] | None,
    *,
    retention: Retention | None = None,
    durability: Durability = "sync",
    memory_bytes: int = 256 << 20,
    map_bytes: int = 64 << 30,
    journal_bytes_max: int = 256 << 20,
    journal_extent_bytes: int = 16 << 20,
    backlog_bytes: int = 8 << 20,
    event_bytes_max: int = 8 << 20,
    replay_grace_s: float = 30.0,
    checkpoint_interval_s: float = 2.0,
    checkpoint_bytes: int = 16 << 20,
    flush_s: float = 0.2,
    tombstones_max: int = 100_000,
    tombstone_age_s: float = 7 * 86400.0,
    close_timeout_s: float = 10.0,
    mode: Literal["w", "r"] = "w",
    file_mode: int = 0o600,
    allow_network: bool = False,
    clock: Callable[[], int] | None = None,
    _broken: str = "",
) -> Log:
    """Open (and, with mode "w", create) a log.

    path: a directory; None with durability "memory". retention: limits of sessions created without their own;
    None: those that the log was last opened with, for a new log the newest 65,536 events. durability: "sync" (an
    append returns, and is visible, after fdatasync), "relaxed" (after the write; flushed every `flush_s`),
    "memory". memory_bytes: events held in memory;
    map_bytes: room of the data file; backlog_bytes: bytes queued for the disk; event_bytes_max: one payload;
    replay_grace_s: how long a verdict's promise holds against retention; mode "r": a view of a directory as it
    is now, also while another process writes it. clock: wall clock in ns, for tests.

    Raises LogLocked, CorruptLog, FormatMismatch, FileNotFoundError (mode "r"), ValueError for settings that
    contradict each other.
    """
    if durability not in ("sync", "relaxed", "memory"):
        raise ValueError(f"durability {durability!r}: 'sync', 'relaxed' or 'memory'")
    if mode not in ("w", "r"):
        raise ValueError(f"mode {mode!r}: 'w' to write, 'r' to look")
    if (path is None) != (durability == "memory"):
        raise ValueError(f"path {path!r} with durability {durability!r}: a path is for 'sync' and 'relaxed'")
    if retention is not None and not isinstance(retention, Retention):
        raise TypeError(f"retention is a Retention or None, not {type(retention).__name__}")
    if journal_extent_bytes < EXTENT_BYTES_MIN or journal_extent_bytes % 4096:
        raise ValueError(
            f"journal_extent_bytes={journal_extent_bytes}: a multiple of 4096, at least {EXTENT_BYTES_MIN}"
        )
    for name, number in (
        ("replay_grace_s", replay_grace_s),
        ("checkpoint_interval_s", checkpoint_interval_s),
        ("flush_s", flush_s),
        ("tombstones_max", tombstones_max),
        ("tombstone_age_s", tombstone_age_s),
        ("close_timeout_s", close_timeout_s),
    ):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e9:
            raise ValueError(f"{name}={number!r}: a number from 0 to 1e9")
    extents_max = journal_bytes_max // journal_extent_bytes
    if extents_max < 2:
        raise ValueError(
            f"journal_bytes_max={journal_bytes_max} holds no two extents of journal_extent_bytes={journal_extent_bytes}"
        )
    for name, value in (("memory_bytes", memory_bytes), ("map_bytes", map_bytes), ("backlog_bytes", backlog_bytes)):
        if value < 65536:
            raise ValueError(f"{name}={value}: at least 65536")
    settings = Settings(
        retention=retention,
        durability=durability,
        memory_bytes=memory_bytes,
        map_bytes=map_bytes,
        extent_bytes=journal_extent_bytes,
        extents_max=extents_max,
        backlog_bytes=backlog_bytes,
        event_bytes_max=event_bytes_max,
        grace_ns=round(replay_grace_s * 1e9),
        interval_s=checkpoint_interval_s,
        checkpoint_bytes=checkpoint_bytes,
        flush_s=flush_s,
        tombstones_max=tombstones_max,
        tombstone_age_ns=round(tombstone_age_s * 1e9),
        close_timeout_s=close_timeout_s,
        readonly=mode == "r",
        file_mode=file_mode,
        allow_network=allow_network,
        clock=clock,
        broken=_broken,
    )
    return Log(path, settings)


class Log(LogCore):
    """The sessions of one directory, or of one process in memory. Made by `replaylog.open()`."""

    def __init__(self, path: str | os.PathLike[str] | None, settings: Settings) -> None:
        self._settings = settings
        self.path = None if path is None else Path(path)
        self.durability: Durability = settings.durability
        self._lock = threading.RLock()  # create, reap, load: who is in `_sessions`
        self._checkpoint_lock = threading.RLock()
        self._by_number: dict[int, Session] = {}  # during recovery
        self._next_number = 1
        self._directory: Directory | None = None
        self._maintenance: Maintenance | None = None
        self._incarnation = 0
        self._checkpoints = 0
        self._recovered = 0
        self._last_block = 0
        self._ageing_waits = False
        self._closing = threading.RLock()  # a signal handler may close in the midst of a close
        self._limits = Limits([], (settings.retention or DEFAULT_RETENTION).limits, 0)
        self._recovered_generation = 0
        if path is None:
            self._start(MemoryStore(), None, wall_ns=time.time_ns(), time_high=0)
        else:
            self._open_directory()
        _logs.add(self)

    # -- opening ------------------------------------------------------------------------------------

    def _start(
        self, store: MemoryStore | EmbeddedStore, journal: Journal | None, *, wall_ns: int, time_high: int
    ) -> None:
        s = self._settings
        self._configure(
            store=store,
            default_limits=self._limits.current,
            journal=journal,
            clock=s.clock,
            on_disk=journal is not None,
            memory_bytes=s.memory_bytes,
            event_bytes_max=s.event_bytes_max,
            grace_ns=s.grace_ns,
            dirty_soft=min(s.checkpoint_bytes, self._dirty_hard() // 2) if journal is not None else 2**62,
            wall_ns=wall_ns,
            time_high=time_high,
        )

    def _open_directory(self) -> None:
        s = self._settings
        assert self.path is not None
        directory = Directory(self.path, mode=s.file_mode, allow_network=s.allow_network)
        if s.readonly:
            directory.require()
        else:
            directory.create()
            directory.lock()
        self._directory = directory
        try:
            store = self._open_store(directory)
            try:
                self._open_journal(store, directory)
            except BaseException:
                store.close()
                raise
        except BaseException:
            directory.unlock()
            raise

    def _open_store(self, directory: Directory) -> EmbeddedStore:
        s = self._settings
        if directory.data_is_missing():
            raise CorruptLog(where=str(directory.data), found="no data", expected="the data file of this log")
        store = EmbeddedStore(directory.path, map_bytes=s.map_bytes, readonly=s.readonly, mode=directory.file_mode)
        try:
            uuid = directory.identity(store.uuid(), has_sessions=not store.is_empty())
            if s.readonly:
                return store
            store.identify(uuid)
            directory.write_uuid(uuid)
        except BaseException:
            store.close()
            raise
        return store

    def _open_journal(self, store: EmbeddedStore, directory: Directory) -> None:
        s = self._settings
        journal = Journal(
            Hub(),
            directory=os.fsencode(directory.journal),
            slot=SLOT,
            relaxed=s.durability == "relaxed",
            extent_bytes=s.extent_bytes,
            extents_max=s.extents_max,
            backlog_bytes=s.backlog_bytes,
            mode=directory.file_mode,
        )
        if s.broken:
            journal._break(s.broken)
        self._next_number, time_high = store.counters()
        wall_ns = time.time_ns() if s.clock is None else s.clock()
        stored = store.limits()
        self._recovered_generation = max(0, len(stored) - 1)
        as_stored = stored and (s.readonly or s.retention is None)  # a view has no limits of its own
        current = stored[-1][:3] if as_stored else self._limits.current
        self._limits = Limits(stored, current, max(wall_ns, time_high))
        if not s.readonly and self._limits.history != stored:
            store.write_limits(self._limits.history)
        self._start(store, journal, wall_ns=wall_ns, time_high=time_high)
        slots, (next_number, journal_time, self._recovered) = self._recover(store, directory)
        self._next_number = max(self._next_number, next_number)
        self._by_number.clear()
        for session in list(self._sessions.values()):
            session._age_out(self._tightest(self._recovered_generation)[2])
        time_high = max(time_high, journal_time)
        self._ageing_waits = wall_ns < time_high
        self._raise_time_high(time_high)
        if s.readonly:
            self._state(_READONLY)
        elif any(slot.incarnation for slot in slots.values()):
            # Rule: what recovery read is committed before it is shown; the former incarnation is over.
            with self._checkpoint_lock:
                self._run_checkpoint(slot=(SLOT, Slot(0, 0, "")))
            for _, name in self._by_use():
                self._evict_one(name, True)

    def _recover(
        self, store: EmbeddedStore, directory: Directory
    ) -> tuple[dict[int, Slot], tuple[int, int, int]]:
        """The slots and what their journals added. A view of a live log starts over when a checkpoint came between."""
        for attempt in range(VIEW_ATTEMPTS_MAX):
            slots = store.slots()
            try:
                found = recover(self, directory, slots)
            except CorruptLog:
                if not self._settings.readonly or store.slots() == slots or attempt == VIEW_ATTEMPTS_MAX - 1:
                    raise
            else:
                if not self._settings.readonly or store.slots() == slots:
                    return slots, found
            self._sessions.clear()
            self._by_number.clear()
            self._take_dirty()
        raise LogLocked(path=str(self.path), holder="a process that writes too fast for a view of it")

    def _attach(self) -> None:
        """The first append: an incarnation of our own, extents, threads."""
        with self._lock:
            if self._maintenance is not None:
                return
            assert self._directory is not None
            s = self._settings
            self._incarnation = secrets.randbits(64) | 1
            self._store.write_slot(SLOT, Slot(self._incarnation, 0, self._directory.owner()))
            self._journal.attach(self._incarnation, self._directory.reusable_extents(SLOT, s.extent_bytes))
            try:
                self._journal.prepare_extent()
            except OSError as error:
                raise LogFull(used=0, limit=s.extent_bytes, bound="journal_extent_bytes") from error
            self._directory.sync()
            self._maintenance = Maintenance(
                self, interval_s=s.interval_s, flush_s=s.flush_s if s.durability == "relaxed" else None
            )
            self._maintenance.start()
            self._set_attached()

    def _tightest(self, generation: int) -> tuple[int, int, int]:
        return self._limits.tightest(generation)

    def _generation(self) -> int:
        return self._limits.generation

    @property
    def retention(self) -> Retention:
        """The limits of sessions without their own."""
        return Retention.of(self._limits.current)

    # -- sessions -----------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        *,
        meta: Any = None,
        retention: Retention | None = None,
        exist_ok: bool = False,
        wait: bool = True,
    ) -> Session:
        """Create a session with a new epoch, durably. SessionExists if it is there (unless `exist_ok`).

        meta: a JSON value of at most META_BYTES_MAX bytes. A reaped name may be created again. With
        `wait=False` the creation is flushed together with the first append: do not name the session to
        others before.
        """
        check_name(name)
        if meta is not None and len(encode_json(meta)) > META_BYTES_MAX:
            raise ValueError(f"meta exceeds META_BYTES_MAX={META_BYTES_MAX}: keep large things elsewhere")
        meta = copy.deepcopy(meta)  # the caller may go on with its own
        while True:
            with self._lock:
                self._guard()
                known = self._find(name)
                if known is None or known._reaped():
                    session, seq = self._create(name, meta, retention, known)
                    break
            if not self._settle_creation(known):
                continue  # another thread's creation was refused: it is ours to try
            if exist_ok:
                return known
            raise SessionExists(name=name, epoch=known.epoch, head=known.head)
        if wait and self._journal is not None:
            self._wait_seq(seq, -1)
        return session

    def _create(
        self, name: str, meta: Any, own: Retention | None, former: Session | None
    ) -> tuple[Session, int]:
        number = self._next_number
        self._next_number += 1
        epoch = secrets.randbits(64)
        sizes = own.limits if own is not None else self._limits.current
        values = [name, epoch, meta, *sizes, own is not None, self._now()]
        session = Session(self, create_row(name, number, values, self._generation()))
        session._replaces(former)
        self._sessions[name] = session
        try:
            seq = session._control(fmt.REC_CREATE, 1, fmt.pack(values), 0, fmt.STATE_BORN, -1)
        except BaseException:
            if former is not None:
                self._sessions[name] = former
            else:
                del self._sessions[name]
            raise
        return session, seq

    def _settle_creation(self, session: Session) -> bool:
        """Another thread may be creating it just now: wait. False when there was no room for it."""
        if session._born():
            return True
        try:
            self._wait_seq(session._last_seq(), -1)
        except LogFull:
            return False
        return session._born()

    def session(self, name: str) -> Session:
        """The session of that name; SessionUnknown, SessionReaped. Never creates."""
        if not isinstance(name, str):
            raise TypeError(f"a session name is a str, not {type(name).__name__}")
        session = self._sessions.get(name)
        if session is None:
            with self._lock:
                self._guard()
                session = self._find(name)
        self._guard()
        if session is None or not session._born():
            raise SessionUnknown(name=name)
        if session.state == "reaped":
            session._raise_reaped()
        return session

    def _find(self, name: str) -> Session | None:
        """From memory or the store; under `_lock`, so that a name has one Session object."""
        session = self._sessions.get(name)
        if session is None and (row := self._store.load(name)) is not None:
            session = Session(self, row)
            self._sessions[name] = session
            if self._numbers()["memory_used"] > self._settings.memory_bytes:
                self._evict()
        return session

    def _check_cold(self, name: object, cursor: Any) -> Verdict:
        """The verdict on a session that is not in memory."""
        if not isinstance(name, str):
            raise TypeError(f"a session name is a str, not {type(name).__name__}")
        with self._lock:
            self._guard()
            session = self._find(name)
        if session is None:
            return self._check_unknown(name, cursor)
        return session.check(cursor)

    def resume(self, name: str, cursor: Any = None) -> Replay:
        """Verdict and reservation in one step; NotResumable(verdict) when not ok, also for unknown names."""
        session = self._sessions.get(name)
        if session is None or not session._born():
            verdict = self.check(name, cursor)
            if not verdict.ok:
                raise NotResumable(verdict)
            session = self._sessions[name]
        return session.resume(cursor)

    def sessions(self, prefix: str = "", after: str | None = None, limit: int | None = None) -> list[SessionInfo]:
        """Sessions in the order of their names (UTF-8), reaped ones left out; page with `after` and `limit`."""
        self._guard()
        out: list[SessionInfo] = []
        if limit is not None and limit <= 0:
            return out
        for info in self._listing(prefix, after):
            out.append(info)
            if limit is not None and len(out) >= limit:
                break
        return out

    def _listing(self, prefix: str, after: str | None) -> Iterator[SessionInfo]:
        floor_key = b"" if after is None else after.encode()
        hot = sorted(
            (name.encode(), session)
            for name, session in list(self._sessions.items())
            if name.startswith(prefix) and (after is None or name.encode() > floor_key)
        )
        cold = ((row.name.encode(), row) for row in self._store.names(prefix, after))
        last = None
        for key, found in heapq.merge(hot, cold, key=lambda pair: pair[0]):
            if key == last:
                continue  # the one in memory came first
            last = key
            info = _info_of_session(found) if isinstance(found, Session) else _info_of_row(found)
            if info is not None:
                yield info

    def watch(self, prefix: str = "", *, timeout_s: float | None = None) -> Watch:
        """An iterator of (name, head) for sessions whose heads moved, from now on; one for many sessions."""
        self._guard()
        return Watch(self, prefix, timeout_s)

    # -- reaping ------------------------------------------------------------------------------------

    def reap(self, name: str | None = None, *, prefix: str | None = None, reason: str = "") -> int:
        """Delete the events of a session, or of all under a prefix in one commit; a tombstone stays.

        Returns how many were reaped. SessionUnknown and SessionReaped for a single name.
        """
        if (name is None) == (prefix is None):
            raise ValueError("reap takes a name or a prefix, one of them")
        if len(reason.encode()) > 255:
            raise ValueError(f"reason of {len(reason.encode())} bytes: at most 255")
        if name is not None:
            targets: list[Session | None] = [self.session(name)]
        else:
            targets = [self._live(info.name) for info in self.sessions(prefix or "")]
        live = [session for session in targets if session is not None]
        with self._lock:
            now = max(self._now(), self._numbers()["time_high"])
            reaped, seq = self._reap_batch(live, reason, now, fmt.pack([reason, now]))
        if seq:
            self._wait_seq(seq, -1)
        elif self._journal is None:
            self._bound_tombstones_in_memory()
        return int(reaped)

    def _live(self, name: str) -> Session | None:
        try:
            return self.session(name)
        except (SessionUnknown, SessionReaped):
            return None  # somebody else was faster

    def _bound_tombstones_in_memory(self) -> None:
        now = self._now()
        with self._lock:
            held = [s for s in self._sessions.copy().values() if s.state == "reaped"]
            held.sort(key=Session._changed_ns)
            surplus = len(held) - self._settings.tombstones_max
            for i, session in enumerate(held):
                if i < surplus or session._changed_ns() + self._settings.tombstone_age_ns <= now:
                    self._sessions.pop(session.name, None)

    # -- flushing and checkpoints -------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """All that was appended is on disk when this returns (`relaxed` too). TimeoutError."""
        self._guard()
        if self._journal is None or self._maintenance is None:
            return
        if not self._journal.flush_pending(timeout_s):
            self._wait_seq(self._journal.seq_done(), -1)
            if self._journal.is_poisoned():
                self._wait_seq(self._journal.seq_done() + 1, -1)
            raise TimeoutError(f"not flushed after {timeout_s} s")
        if self.durability == "relaxed":
            self._sync_journal()

    def _sync_journal(self) -> None:
        try:
            self._journal.sync()
        except OSError as error:
            raise OutcomeUnknown(cause=str(error)) from error

    def checkpoint(self) -> None:
        """Write what changed to the store now, instead of at the next interval."""
        self._guard()
        if self._journal is not None and self._maintenance is not None:
            self._checkpoint()

    def _checkpoint(self) -> None:
        with self._checkpoint_lock:
            if self._state() in (_CLOSED, _FORKED):
                return
            if self.durability == "relaxed":
                self._sync_journal()
            block = self._journal.durable_block()
            if not self._dirty_count() and block == self._last_block:
                return
            assert self._directory is not None
            self._run_checkpoint(slot=(SLOT, Slot(self._incarnation, block, self._directory.owner())))
            self._last_block = block
            self._journal.recycle(block)
            self._evict()

    def _run_checkpoint(self, *, slot: tuple[int, Slot]) -> None:
        s = self._settings
        Checkpoint(self, tombstone_age_ns=s.tombstone_age_ns).run(slot=slot, next_number=self._next_number)
        self._checkpoints += 1
        self._set_dirty_soft(min(s.checkpoint_bytes, self._dirty_hard() // 2, self._dirty_room()))
        self._set_memory_soft(s.memory_bytes)
        self._set_quota_full(self._dirty_room() <= 0)

    def _dirty_room(self) -> int:
        """Bytes of events that the store can still take, by the quota."""
        s = self._settings
        free = s.map_bytes * (1 - QUOTA_HEADROOM) - self._store.used_bytes()
        return int(free / JOURNAL_WEIGHT)

    def _dirty_hard(self) -> int:
        """Bytes of events that may wait for a checkpoint: they are in memory, and in the journal."""
        s = self._settings
        return min(s.extent_bytes * s.extents_max // 2, s.memory_bytes)

    def _dirty_bound(self) -> str:
        s = self._settings
        return "memory_bytes" if self._dirty_hard() == s.memory_bytes else "journal_bytes_max / 2"

    def _relieve(self, size: int, deadline_ns: int, wait: bool) -> int:
        """An append came to a bound: make room, or raise LogFull or Backlogged. 1: it waited, ask again."""
        s = self._settings
        if not self._on_disk:
            self._relieve_memory(size)
            return 0
        maintenance = self._maintenance
        assert maintenance is not None
        if size > self._dirty_hard():
            raise EventTooLarge(size=size, limit=self._dirty_hard(), bound=self._dirty_bound())
        dirty = self._dirty_size() + size
        if dirty > self._dirty_room():
            maintenance.wait_done(5.0)
            if self._dirty_size() + size > self._dirty_room() or maintenance.failing:
                self._raise_full()
            return 1
        self._evict(size)
        used = self._numbers()["memory_used"]
        if used + size > s.memory_bytes:  # un-checkpointed, or promised to readers: ask again a little later
            self._set_memory_soft(used + size + s.memory_bytes // 16)
            maintenance.kick()
        if dirty <= self._dirty_hard():
            self._set_dirty_soft(self._dirty_hard())
            maintenance.kick()
            return 0
        if not wait or (deadline_ns >= 0 and time.monotonic_ns() > deadline_ns):
            raise Backlogged(queued=dirty, limit=self._dirty_hard(), bound=self._dirty_bound())
        maintenance.wait_done(1.0)
        if maintenance.failing:
            self._raise_full()
        return 1

    def _relieve_memory(self, size: int) -> None:
        """Memory mode: only retention makes room."""
        for session in list(self._sessions.values()):
            _ = session.floor  # let old events age
        used, limit = self._numbers()["memory_used"], self._settings.memory_bytes
        if used + size > limit:
            raise LogFull(used=used, limit=limit, bound="memory_bytes")

    def _wait_for_room(self) -> None:
        """For event loops, in a thread: until the queue or the un-checkpointed bytes shrink."""
        if self._journal is not None and not self._journal.flush_pending(1.0):
            return
        if self._maintenance is not None and self._dirty_size() > self._dirty_hard() // 2:
            self._maintenance.wait_done(1.0)

    def _raise_disk_full(self) -> None:
        """The journal found no room."""
        if self._journal.rollback:
            self._roll_back()
        assert self.path is not None
        disk = os.statvfs(self.path)
        total = disk.f_blocks * disk.f_frsize
        raise LogFull(used=total - disk.f_bavail * disk.f_frsize, limit=total, bound="the disk's size")

    def _raise_full(self) -> None:
        raise LogFull(
            used=self._store.used_bytes() + self._dirty_size(), limit=self._settings.map_bytes, bound="map_bytes"
        )

    def _evict(self, size: int = 0) -> None:
        """Least recently used sessions leave memory until it fits."""
        s = self._settings
        if not self._on_disk or self._numbers()["memory_used"] + size <= s.memory_bytes:
            return
        goal = int(s.memory_bytes * EVICT_TO) - size
        # Nobody may look a name up while its session leaves. Who creates holds the lock, perhaps until a checkpoint
        # makes room in the journal: a checkpoint must never wait for it.
        if not self._lock.acquire(blocking=False):
            return
        try:
            by_use = self._by_use()
            for whole, names in ((True, by_use), (False, by_use[::-1])):
                for _, name in names:
                    if self._numbers()["memory_used"] <= goal:
                        return
                    self._evict_one(name, whole)
        finally:
            self._lock.release()

    def _sweep(self) -> None:
        """Cold sessions age, old tombstones go, stale readers of the store are cleared."""
        self._advance_tick()
        with self._checkpoint_lock:
            if self._state() != _OPEN or not self._lock.acquire(blocking=False):
                return  # as in `_evict`: next time
            try:
                self._sweep_locked()
            finally:
                self._lock.release()

    def _sweep_locked(self) -> None:
        now = self._now()
        for _, row in self._store.expired(fmt.EXPIRY_EVENT, now, SWEEP_ROWS):
            session = self._live(row.name)
            if session is not None:
                _ = session.floor
                session._touch()
        old = self._store.expired(fmt.EXPIRY_TOMBSTONE, now, SWEEP_ROWS)
        surplus = self._store.tombstones() - self._settings.tombstones_max
        if surplus > len(old):
            old = self._store.expired(fmt.EXPIRY_TOMBSTONE, 2**63 - 1, min(surplus, SWEEP_ROWS))
        if old:
            self._forget(old)
        self._store.reader_check()

    def _forget(self, old: list[tuple[int, Row]]) -> None:
        with self._lock:
            for _, row in old:
                session = self._sessions.get(row.name)
                if session is not None and session._number == row.number:
                    del self._sessions[row.name]
            self._store.commit(
                (), next_number=self._next_number, time_high=self._numbers()["time_high"], forget=old
            )

    # -- care ---------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Numbers of the log, each with its bound where it has one."""
        self._guard()
        numbers = self._numbers()
        s = self._settings
        out: dict[str, Any] = {
            "durability": self.durability,
            "sessions_in_memory": numbers["sessions_in_memory"],
            "appended": numbers["appended"],
            "memory_bytes": numbers["memory_used"],
            "memory_bytes_max": s.memory_bytes,
            "ageing_waits_for_the_clock": self._ageing_waits and self._now() < numbers["time_high"],
            "tombstones": self._store.tombstones(),
            "tombstones_max": s.tombstones_max,
        }
        if self._journal is not None:
            out |= {
                "dirty_bytes": numbers["dirty_bytes"],
                "backlog_bytes": self._journal.queued(),
                "backlog_bytes_max": s.backlog_bytes,
                "journal_bytes_written": self._journal.bytes_written,
                "journal_bytes_max": s.extent_bytes * s.extents_max,
                "flushes": self._journal.flushes,
                "blocks": self._journal.block,
                "checkpoints": self._checkpoints,
                "recovered_records": self._recovered,
                "store_bytes": self._store.used_bytes(),
                "map_bytes": s.map_bytes,
                "poisoned": self._journal.is_poisoned(),
            }
        return out

    def verify(self) -> list[str]:
        """Read everything and compare CRCs, tags, ids and rows; what is wrong, one sentence each."""
        from replaylog._verify import verify_log

        self._guard()
        return verify_log(self)

    def backup(self, to: str | os.PathLike[str]) -> None:
        """A verified copy of the log in a new directory; appends go on meanwhile."""
        from replaylog._backup import backup_log

        self._guard()
        backup_log(self, Path(to))

    @property
    def closed(self) -> bool:
        """close() was called, or this is the child of a fork."""
        return self._state() in (_CLOSED, _FORKED)

    def close(self, timeout_s: float | None = None) -> None:
        """Finish what is queued, checkpoint, let the directory go. Idempotent, from any thread.

        What could not be finished in `timeout_s` (default `close_timeout_s`) fails its tickets with LogClosed;
        the journal keeps what was flushed, and the next open recovers it.
        """
        timeout = self._settings.close_timeout_s if timeout_s is None else timeout_s
        with self._closing:
            state = self._state()
            if state in (_CLOSED, _FORKED):
                return
            self._state(_CLOSED)
            try:
                if self._maintenance is not None:
                    self._close_writer(timeout)
            finally:  # also when a signal handler raised in the midst of it
                self._release()

    def _release(self) -> None:
        """Nothing is written after this; the lease goes once the last flush under way has ended."""
        if self._maintenance is not None:
            self._maintenance.dismiss()
            self._journal.ended_now()
        self._wake_readers()
        with self._checkpoint_lock:
            self._store.close()
        if self._directory is None:
            return
        if self._journal.is_busy():
            # A write that lands after somebody else took over would destroy what they acknowledged.
            threading.Thread(target=self._unlock_when_idle, name="replaylog-release", daemon=True).start()
        else:
            self._directory.unlock()

    def _unlock_when_idle(self) -> None:
        assert self._directory is not None
        while self._journal.is_busy():
            time.sleep(0.05)
        self._directory.unlock()

    def _close_writer(self, timeout_s: float) -> None:
        assert self._maintenance is not None
        deadline = time.monotonic() + timeout_s
        finished = self._journal.flush_pending(timeout_s)
        self._maintenance.stop(max(0.1, deadline - time.monotonic()))
        self._journal.ended_now()
        with self._checkpoint_lock:
            try:
                if self._journal.rollback:
                    self._roll_back()
                if finished and self.durability == "relaxed":
                    self._sync_journal()
                clean = finished and not self._journal.is_poisoned()
                if clean:
                    self._run_checkpoint(slot=(SLOT, Slot(0, 0, "")))
            except (ReplayLogError, OSError):
                pass  # the journal holds what was promised: the next open recovers it

    def _abandon(self) -> None:
        """Tests: go away as a killed process does, without flush or checkpoint."""
        self._state(_CLOSED)
        if self._maintenance is not None:
            self._maintenance.stop(5.0)
            self._journal.ended_now()
        self._wake_readers()
        self._store.close()
        if self._directory is not None:
            self._directory.unlock()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ("open", "closed", "forked", "read-only")[self._state()]
        return f"<Log {str(self.path) if self.path else 'in memory'} {self.durability} {state}>"


def _info_of_session(session: Session) -> SessionInfo | None:
    if not session._born() or session.state == "reaped":
        return None
    return SessionInfo(session.name, session.epoch, session.floor, session.head, session.state, session.meta)


def _info_of_row(row: Row) -> SessionInfo | None:
    if row.state & fmt.STATE_REAPED:
        return None
    state = "ended" if row.state & fmt.STATE_ENDED else "open"
    return SessionInfo(row.name, row.epoch, row.floor, row.head, state, row.meta)


# -- process events -----------------------------------------------------------------------------------


def _after_fork_in_child() -> None:
    """The child must neither write the parent's log nor keep its lease when the parent dies."""
    for log in list(_logs):
        log._state(_FORKED)
        if log._directory is not None:
            log._directory.disown()
        _leaked.append(log)  # closing LMDB here would touch what the parent uses


_leaked: list[Log] = []


def _at_exit() -> None:
    for log in list(_logs):
        if not log.closed:
            log.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
