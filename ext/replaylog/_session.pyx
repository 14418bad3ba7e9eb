"""One session in memory: append, settle, judge, read. The hot half of the engine.

Invariants (s is a Session; all under the GIL, which the flushing thread never takes):
1. s._floor - 1 <= s.pub.head <= s.assigned. Readers see pub.head; it moves only when a batch was posted.
2. The ring is contiguous from s.base + 1 to s.assigned, or empty with s.base == s.assigned.
3. What the ring does not hold is in the store (id <= s.persisted) or below the floor.
4. The floor is a function of the *visible* head, the limits and explicit trims: a crash that takes back
   an unacknowledged append takes back no floor.
5. Nothing here clamps a cursor; only `judge_window` and the tag decide.

Any thread. What needs the store or waits is behind `_store` and `_journal`.
"""

import copy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython cimport no_gc, no_gc_clear
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from replaylog._errors import (
    Backlogged, CorruptLog, EventTooLarge, HeadMoved, KeyReused, LogClosed, LogFull, LogPoisoned, NotResumable,
    OutcomeUnknown, Overrun, SessionEnded, SessionReaped, SessionUnknown,
)
from replaylog._frame cimport (
    END_BITS, TEXT_BYTES_MAX, TYPE_BYTES, TYPE_JSON, TYPE_STR, Entry, measure, tag_next, tag_zero, text_kind,
    text_stored, token_text, write_hex, write_text,
)
from replaylog._journal cimport (
    OUT_CLOSED, OUT_DURABLE, OUT_FULL, OUT_PENDING, OUT_POISONED, OUT_UNKNOWN, REC_CREATE, REC_END, REC_EVENTS,
    REC_LIMITS, REC_REAP, REC_TRIM, RecordHead, sleep_on,
)
from replaylog._judge cimport Code, State, judge_window, new_verdict, parse_cursor
from replaylog._payload import check_key, check_kind, encode_json
from replaylog._ring import build_segments
from replaylog._ring cimport CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, chunk_of, event_at, new_chunk

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    Py_ssize_t Py_REFCNT(object o)

cdef extern from "native.h" nogil:
    int64_t rl_monotonic_ns()
    int64_t rl_coarse_ns()
    uint64_t rl_load64 "rl_load"(uint64_t* p)
    uint32_t rl_load(uint32_t* p)
    uint32_t rl_add(uint32_t* p, uint32_t v)
    uint32_t rl_or(uint32_t* p, uint32_t v)
    uint32_t rl_and(uint32_t* p, uint32_t v)
    void rl_futex_wake(uint32_t* word, int count)
    int INT_MAX

cdef str MESSAGE = "message"
cdef bytes MESSAGE_BYTES = b"message"
cdef dict KINDS = {MESSAGE: MESSAGE_BYTES}     # kinds seen, checked; bounded by KINDS_MAX
cdef enum:
    KINDS_MAX = 1024
    KEYS_KEEP = 64
    PINS_SWEEP = 32
    SESSION_BYTES = 512      # what a session costs in memory beside its chunks
    SEGMENT_SMALL = 4096     # a stored segment below this is always written again with its successors
    FRAMES_BYTES = 262144
    TIMEOUT_S_MAX = 1000000000   # about 31 years: longer is for ever
    NEVER = 0x7FFFFFFFFFFFFFFF


cdef bytes kind_bytes(object kind):
    cdef bytes raw = <bytes>KINDS.get(kind)
    if raw is None:
        raw = check_kind(kind)
        if len(KINDS) < KINDS_MAX:
            KINDS[kind] = raw
    return raw


cdef object prepare(Prepared* p, object payload, object kind):
    """Fill `p`; returns the objects that must outlive it."""
    cdef Py_ssize_t n
    cdef bytes raw = MESSAGE_BYTES if kind is MESSAGE else kind_bytes(kind)
    p.kind = <const uint8_t*>PyBytes_AS_STRING(raw)
    p.kind_bytes = PyBytes_GET_SIZE(raw)
    if type(payload) is bytes:
        p.type = TYPE_BYTES
    elif type(payload) is str:
        p.type = TYPE_STR
        p.payload = <const uint8_t*>PyUnicode_AsUTF8AndSize(payload, &n)
        p.payload_bytes = n
        return raw
    else:
        payload = encode_json(payload)
        p.type = TYPE_JSON
    p.payload = <const uint8_t*>PyBytes_AS_STRING(payload)
    p.payload_bytes = PyBytes_GET_SIZE(payload)
    return (raw, payload) if p.type == TYPE_JSON else raw


cdef int64_t deadline_of(object timeout) except? -2:
    """Monotonic deadline in ns, -1 for none."""
    if timeout is None or timeout > TIMEOUT_S_MAX:
        return -1
    return rl_monotonic_ns() + <int64_t>(max(0.0, timeout) * 1e9)


cdef class Pin:
    """A promise to one reader: what is after `pos` stays until it expires or the reader goes."""


# ---- what the sessions of a log share --------------------------------------------------------------


@no_gc_clear  # a session that is collected with its log still needs it in __dealloc__; the dict breaks the cycle
cdef class LogCore:
    """Shared state of a log: clock, memory, journal, store. `Log` (_log.py) is its public face."""

    def __cinit__(self):
        self._sessions = {}
        self._dirty = []
        self._hub = Hub()

    def _configure(self, *, store, default_limits, Journal journal, clock, bint on_disk, memory_bytes, event_bytes_max, grace_ns,
                   dirty_soft, wall_ns, time_high):
        self._store = store
        self._default_limits = default_limits
        self._journal = journal
        if journal is not None:
            self._hub = journal.hub
        self._clock = clock
        self._on_disk = on_disk
        self.memory_bytes = self._memory_soft = memory_bytes
        self.event_bytes_max = event_bytes_max
        self._grace_ns = grace_ns
        self._dirty_soft = dirty_soft
        self._clock_offset = wall_ns - rl_monotonic_ns()
        self._time_high = time_high

    cdef int64_t now(self) except -1:
        """Wall clock at open plus monotonic time since, in ns; never decreases while the log is open."""
        cdef int64_t t
        if self._clock is None:
            # In memory an append takes about 100 ns and a precise clock a fifth of that: to the tick is enough.
            return (rl_monotonic_ns() if self._journal is not None else rl_coarse_ns()) + self._clock_offset
        t = self._clock()
        if t > self._last_now:
            self._last_now = t
        return self._last_now

    def _now(self) -> int:
        return self.now()

    cdef int guard(self) except -1:
        """Raise when nothing may be asked of this log any more."""
        if self._closed == IS_CLOSED:
            raise LogClosed(why="close() was called")
        if self._closed == IS_FORKED:
            raise LogClosed(why="this process is a fork of the one that opened it; open after fork")
        return 0

    def _guard(self):
        self.guard()

    cdef int usable(self) except -1:
        """May anything be written? The first time, the journal is attached. 1 when the GIL may have been let go."""
        if self._closed:
            self._refuse_append()
        if self._journal is None:
            return 0
        if self._journal.unknown_seq or self._journal.broken:
            raise LogPoisoned(cause=_strerror(self._journal.error))
        if self._journal.rollback:
            self._roll_back()
            return 1
        if not self._attached:
            self._attach()
            return 1
        return 0

    cdef int admit(self, size_t n, int64_t deadline, bint wait) except -1:
        """Is there room for n more bytes? 1 when the GIL may have been let go: slow path, at a bound."""
        cdef int ran = self.usable()
        if self._quota_full:
            self._raise_full()
        if self._memory_used + n > self._memory_soft or self._dirty_bytes + <int64_t>n > self._dirty_soft:
            return self._relieve(n, deadline, wait)
        return ran

    def _refuse_append(self):
        self.guard()
        raise LogClosed(why="it was opened with mode='r'")

    def _roll_back(self):
        """A batch was refused for want of space: forget what it held, so that its ids can be given again."""
        cdef Session s
        if not self._journal.rollback:
            return
        # All of them: a checkpoint that runs just now has taken the dirty ones off their list.
        for s in list(self._sessions.values()) + self._dirty:
            if s.last_seq:
                s.cut()
        self._journal.rolled_back()

    cdef int settle_outcome(self, uint64_t seq, int64_t deadline, object waited) except -1:
        """Wait for a batch; return 1 when durable, 0 when the time passed; raise for every other outcome."""
        if self._closed == IS_FORKED:
            self.guard()  # the copy of the queue in a child is the parent's to write
        cdef int out = self._journal.wait(seq, deadline, waited is None)
        if out == OUT_DURABLE:
            return 1
        if out == OUT_PENDING:
            return 0
        _raise_outcome(self, out)
        return 0

    def _wait_seq(self, seq, deadline_ns):
        return self.settle_outcome(seq, deadline_ns, None) == 1

    def _peek_seq(self, seq):
        """None while pending, True when durable; raises for every other outcome."""
        cdef int out
        if self._journal is None:
            return True
        out = self._journal.outcome(seq)
        if out == OUT_PENDING:
            return None
        if out == OUT_DURABLE:
            return True
        _raise_outcome(self, out)

    def _state(self, value=None):
        if value is not None:
            self._closed = value
        return self._closed

    def _reap_batch(self, list sessions, str reason, int64_t time_ns, bytes body):
        """REAP records of many sessions in one batch: (how many, the batch to wait for or 0 in memory mode)."""
        cdef Session s
        cdef size_t n = (sizeof(RecordHead) + len(body) + 7) // 8 * 8
        cdef Py_ssize_t i, count
        cdef uint8_t* at
        cdef uint64_t seq = 0
        self.usable()
        sessions = [s for s in sessions if not s.reaping]
        count = len(sessions)
        if self._journal is None:
            for s in sessions:
                s.reaping, s.last_reason, s.changed_ns = True, reason, time_ns
                self._hub.publish(&s.pub, 0, s.assigned + 1, State.WAS_REAPED)
                s._forget_events()
            self._hub.ring(False)
            return count, 0
        if count == 0:
            return 0, 0
        if n * count + 64 > self._journal.batch_bytes_max:
            raise EventTooLarge(size=n * count, limit=self._journal.batch_bytes_max - 64, bound="journal_extent_bytes")
        at = self._journal.begin(n * count)
        while at == NULL:
            if not self._journal.refuses():
                self._journal.wait_room(-1)
            self.usable()
            at = self._journal.begin(n * count)
        for i in range(count):  # under the journal's mutex: nothing here lets the GIL go
            s = <Session>sessions[i]
            s.reaping, s.last_reason, s.changed_ns = True, reason, time_ns
            if not s.dirty:
                s.mark()
            write_record(at, n, REC_REAP, s, s.assigned, 0, body, None, s.tag)
            at += n
            seq = s.last_seq = self._journal.add(n, &s.pub, 0, s.assigned + 1, State.WAS_REAPED, time_ns)
        self._journal.cancel()  # the mutex goes; the records stay
        return count, seq

    def _set_quota_full(self, bint full):
        self._quota_full = full

    def _take_dirty(self):
        """The sessions that changed since the last call, for one checkpoint."""
        cdef list taken = self._dirty
        cdef Session s
        self._dirty = []
        for s in taken:
            s.dirty = False
        self._dirty_bytes = 0
        return taken

    def _set_dirty_soft(self, int64_t soft):
        """Past so many bytes an append asks `_relieve`."""
        self._dirty_soft = soft

    def _raise_time_high(self, int64_t time_high):
        """No event will be earlier than this."""
        self._time_high = max(self._time_high, time_high)

    def _set_memory_soft(self, size_t soft):
        """Past so many bytes in memory an append asks `_relieve`."""
        self._memory_soft = soft

    def _set_attached(self):
        self._attached = True

    def _give_back_dirty(self, list sessions, int64_t dirty_bytes):
        """A checkpoint failed: they are still to be written."""
        cdef Session s
        for s in sessions:
            s.mark()
        self._dirty_bytes += dirty_bytes

    def _by_use(self):
        """[(last use, name)] of the sessions in memory, least recently used first; holds none of them."""
        cdef Session s
        cdef list out = []
        for s in self._sessions.values():
            out.append((s.used, s.name))
        out.sort()
        return out

    def _evict_one(self, str name, bint whole):
        """Let a session's stored chunks go, and the session if nobody has a handle on it."""
        cdef Session s = <Session>self._sessions.get(name)
        if s is None:
            return
        s.evict(whole)
        # Referred to by the table and by `s`: a handle of somebody else would become a second session.
        if whole and s.may_leave() and Py_REFCNT(s) == 2:
            del self._sessions[name]

    def _dirty_count(self):
        return len(self._dirty)

    def _dirty_size(self):
        return self._dirty_bytes

    def _advance_tick(self):
        self._tick += 1
        return self._tick

    def _numbers(self):
        return {"memory_used": self._memory_used, "appended": self._appended, "dirty_bytes": self._dirty_bytes,
                "time_high": self._time_high, "sessions_in_memory": len(self._sessions)}

    def _wake_readers(self):
        """Everybody who waits looks again: the log closes."""
        cdef Session s
        for s in list(self._sessions.values()):
            rl_add(&s.pub.wake, 1)
            if rl_load(&s.pub.waiters):
                rl_futex_wake(&s.pub.wake, INT_MAX)
        self._hub.ring(True)

    def check(self, name, cursor=None):
        """Can a reader of session `name` replay from `cursor`? Never raises for what a client can send.

        `cursor`: an int, a token (str or bytes), START, FLOOR, HEAD, or None for START. TypeError for others.
        """
        cdef Session s = <Session>self._sessions.get(name)
        if s is None:
            return self._check_cold(name, cursor)
        return s.judge(cursor, False)

    def _check_unknown(self, str name, cursor):
        """The verdict where there is no session."""
        cdef Asked asked
        cdef Window w = Window(epoch=0, floor=0, head=0, state=0)
        parse_cursor(cursor, &asked)
        return new_verdict(name, &w, &asked, judge_window(&w, &asked), False)

    def check_nowait(self, name, cursor=None):
        """The verdict from memory alone, or None where the store would have to be asked."""
        cdef Session s = <Session>self._sessions.get(name)
        if s is None:
            return None
        self.guard()
        return s.judge_in_memory(cursor)


def _strerror(int error):
    import os
    return os.strerror(error)


def _raise_outcome(LogCore log, int out):
    if out == OUT_UNKNOWN:
        raise OutcomeUnknown(cause=_strerror(log._journal.error))
    if out == OUT_POISONED:
        raise LogPoisoned(cause=_strerror(log._journal.error))
    if out == OUT_FULL:
        log._raise_disk_full()
    raise LogClosed(why="it closed before the flush")


# ---- tickets ---------------------------------------------------------------------------------------


@no_gc
cdef class Ticket:
    """A promise of `append_nowait`: `id` is provisional until `wait` returns; never send it onward before."""

    cdef readonly uint64_t id
    cdef readonly uint64_t _seq
    cdef LogCore log

    @property
    def done(self) -> bool:
        """The outcome is known."""
        return self._seq == 0 or self.log._journal.outcome(self._seq) != OUT_PENDING

    def wait(self, timeout=None) -> int:
        """The id, once it is durable. TimeoutError leaves the ticket usable."""
        if self._seq and not self.log.settle_outcome(self._seq, deadline_of(timeout), None):
            raise TimeoutError(f"id {self.id} is not durable after {timeout} s; its outcome is still open")
        return self.id

    def __repr__(self):
        return f"<Ticket id={self.id} {'done' if self.done else 'pending'}>"


# ---- the session -------------------------------------------------------------------------------------


@no_gc_clear  # as LogCore
cdef class Session:
    """One append-only log of events. Made by Log.create() and Log.session(); thread-safe."""

    def __cinit__(self, LogCore log not None, row):
        self._log = log
        self.name = row.name
        self.epoch = row.epoch
        self._number = row.number
        self.assigned = self.base = self.settled = self.persisted = self.pub.head = row.head
        self.cum = self.base_cum = row.cum
        self.tag = self.base_tag = row.head_tag
        self._floor = row.floor
        self.floor_cum = row.floor_cum
        self.own_limits = row.own_limits
        self.pub.state = row.state
        self.pub.owner = <void*>self
        self.ending = (row.state & State.ENDED) != 0
        self.reaping = (row.state & State.WAS_REAPED) != 0
        self._expires_ns = row.expires_ns
        self.checkpointed = row.stored
        self.fence = row.fence
        self.last_time = row.changed_ns
        self.last_reason = row.reason
        self.changed_ns = row.changed_ns
        self._meta = row.meta
        self.ring = []
        self.used = log._tick
        write_hex(self.hex16, self.epoch, 16)
        log._memory_used += SESSION_BYTES
        if row.own_limits:
            self.limit_events, self.limit_bytes, self.limit_age_ns = row.limit_events, row.limit_bytes, row.limit_age_ns
            return
        if row.generation == log._generation() and (row.limit_events, row.limit_bytes) == log._default_limits[:2]:
            self.limit_events, self.limit_bytes, self.limit_age_ns = log._default_limits
            return
        # Limits that the log was open with since the row was written hold even if it is open with wider ones now:
        # somebody may have been told the floor that they gave.
        self.limit_events, self.limit_bytes, cutoff = log._tightest(row.generation)
        if (self.limit_events, self.limit_bytes) != (row.limit_events, row.limit_bytes):
            self.settled = NEVER
            self.settle()
        self._age_out(cutoff)
        if (self.limit_events, self.limit_bytes) != log._default_limits[:2]:
            self.settled = NEVER
        self.limit_events, self.limit_bytes, self.limit_age_ns = log._default_limits
        self.floor_expires = 0

    def __dealloc__(self):
        cdef Chunk c
        if self._log is None:
            return
        self._log._hub.forget(&self.pub)
        self._log._memory_used -= SESSION_BYTES
        if self.ring is not None:
            for c in self.ring:
                self._log._memory_used -= c.memory()

    # -- what it is

    @property
    def head(self) -> int:
        """The last id that readers may see, 0 when empty; in `sync` mode never past what is on disk."""
        return self.pub.head

    @property
    def floor(self) -> int:
        """The lowest id that can still be replayed, head + 1 when none. It only rises."""
        self.settle()
        return self._floor

    @property
    def state(self) -> str:
        """"open", "ended" or "reaped"."""
        if self.pub.state & State.WAS_REAPED:
            return "reaped"
        return "ended" if self.pub.state & State.ENDED else "open"

    @property
    def meta(self):
        """What create() was given, a JSON value; a copy."""
        return copy.deepcopy(self._meta)

    @property
    def cursor(self) -> str:
        """The token of the head."""
        cdef uint64_t head = self.pub.head
        return token_text(self.hex16, head, self.tag_at(head), False)

    def __repr__(self):
        return f"<Session {self.name!r} {self.state} floor={self.floor} head={self.head}>"

    # -- appending

    def append(self, payload, *, kind=MESSAGE, key=None, expect_head=None, timeout=None):
        """Append one event; its id, once it is durable.

        payload: bytes, str, or a JSON value; kind: the SSE event name. `key`: an append with a key that the
        window still holds returns that event's id. `expect_head`: HeadMoved unless the last assigned id is this.
        `timeout`: seconds; TimeoutError when the outcome is still open then.
        Raises SessionEnded, SessionReaped, EventTooLarge, Backlogged, LogFull, LogPoisoned, OutcomeUnknown,
        LogClosed, KeyReused; TypeError or ValueError for a payload or kind that cannot be sent.
        """
        cdef uint64_t seq = 0
        cdef int64_t deadline = -1 if timeout is None else deadline_of(timeout)
        cdef uint64_t id = self.append_one(payload, kind, key, expect_head, deadline, True, &seq)
        if seq and not self._log.settle_outcome(seq, deadline, None):
            raise TimeoutError(f"id {id} is not durable after {timeout} s; its outcome is still open")
        return id

    def append_nowait(self, payload, *, kind=MESSAGE, key=None, expect_head=None):
        """Queue one event; a Ticket whose `wait` returns the id. Backlogged when too much is queued."""
        cdef Ticket t = Ticket.__new__(Ticket)
        cdef uint64_t seq = 0
        t.id = self.append_one(payload, kind, key, expect_head, 0, False, &seq)
        t._seq = seq
        t.log = self._log
        if seq:
            self._log._journal.nudge()
        return t

    cdef uint64_t append_one(self, object payload, object kind, object key, object expect_head, int64_t deadline,
                             bint wait, uint64_t* seq) except 0:
        cdef Prepared p
        cdef object held = prepare(&p, payload, kind)
        cdef bytes raw_key = None
        cdef uint64_t id
        if key is not None:
            # Before everything else that could refuse: a retry whose first try succeeded moved the head itself,
            # and may have been followed by the end.
            raw_key = check_key(key)
            if self._log._closed:
                self._log._refuse_append()
            if not self.reaping:
                id = self.known_key(raw_key, &p, seq)
                if id:
                    return id
        self.check_open(expect_head)
        return self.put(&p, 1, raw_key, None, expect_head, deadline, wait, seq)

    def extend(self, events, *, expect_head=None, timeout=None):
        """Append (payload, kind) pairs in one commit, all or nothing; the range of their ids."""
        cdef list items = list(events)
        cdef Py_ssize_t n = len(items), i
        cdef int64_t deadline = deadline_of(timeout)
        cdef uint64_t seq = 0, first
        cdef Prepared* prepared
        cdef list held = []
        self.check_open(expect_head)
        if n == 0:
            return range(self.assigned + 1, self.assigned + 1)
        prepared = <Prepared*>malloc(n * sizeof(Prepared))
        if prepared == NULL:
            raise MemoryError(f"no memory for {n} events")
        try:
            for i in range(n):
                payload, kind = items[i]
                held.append((payload, prepare(&prepared[i], payload, kind)))  # the pointers need both
            self.check_open(expect_head)
            first = self.put(prepared, <uint32_t>n, None, None, expect_head, deadline, True, &seq)
        finally:
            free(prepared)
        if seq and not self._log.settle_outcome(seq, deadline, None):
            raise TimeoutError(f"ids {first}..{first + n - 1} are not durable after {timeout} s; still open")
        return range(first, first + n)

    def end(self, payload=None, *, kind=MESSAGE, reason="", timeout=None):
        """End the session: no more events will come. With a payload, it is the last event, in the same commit.

        Returns the id of the last event. To end with a JSON null, append it first.
        """
        cdef int64_t deadline = deadline_of(timeout)
        cdef uint64_t seq = self._end(payload, kind, reason, deadline)
        if seq and not self._log.settle_outcome(seq, deadline, None):
            raise TimeoutError(f"the end is not durable after {timeout} s; its outcome is still open")
        return self.assigned

    def end_nowait(self, payload=None, *, kind=MESSAGE, reason=""):
        """Queue the end; a Ticket for it."""
        cdef Ticket t = Ticket.__new__(Ticket)
        t._seq = self._end(payload, kind, reason, 0)
        t.id = self.assigned
        t.log = self._log
        if t._seq:
            self._log._journal.nudge()
        return t

    cdef uint64_t _end(self, object payload, object kind, str reason, int64_t deadline) except? 0:
        cdef Prepared p
        cdef uint64_t seq = 0
        cdef bytes body = reason.encode()
        cdef object held
        if len(body) > 255:
            raise ValueError(f"reason of {len(body)} bytes: at most 255")
        self.check_open(None)
        if payload is not None:
            held = prepare(&p, payload, kind)
            self.put(&p, 1, None, body, None, deadline, True, &seq)
        else:
            self.put(NULL, 0, None, body, None, deadline, True, &seq)
        self.last_reason = reason
        return seq

    cdef int check_open(self, object expect_head) except -1:
        if self._log._closed:
            self._log._refuse_append()
        if self.refused:
            raise SessionUnknown(name=self.name)
        if self.reaping:
            self.raise_reaped()
        if self.ending:
            raise SessionEnded(name=self.name, head=self.assigned)
        if expect_head is not None and expect_head != self.assigned:
            raise HeadMoved(name=self.name, expected=expect_head, head=self.assigned)
        return 0

    cdef int raise_reaped(self) except -1:
        raise SessionReaped(name=self.name, epoch=self.epoch, last_id=self.assigned, reason=self.last_reason,
                            time_ns=self.changed_ns)

    cdef Chunk room_for(self, size_t n):
        """The chunk at the ring's end, with room for n bytes of text."""
        cdef Py_ssize_t count = len(self.ring)
        cdef Chunk c = None
        cdef size_t bytes = CHUNK_BYTES_MIN, before
        if count:
            c = <Chunk>self.ring[count - 1]
            if c.fits(n):
                return c
            bytes = min(<size_t>c.text_cap * 2, <size_t>CHUNK_BYTES_MAX)
            before = c.memory()
            c.seal()
            self._log._memory_used -= before - c.memory()
        c = new_chunk(self.epoch, self.assigned + 1, self.cum, self.tag, max(bytes, n))
        self.ring.append(c)
        self._log._memory_used += c.memory()
        return c

    cdef uint64_t put(self, Prepared* items, uint32_t n, bytes key, bytes end, object expect_head, int64_t deadline,
                      bint wait, uint64_t* seq) except 0:
        """Append n prepared events (and the end) in one batch; first id (the last, for an end alone).

        `check_open` was asked; it is asked again whenever the GIL was let go. Fills *seq with the batch to wait
        for, 0 when it is visible already.
        """
        cdef LogCore log = self._log
        cdef Journal journal = log._journal
        cdef uint64_t first, id, floor = 0
        cdef size_t text, record, tail = 0, payload_bytes = 0
        cdef uint32_t i
        cdef int64_t now
        cdef uint8_t* at = NULL
        cdef uint8_t* rec
        cdef uint64_t bytes_before, ignored = 0
        for i in range(n):
            if items[i].payload_bytes > log.event_bytes_max:
                raise EventTooLarge(size=items[i].payload_bytes, limit=log.event_bytes_max, bound="event_bytes_max")
        while True:
            first = self.assigned + 1
            text = 0
            for i in range(n):
                if measure(&items[i].shape, first + i, items[i].type, items[i].kind, items[i].kind_bytes,
                           items[i].payload, items[i].payload_bytes):
                    raise EventTooLarge(size=items[i].payload_bytes, limit=TEXT_BYTES_MAX, bound="TEXT_BYTES_MAX")
                text += items[i].shape.text_bytes
            if text > TEXT_BYTES_MAX:
                raise EventTooLarge(size=text, limit=TEXT_BYTES_MAX, bound="TEXT_BYTES_MAX")
            # Between `begin` and `commit` the journal's mutex is held: nothing there may let the GIL go, or a thread
            # with the GIL that wants the mutex would wait for one with the mutex that wants the GIL.
            now = log.now()
            floor = self.floor_at(first + n - 1, self.cum + text, &ignored) if journal is not None else 0
            if log.admit(text + n * sizeof(Entry), deadline, wait) or self.assigned + 1 != first or self.ending \
                    or self.reaping:
                at = NULL  # others may have run: everything is asked again
            elif journal is None:
                break
            else:
                record = tail = 0
                if n:
                    record = (sizeof(RecordHead) + n * sizeof(Entry) + text + (len(key) if key is not None else 0)
                              + 7) // 8 * 8
                if end is not None:
                    tail = (sizeof(RecordHead) + len(end) + 7) // 8 * 8
                if record + tail + 64 > journal.batch_bytes_max:
                    raise EventTooLarge(size=record + tail, limit=journal.batch_bytes_max - 64,
                                        bound="journal_extent_bytes")
                at = journal.begin(record + tail)
                if at != NULL:
                    break
                if not journal.refuses() and (not wait or not journal.wait_room(deadline)):
                    raise Backlogged(queued=journal.refused_at, limit=journal.backlog_bytes, bound="backlog_bytes")
            if key is not None and not self.reaping:
                id = self.known_key(key, items, seq)
                if id:
                    return id
            self.check_open(expect_head)
        if now < log._time_high:
            now = log._time_high  # event times never decrease
        log._time_high = now
        self.last_time = now
        bytes_before = self.cum
        if n:
            try:
                self.encode(items, n, at, now, key)
            except BaseException:
                if journal is not None:
                    journal.cancel()
                raise
            if journal is not None:
                # The floor that this append implies is on disk with it: limits may be wider after a crash.
                (<RecordHead*>at).floor = self.floor_among_new(floor) if self.limit_bytes and floor >= first else floor
        if end is not None:
            self.ending = True
            if journal is not None:
                write_record(at + record, tail, REC_END, self, self.assigned, 0, end, None, self.tag)
        id = self.assigned
        self.used = log._tick
        if not self.dirty:
            self.mark()
        log._appended += n
        if journal is None:
            log._hub.publish(&self.pub, id, 0, State.ENDED if end is not None else 0)
            if log._hub.used:
                log._hub.ring(False)
            self.settle()
        else:
            log._dirty_bytes += self.cum - bytes_before
            seq[0] = journal.commit(record + tail, &self.pub, id, 0, State.ENDED if end is not None else 0, now)
            self.last_seq = seq[0]
            if self.pub.head != self.settled:
                self.settle()
        if key is not None:
            self.remember_key(key, first, seq[0])
        return first if n else (id if id else 1)

    cdef int encode(self, Prepared* items, uint32_t n, uint8_t* at, int64_t now, bytes key) except -1:
        """Events into the ring and, when `at` is given, the same into a journal record there."""
        cdef Chunk c
        cdef Prepared* p
        cdef uint32_t i, tag = self.tag, tag_before = self.tag
        cdef uint64_t id = self.assigned
        cdef uint8_t* text
        cdef uint8_t* out = NULL
        cdef Entry* index = NULL
        cdef uint32_t done = 0
        cdef size_t before
        cdef RecordHead* r
        if at != NULL:
            index = <Entry*>(at + sizeof(RecordHead))
            out = <uint8_t*>index + n * sizeof(Entry)
        for i in range(n):
            p = &items[i]
            id += 1
            c = self.room_for(p.shape.text_bytes)
            tag = tag_next(tag, id, p.type, p.kind, p.kind_bytes, p.payload, p.payload_bytes)
            before = c.memory()
            text = c.push(now, tag, &p.shape)
            self._log._memory_used += c.memory() - before
            write_text(text, &p.shape, self.hex16, id, tag, p.kind, p.kind_bytes, p.payload, p.payload_bytes)
            self.assigned = id
            self.tag = tag
            self.cum += p.shape.text_bytes
            if at != NULL:
                memcpy(out + done, text, p.shape.text_bytes)
                done += <uint32_t>p.shape.text_bytes
                index[i].time_ns = now
                index[i].end_flags = done | (p.shape.flags << END_BITS)
                index[i].tag = tag
        if at != NULL:
            r = <RecordHead*>at
            memset(r, 0, sizeof(RecordHead))
            r.type = REC_EVENTS
            r.number = self._number
            r.first = id - n + 1
            r.floor = self._floor
            r.fence = self.fence
            r.count = n
            r.text_bytes = done
            r.tag_before = tag_before
            before = sizeof(RecordHead) + n * sizeof(Entry) + done
            if key is not None:
                r.key_bytes = <unsigned short>len(key)
                memcpy(at + before, PyBytes_AS_STRING(key), len(key))
                before += len(key)
            r.bytes = <uint32_t>((before + 7) // 8 * 8)
            memset(at + before, 0, r.bytes - before)
        return 0

    cdef uint64_t control(self, int type, uint64_t first, bytes body, uint64_t trim, uint32_t state,
                          int64_t deadline) except 0:
        """A control record of its own; the batch to wait for (1 in memory mode, where it is done)."""
        cdef Journal journal = self._log._journal
        cdef size_t n = (sizeof(RecordHead) + len(body) + 7) // 8 * 8
        cdef uint8_t* at
        cdef int64_t now
        if self._log._closed:
            self._log._refuse_append()
        if self.refused:
            raise SessionUnknown(name=self.name)
        if journal is None:
            self._log._hub.publish(&self.pub, 0, trim, state)
            self._log._hub.ring(False)
            return 1
        while True:
            self._log.usable()  # a trim or a reap must be possible in a full log
            now = self._log.now()
            at = journal.begin(n)
            if at != NULL:
                break
            if not journal.refuses() and not journal.wait_room(deadline):
                raise Backlogged(queued=journal.refused_at, limit=journal.backlog_bytes, bound="backlog_bytes")
        write_record(at, n, type, self, first, 0, body, None, self.tag)
        if not self.dirty:
            self.mark()
        self.last_seq = journal.commit(n, &self.pub, 0, trim, state, now)
        return self.last_seq

    # -- keys

    cdef uint64_t known_key(self, bytes key, Prepared* p, uint64_t* seq) except? 0:
        """The id that the key got before, while the window holds it; 0: none. KeyReused for other content."""
        cdef object found = None, stored = None
        cdef uint64_t id
        cdef Chunk c
        self.settle()
        if self._log._on_disk and self.checkpointed and (self.keys is None or key not in self.keys):
            stored = self._log._store.find_key(self._number, key)
        # After the store was asked, which lets the GIL go: another thread may have used the key meanwhile.
        if self.keys is not None:
            found = self.keys.get(key)
        if found is None:
            if stored is None:
                return 0
            found = (stored, 0)
        id = found[0]
        if id < self._floor or id > self.assigned:
            return 0
        c = self.look(id)
        if c is None:
            return 0
        if not same_content(c, id, p):
            raise KeyReused(name=self.name, key=key.decode(), id=id)
        seq[0] = found[1]
        return id

    cdef int remember_key(self, bytes key, uint64_t id, uint64_t seq) except -1:
        if self.keys is None:
            self.keys = {}
            self.new_keys = []
        self.keys[key] = (id, seq)
        if self._log._on_disk:
            self.new_keys.append((key, id))
        elif len(self.keys) > KEYS_KEEP and len(self.keys) > 2 * (self.assigned + 1 - self._floor):
            self.keys = {k: v for k, v in self.keys.items() if v[0] >= self._floor}
        return 0

    # -- the floor

    cdef int settle(self) except -1:
        """Bring the floor up to date with the visible head, explicit trims and the clock."""
        cdef uint64_t head = self.pub.head, floor = self._floor
        if head != self.settled or self.pub.trim > floor:
            floor = self.floor_at(head, self.cum if head == self.assigned else 0, &self.floor_cum)
            self.settled = head
        if self.limit_age_ns and floor <= head:
            floor = self.floor_by_age(floor, head)
        if floor > self._floor:
            self.raise_floor(floor)
        return 0

    cdef int raise_floor(self, uint64_t floor) except -1:
        self._floor = floor
        if not self.dirty:
            self.mark()  # the next checkpoint writes the risen floor down
        self.drop()
        return 0

    cdef uint64_t floor_at(self, uint64_t head, uint64_t end, uint64_t* floor_cum) except 0:
        """The floor that events, bytes and explicit trims imply once `head` is visible; touches nothing.

        `end`: text bytes of all events up to `head`, 0 when it must be looked up. *floor_cum: text bytes of all events below it, where a bytes limit needs it.
        """
        cdef uint64_t floor = self._floor
        floor_cum[0] = self.floor_cum
        if self.pub.trim > floor:
            floor = min(self.pub.trim, head + 1)
        if self.limit_events and head >= floor + self.limit_events:
            floor = head - self.limit_events + 1
        if self.limit_bytes and floor <= head:
            floor = self.floor_by_bytes(floor, head, end, floor_cum)
        return floor

    cdef uint64_t floor_among_new(self, uint64_t floor) noexcept:
        """`floor_at`, where a single call appended more than the bytes limit: all in the ring, nothing is looked up."""
        cdef Chunk c
        while floor < self.assigned:
            c = chunk_of(self.ring, floor)
            if self.cum - c.cum_at(floor - 1) <= self.limit_bytes:
                break
            floor += 1
        return floor

    cdef uint64_t floor_by_bytes(self, uint64_t floor, uint64_t head, uint64_t end, uint64_t* floor_cum) except 0:
        cdef Chunk c
        if end == 0:
            c = self.look(head)
            if c is None:
                return floor
            end = c.cum_at(head)
        if floor == self._floor and end - floor_cum[0] <= self.limit_bytes:
            return floor
        c = None
        while floor < head and floor <= self.assigned:  # the newest event stays
            if c is None or floor >= c.first + c.count:
                c = self.retained(floor)
            if c is not None:
                floor_cum[0] = c.cum_at(floor - 1)
                if end - floor_cum[0] <= self.limit_bytes:
                    return floor
            floor += 1
        c = self.look(floor)
        if c is not None:
            floor_cum[0] = c.cum_at(floor - 1)
        return floor

    cdef uint64_t floor_by_age(self, uint64_t floor, uint64_t head) except 0:
        cdef int64_t now = self._log.now()
        if floor == self._floor and self.floor_expires and now < self.floor_expires:
            return floor
        return self.floor_by_time(floor, head, now - self.limit_age_ns)

    cdef uint64_t floor_by_time(self, uint64_t floor, uint64_t head, int64_t cutoff) except 0:
        """The first id from `floor` on whose time is past `cutoff`; head + 1 when none is."""
        cdef Chunk c = None
        self.floor_expires = 0
        while floor <= head:
            if c is None or floor >= c.first + c.count:
                c = self.retained(floor)
            if c is not None and c.index[floor - c.first].time_ns > cutoff:
                self.floor_expires = c.index[floor - c.first].time_ns + self.limit_age_ns
                break
            floor += 1
        return floor

    cdef uint64_t low(self) except 0:
        """The lowest id that must stay readable: the floor, or what a reader was promised and may still ask for."""
        cdef uint64_t low = self._floor
        cdef Pin p
        cdef int64_t now
        if self.pins is None:
            return low
        now = self._log.now()
        self.pins = [p for p in self.pins if p.expires_ns > now] or None
        if self.pins is not None:
            for p in self.pins:
                if p.pos + 1 < low:
                    low = p.pos + 1
        return low if low else 1

    cdef void drop(self) except *:
        """Let go of chunks that nobody may ask for any more."""
        cdef uint64_t low
        cdef Chunk c
        cdef list ring = self.ring
        if not ring:
            return
        c = <Chunk>ring[0]
        if c.first + c.count > self._floor:
            return  # the oldest chunk is still wanted, promises or not
        low = self.low()
        while ring:
            c = <Chunk>ring[0]
            if c.first + c.count > low or c.first + c.count > self.pub.head + 1:
                return
            self.shed(c)

    cdef void shed(self, Chunk c) except *:
        """The oldest chunk leaves the ring."""
        self.base = c.first + c.count - 1
        self.base_tag = c.tag_at(self.base)
        self.base_cum = c.cum_at(self.base)
        self._log._memory_used -= c.memory()
        del self.ring[0]

    cdef Pin pin(self, uint64_t pos):
        cdef Pin p = Pin.__new__(Pin)
        p.pos = pos
        p.expires_ns = self._log.now() + self._log._grace_ns
        if self.pins is None:
            self.pins = [p]
            return p
        self.pins.append(p)
        if len(self.pins) % PINS_SWEEP == 0:  # many readers and nothing trimmed: forget those that are done
            self.low()
            if self.pins is None:
                self.pins = [p]
        return p

    def trim(self, floor, *, timeout=None):
        """Raise the floor to `floor` (at most head + 1); returns the floor. A lower one changes nothing."""
        cdef uint64_t seq, wanted
        cdef int64_t deadline = deadline_of(timeout)
        if type(floor) is not int:
            raise TypeError(f"floor is an int, not {type(floor).__name__}")
        if self._log._closed:
            self._log._refuse_append()
        if self.reaping:
            self.raise_reaped()
        self.settle()
        if floor > self.pub.head + 1:
            raise ValueError(f"floor {floor} is past head + 1 = {self.pub.head + 1}: trim what is there")
        if floor <= <object>self._floor:
            return self._floor
        wanted = floor
        seq = self.control(REC_TRIM, wanted, b"", wanted, 0, deadline)
        if self._log._journal is not None and not self._log.settle_outcome(seq, deadline, None):
            raise TimeoutError(f"the trim to {floor} is not durable after {timeout} s; its outcome is still open")
        self.settle()
        return self._floor

    # -- reading

    cdef Chunk look(self, uint64_t id):
        """The chunk that holds `id`, from the ring or the store; None when it is gone."""
        if id > self.base:
            return chunk_of(self.ring, id)
        if not self._log._on_disk:
            return None
        try:
            return self._log._store.read(self._number, id)
        except CorruptLog as error:
            raise CorruptLog(where=f"session {self.name!r}, id {id}: {error.where}", found=error.found,
                             expected=error.expected) from error

    cdef Chunk retained(self, uint64_t id):
        """`look`, for ids between floor and head: missing is damage, or a view of a log that was trimmed since: None."""
        cdef Chunk c = self.look(id)
        if c is None and self._log._closed != IS_READONLY:
            raise CorruptLog(where=f"session {self.name!r}", found="no segment", expected=f"id {id}")
        return c

    cdef Chunk find(self, uint64_t id):
        """`look`, for ids that are promised: Overrun when gone below the floor, CorruptLog otherwise."""
        cdef Chunk c = self.look(id)
        if c is None:
            self.settle()
            # A read-only view of a live log is of its opening: the writer may have trimmed since.
            if id < self._floor or self.pub.state & State.WAS_REAPED or self._log._closed == IS_READONLY:
                raise Overrun(self.verdict_at(id - 1))
            raise CorruptLog(where=f"session {self.name!r}", found="no segment", expected=f"id {id}")
        return c

    cdef uint32_t tag_at(self, uint64_t id) except? 0:
        """tag(id), for floor - 1 <= id <= assigned."""
        cdef Chunk c
        if id == self.assigned:
            return self.tag
        if id == self.base:
            return self.base_tag
        if id == 0:
            return tag_zero(self.epoch)
        if id > self.base:
            c = chunk_of(self.ring, id)
            return c.tag_at(id)
        return self._log._store.tag(self._number, id)

    cdef Verdict judge(self, object cursor, bint whole):
        """The verdict. `whole`: also the tokens of an integer cursor, which may ask the store."""
        cdef uint64_t floor
        while True:
            floor = self._floor
            try:
                return self.judge_once(cursor, whole)
            except CorruptLog:
                if self._floor == floor:
                    raise  # else the events went while their tags were looked up: judge again

    cdef Verdict judge_once(self, object cursor, bint whole):
        cdef Asked asked
        cdef Window w
        cdef Code code
        cdef Verdict v
        cdef uint32_t tag = 0
        if self._log._closed:
            self._log.guard()
        parse_cursor(cursor, &asked)
        self.settle()
        self.used = self._log._tick
        w.epoch = self.epoch
        w.floor = self._floor
        w.head = self.pub.head
        w.state = self.pub.state
        code = judge_window(&w, &asked)
        if code == Code.NEED_TAG:
            tag = self.tag_at(asked.id)
            if tag != asked.tag:
                code = Code.FORKED
            else:
                code = Code.AT_HEAD if asked.id == w.head else Code.RESUMABLE
        v = new_verdict(self.name, &w, &asked, code, self._log._on_disk)
        if code == Code.RESUMABLE or code == Code.AT_HEAD:
            if whole:
                v.cursor_tag = tag if asked.form == 2 else self.tag_at(asked.id)
                v.head_tag = self.tag_at(w.head)
            else:
                v.source = self
            if w.state & State.ENDED:
                v.last_reason = self.last_reason
        else:
            v.last_reason = self.last_reason
            if code == Code.BELOW_FLOOR or code == Code.FORKED or (code == Code.MALFORMED and w.state == State.BORN):
                v.floor_tag = self.tag_at(w.floor - 1)
        return v

    def judge_in_memory(self, cursor):
        """The verdict, or None where a tag would have to be read from the store."""
        cdef Asked asked
        if self._log._on_disk and self.limit_bytes | <uint64_t>self.limit_age_ns and self._floor <= self.base:
            return None  # settling may read the store
        parse_cursor(cursor, &asked)
        if asked.form != 2 or asked.id >= self.base or asked.epoch != self.epoch:
            return self.judge(cursor, False)
        return None

    cdef Verdict verdict_at(self, uint64_t id):
        """The verdict on one of our own positions: for Overrun."""
        cdef Asked asked
        cdef Window w
        cdef Code code
        cdef Verdict v
        memset(&asked, 0, sizeof(Asked))
        asked.form = 1
        asked.id = id
        w.epoch = self.epoch
        w.floor = self._floor
        w.head = self.pub.head
        w.state = self.pub.state
        code = judge_window(&w, &asked)
        v = new_verdict(self.name, &w, &asked, code, self._log._on_disk)
        v.last_reason = self.last_reason
        if code == Code.BELOW_FLOOR or code == Code.FORKED:
            v.floor_tag = self.tag_at(w.floor - 1)
        return v

    def check(self, cursor=None):
        """Can a reader replay from `cursor`? See Log.check."""
        return self.judge(cursor, False)

    def resume(self, cursor=None):
        """Verdict and reservation in one step: a Replay up to the head of now, or NotResumable."""
        cdef Replay r = Replay.__new__(Replay)
        r.start(self, cursor)
        return r

    def replay(self, cursor=None):
        """The same as resume."""
        return self.resume(cursor)

    def follow(self, cursor=None, *, timeout_s=None, until=None):
        """Replay, then live, without a gap: a Follow. NotResumable here, not at the first event.

        `timeout_s`: TimeoutError when no event came for so long (the Follow stays usable); `until`: the last id
        to deliver.
        """
        cdef Follow f = Follow.__new__(Follow)
        f.start(self, cursor)
        f.timeout_s = timeout_s
        f.end = NEVER if until is None else <uint64_t>until
        return f

    def wait_durable(self, id, timeout=None):
        """Wait until `id` is visible (and in `sync` mode durable). TimeoutError."""
        cdef int64_t deadline = deadline_of(timeout)
        cdef uint64_t wanted = id
        while rl_load64(&self.pub.head) < wanted:
            self._log.guard()
            if wanted > self.assigned:
                raise ValueError(f"id {id} is not assigned: the last one is {self.assigned}")
            if self._log._journal.is_poisoned():
                _raise_outcome(self._log, OUT_POISONED)
            self._log._journal.nudge()
            if not self.wait_moved(wanted - 1, deadline):
                raise TimeoutError(f"id {id} is not durable after {timeout} s; head is {self.pub.head}")
        return None

    cdef int wait_moved(self, uint64_t seen_head, int64_t deadline) except -1:
        """Sleep until the head is past `seen_head` or something else was published; 0: deadline passed."""
        cdef uint32_t seen
        cdef bint moved = True
        rl_add(&self.pub.waiters, 1)
        try:
            seen = rl_load(&self.pub.wake)
            if rl_load64(&self.pub.head) <= seen_head:
                moved = sleep_on(&self.pub.wake, seen, deadline)
        finally:
            rl_add(&self.pub.waiters, <uint32_t>-1)
        return moved

    def stats(self):
        """Numbers of this session: floor, head; events, bytes and age with their limits (`_max`, None: none); the
        rate over the window (events per second, None when it takes no time); memory."""
        cdef uint64_t head, cum
        cdef Chunk first, last
        cdef double span = 0
        self.settle()
        head = self.pub.head
        first = self.look(self._floor) if self._floor <= head else None
        last = self.look(head) if self._floor <= head else None
        bytes = span_s = rate = None
        if first is not None and last is not None:
            bytes = last.cum_at(head) - first.cum_at(self._floor - 1)
            span = (last.index[head - last.first].time_ns - first.index[self._floor - first.first].time_ns) / 1e9
            span_s = span
            rate = (head - self._floor) / span if span > 0 else None
        return {"name": self.name, "state": self.state, "floor": self._floor, "head": head,
                "events": head + 1 - self._floor, "events_max": self.limit_events or None, "bytes": bytes or 0,
                "bytes_max": self.limit_bytes or None,
                "age_s_max": self.limit_age_ns / 1e9 if self.limit_age_ns else None,
                "window_s": span_s, "events_per_s": rate,
                "memory_bytes": sum([(<Chunk>c).memory() for c in self.ring]) + SESSION_BYTES,
                "pins": len(self.pins) if self.pins is not None else 0}

    # -- for the checkpoint and the log (under the GIL)

    cdef void mark(self) except *:
        if not self.dirty and self._log._on_disk:  # in memory nothing is ever check-pointed
            self.dirty = True
            self._log._dirty.append(self)

    cdef void cut(self):
        """Forget what was never visible: its batch was refused."""
        cdef Chunk c
        cdef uint64_t head = self.pub.head
        cdef size_t before
        self.ending = (self.pub.state & State.ENDED) != 0
        self.reaping = (self.pub.state & State.WAS_REAPED) != 0
        if not self.pub.state & State.BORN:
            # Its creation is not there, so nothing that is appended through this handle could be either.
            self.refused = True
            if self._log._sessions.get(self.name) is self:
                if self.former is not None:
                    self._log._sessions[self.name] = self.former
                else:
                    del self._log._sessions[self.name]
            return
        if self.keys is not None:
            self.keys = {k: v for k, v in self.keys.items() if v[0] <= head}
            self.new_keys = [k for k in self.new_keys if k[1] <= head]
        while self.ring:
            c = <Chunk>self.ring[len(self.ring) - 1]
            if c.first <= head:
                before = c.memory()
                c.cut(head)
                break
            self._log._memory_used -= c.memory()
            self.ring.pop()
        self.assigned = head
        if self.ring:
            c = <Chunk>self.ring[len(self.ring) - 1]
            self.tag = c.tag_at(head)
            self.cum = c.cum_at(head)
        else:
            self.tag = self.base_tag
            self.cum = self.base_cum

    def _publish_born(self):
        """Memory mode and recovery: the session is there."""
        self._log._hub.publish(&self.pub, 0, 0, State.BORN)

    def _replaces(self, former):
        """The reaped session of the same name: current again if this creation is refused."""
        self.former = former

    def _stands_for(self, session):
        """Is `session` the one that the name stands for on disk, as long as this one is not born?"""
        if self is session:
            return True
        return not self.pub.state & State.BORN and self.former is session

    def _last_seq(self):
        return self.last_seq

    def _refused(self):
        return self.refused

    def _born(self):
        return (self.pub.state & State.BORN) != 0

    def _reaped(self):
        return self.reaping

    def _control(self, int type, uint64_t first, bytes body, uint64_t trim, uint32_t state, int64_t deadline):
        return self.control(type, first, body, trim, state, deadline)

    def _forget_events(self):
        """A reaped session keeps nothing in memory."""
        cdef Chunk c
        for c in self.ring:
            self._log._memory_used -= c.memory()
        self.ring = []
        self.base = self.assigned
        self.base_tag = self.tag
        self.base_cum = self.cum
        self.keys = None
        self.new_keys = None

    def _limits(self, events, bytes, age_ns):
        self.own_limits = True
        self.limit_events = events
        self.limit_bytes = bytes
        self.limit_age_ns = age_ns
        self.settled = NEVER
        self.floor_expires = 0

    def _set_owner_slot(self, fence):
        self.fence = fence

    def _recover_events(self, uint64_t floor, Chunk run, key):
        """Recovery: a record's events, of which some may be stored already."""
        cdef uint64_t last = run.first + run.count - 1
        cdef Chunk c
        if last <= self.assigned:
            return
        if run.first != self.assigned + 1 or run.tag_before != self.tag:
            raise CorruptLog(where=f"session {self.name!r}", found=f"a journal record at id {run.first}",
                             expected=f"id {self.assigned + 1} after tag {self.tag:08x}")
        self.ring.append(run)
        self._log._memory_used += run.memory()
        self.assigned = last
        self.tag = run.tag_at(last)
        self.cum = run.cum_at(last)
        self.last_time = max(self.last_time, run.index[run.count - 1].time_ns)
        if key:
            self.remember_key(key, last, 0)
        if floor > self.pub.trim:
            self.pub.trim = floor
        self._log._hub.publish(&self.pub, last, 0, 0)
        self.mark()

    def _recover_floor(self, uint64_t floor):
        if floor > self.pub.trim:
            self.pub.trim = floor
        self.mark()

    def _recover_state(self, uint32_t state, str reason, int64_t time_ns):
        self._log._hub.publish(&self.pub, 0, 0, state)
        if state & State.ENDED:
            self.ending = True
        if state & State.WAS_REAPED:
            self.reaping = True
            self.changed_ns = time_ns
        self.last_reason = reason
        self.mark()

    def _next_run(self):
        """Recovery: where the next record of this session must begin: (cum, last id)."""
        return self.cum, self.assigned

    def _export(self):
        """A consistent picture for one checkpoint: (head, facts, segments, low, keys).

        segments: [(first id, last id, bytes)] to put; facts: what the row holds; keys: [(key, id)].
        """
        cdef uint64_t head, low, start, stored
        cdef Chunk c
        cdef list segments = []
        cdef list keys = []
        self.settle()
        head = self.pub.head
        low = self.low()
        start = self.persisted + 1
        if self.pub.state & State.WAS_REAPED or not self.pub.state & State.BORN:
            start = head + 1
        elif self.segment_first > self.base and self.segment_first < start and start <= head:
            # Write the newest stored segment again with what follows, while that at most doubles it.
            c = chunk_of(self.ring, start - 1)
            stored = c.cum_at(start - 1) - chunk_of(self.ring, self.segment_first).cum_at(self.segment_first - 1)
            c = chunk_of(self.ring, head)
            if stored < SEGMENT_SMALL or 2 * (c.cum_at(head) - chunk_of(self.ring, start).cum_at(start - 1)) >= stored:
                start = self.segment_first
        if start < low and start > self.persisted:
            start = low
        if start <= head:
            segments = build_segments(self.ring, start, head)
        if self.new_keys:
            keys = [k for k in self.new_keys if self._floor <= k[1] <= head]
            self.new_keys = [k for k in self.new_keys if k[1] > head]
        facts = (self._number, self.epoch, self.pub.state, head, self.tag_at(head), self.cum_of(head), self._floor,
                 0 if self.pub.state & State.WAS_REAPED else self.tag_at(self._floor - 1), self.floor_cum,
                 self.limit_events, self.limit_bytes, self.limit_age_ns, self.own_limits, self._log._generation(), self._meta, self.last_reason,
                 self.changed_ns if self.reaping else self.last_time, self.fence,
                 self.floor_expires if self._floor <= head else 0)
        return head, facts, segments, low, keys

    cdef uint64_t cum_of(self, uint64_t id) except? 0:
        if id == self.assigned:
            return self.cum
        if id == self.base:
            return self.base_cum
        return chunk_of(self.ring, id).cum_at(id)

    def _exported(self, uint64_t head, segment_first, keys):
        """The checkpoint with that picture is durable."""
        if head > self.persisted:
            self.persisted = head
        if segment_first is not None:
            self.segment_first = segment_first
        self.checkpointed = True
        self.former = None
        if self.keys is not None:
            for key, id in keys:
                if self.keys.get(key, (0, 0))[0] == id:
                    del self.keys[key]
        if self.pub.state & State.WAS_REAPED and not self.dirty:
            self._forget_events()

    def _export_failed(self, keys):
        if keys:
            self.new_keys = keys + (self.new_keys or [])
        self.mark()

    def _stored(self):
        """Its row is in the store."""
        return self.checkpointed

    def _idle(self):
        """Nothing but the store's copy would be lost if it left memory: (last use)."""
        return self.used

    cdef void evict(self, bint whole) except *:
        """Let stored chunks leave memory; `whole`: the newest too."""
        cdef Chunk c
        while self.ring:
            c = <Chunk>self.ring[0]
            if c.first + c.count - 1 > self.persisted or (len(self.ring) == 1 and not whole):
                return
            self.shed(c)

    cdef bint may_leave(self) noexcept:
        """No state beyond the store's, no reader asleep, no promise."""
        return (not self.dirty and not self.ring and self.checkpointed and self.pub.waiters == 0 and self.pub.bells == 0
                and self.pins is None and self.assigned == self.persisted and not self.keys)

    def _listen(self, Bell_bit, bint on):
        """Event loops: be told of this session's publications."""
        if on:
            rl_or(&self.pub.bells, 1u << <uint32_t>Bell_bit)
        else:
            rl_and(&self.pub.bells, ~(1u << <uint32_t>Bell_bit))

    def _wake(self):
        """Everybody who waits on this session looks again."""
        rl_add(&self.pub.wake, 1)
        if rl_load(&self.pub.waiters):
            rl_futex_wake(&self.pub.wake, INT_MAX)

    def _assigned(self):
        return self.assigned

    def _age_out(self, int64_t cutoff):
        """Events up to `cutoff` aged under limits that are not in force any more."""
        cdef uint64_t floor
        if not cutoff or self.own_limits:
            return
        self.settle()
        if self._floor <= self.pub.head:
            floor = self.floor_by_time(self._floor, self.pub.head, cutoff)
            if floor > self._floor:
                self.raise_floor(floor)
            self.floor_expires = 0

    def _chunks(self):
        """The chunks in memory, oldest first, for tools and tests."""
        return list(self.ring)

    def _in_flight(self):
        """A record of it is queued: what it says is not in `pub` yet. Ask before an export, not after."""
        return self._log._journal is not None and self.last_seq > self._log._journal.seq_done()

    def _tag_or_none(self, uint64_t id):
        """tag(id), None when it is known no more."""
        try:
            return self.tag_at(id)
        except CorruptLog:
            return None

    def _persisted(self):
        return self.persisted

    def _stored_tag(self):
        return self.tag_at(self.persisted)

    def _changed_ns(self):
        return self.changed_ns

    def _raise_reaped(self):
        self.raise_reaped()

    def _touch(self):
        """Its row must be written again."""
        self.mark()


cdef bint same_content(Chunk c, uint64_t id, Prepared* p) except -1:
    cdef uint32_t i = <uint32_t>(id - c.first)
    cdef uint32_t flags = c.index[i].end_flags >> END_BITS
    cdef const uint8_t* text = c.text + c.start(i)
    cdef size_t n = c.stop(i) - c.start(i)
    cdef bytes payload = PyBytes_FromStringAndSize(<const char*>p.payload, p.payload_bytes)
    cdef bytes kind = PyBytes_FromStringAndSize(<const char*>p.kind, p.kind_bytes)
    return (flags & 3) == p.type and text_kind(text, n, flags).encode() == kind and text_stored(text, n, flags) == payload


cdef void write_record(uint8_t* at, size_t n, int type, Session s, uint64_t first, uint32_t count, bytes body, bytes key,
                       uint32_t tag) noexcept:
    """A control record: head, body, zeros to `n`."""
    cdef RecordHead* r = <RecordHead*>at
    memset(at, 0, n)
    r.bytes = <uint32_t>n
    r.type = <uint8_t>type
    r.number = s._number
    r.first = first
    r.floor = s._floor
    r.fence = s.fence
    r.text_bytes = <uint32_t>len(body)
    r.tag_before = tag
    memcpy(at + sizeof(RecordHead), PyBytes_AS_STRING(body), len(body))


cdef object join_text(list parts, size_t n):
    """The text between the offsets of each (chunk, from, to), n bytes in all, copied once."""
    cdef bytes out = PyBytes_FromStringAndSize(NULL, n)
    cdef char* at = PyBytes_AS_STRING(out)
    cdef Chunk c
    cdef uint32_t a, b
    for c, a, b in parts:
        memcpy(at, c.text + a, b - a)
        at += b - a
    return out


# ---- readers -------------------------------------------------------------------------------------------


cdef class Replay:
    """A finite reading: from a cursor to the head at the time of the verdict. Iterator and context manager.

    One loop, no queue: the position and the session are all its state. Raises Overrun where retention passed
    the promise (`replay_grace_s`), never skips.
    """

    cdef Session session
    cdef readonly Verdict verdict
    cdef uint64_t pos
    cdef uint64_t end
    cdef Chunk chunk
    cdef Pin held
    cdef bint closed

    def __init__(self):
        raise TypeError("readers come from resume(), replay() and follow()")

    cdef int start(self, Session session, object cursor) except -1:
        # Reserved before it is judged: between a verdict and a later reservation a trim could fall.
        self.held = session.pin(0)
        self.session = session
        self.verdict = session.judge(cursor, True)
        if not self.verdict.ok:
            self.held.expires_ns = 0
            raise NotResumable(self.verdict)
        self.pos = self.held.pos = self.verdict.asked.id
        self.end = self.verdict.w.head
        if self.pos == self.end:
            self.held.expires_ns = 0
            self.held = None
        return 0

    def __dealloc__(self):
        if self.held is not None:
            self.held.expires_ns = 0

    cdef int load(self) except -1:
        """The chunk with the event after the position; Overrun when it is neither retained nor promised."""
        cdef Session s = self.session
        if s._log._closed:
            s._log.guard()
        s.settle()
        if self.pos + 1 < s._floor or s.pub.state & State.WAS_REAPED:
            if self.held is None or self.held.expires_ns <= s._log.now() or s.pub.state & State.WAS_REAPED:
                raise Overrun(s.verdict_at(self.pos))
        s.used = s._log._tick
        self.chunk = s.find(self.pos + 1)
        return 0

    cdef inline int ready(self) except -1:
        cdef Session s = self.session
        if s.pub.head != s.settled or s.limit_age_ns or s.pub.trim > s._floor:
            s.settle()
        if self.chunk is None or self.pos + 1 >= self.chunk.first + self.chunk.count or self.pos + 1 < self.chunk.first \
                or self.pos + 1 < s._floor or s.pub.state & State.WAS_REAPED:
            self.load()
        if self.held is not None:
            self.held.pos = self.pos
        return 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.closed or self.pos >= self.end:
            self.done()
            raise StopIteration
        self.ready()
        self.pos += 1
        return event_at(self.chunk, self.pos)

    cdef object gather(self, uint64_t last, size_t bytes_max):
        """SSE text of the events after the position up to `last`, about bytes_max (one event at least)."""
        cdef list parts = []
        cdef size_t n = 0
        cdef uint64_t to
        cdef uint32_t a
        cdef Chunk c
        while self.pos < last and n < bytes_max:
            self.ready()
            c = self.chunk
            to = min(last, c.first + c.count - 1)
            a = c.start(<uint32_t>(self.pos + 1 - c.first))
            while to > self.pos + 1 and n + c.stop(<uint32_t>(to - c.first)) - a > bytes_max:
                to = self.pos + 1 + (to - self.pos - 1) // 2
            parts.append((c, a, c.stop(<uint32_t>(to - c.first))))
            n += c.stop(<uint32_t>(to - c.first)) - a
            self.pos = to
        return join_text(parts, n)

    def frames(self, chunk_bytes_max=FRAMES_BYTES):
        """The same events as SSE bytes, in few large chunks of about `chunk_bytes_max`."""
        cdef bytes part
        if chunk_bytes_max < 1:
            raise ValueError(f"chunk_bytes_max={chunk_bytes_max}: at least 1")
        while not self.closed and self.pos < self.end:
            part = self.gather(self.end, chunk_bytes_max)
            if self.pos >= self.end:
                self.done()
            yield part
        self.done()

    def take_frames(self, bytes_max=FRAMES_BYTES) -> bytes:
        """SSE text of about `bytes_max`, b"" when everything was delivered."""
        if bytes_max < 1:
            raise ValueError(f"bytes_max={bytes_max}: at least 1")
        if self.closed or self.pos >= self.end:
            self.done()
            return b""
        return self.gather(self.end, bytes_max)

    def in_memory(self) -> bool:
        """What comes next needs nothing from the store."""
        return self.pos >= self.session.base or self.pos >= min(self.end, rl_load64(&self.session.pub.head))

    cdef int done(self) except -1:
        if self.held is not None:
            self.held.expires_ns = 0
            self.held = None
        self.chunk = None
        return 0

    @property
    def cursor(self) -> str:
        """The token of the last event delivered: where to resume."""
        return token_text(self.session.hex16, self.pos, self.session.tag_at(self.pos), False)

    @property
    def position(self) -> int:
        """The id of the last event delivered."""
        return self.pos

    def close(self):
        """Give the reservation back; the iteration ends. Idempotent, from any thread."""
        self.closed = True
        self.done()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


cdef class Follow(Replay):
    """A replay that goes on with what comes. Ends when the session has ended; Overrun when this reader fell off.

    TimeoutError leaves it usable; `close` from another thread ends the iteration.
    """

    cdef object timeout_s
    cdef str last_token

    cdef int start(self, Session session, object cursor) except -1:
        Replay.start(self, session, cursor)
        self.last_token = self.verdict.from_token
        return 0

    @property
    def head(self) -> int:
        """The session's head."""
        return rl_load64(&self.session.pub.head)

    @property
    def head_token(self) -> str:
        """The token of the session's head."""
        return self.session.cursor

    @property
    def caught_up(self) -> bool:
        """Everything that is visible was delivered."""
        return self.pos >= min(rl_load64(&self.session.pub.head), self.end)

    @property
    def ended(self) -> bool:
        """The session has ended and its last event was delivered."""
        return (self.session.pub.state & State.ENDED) != 0 and self.pos >= rl_load64(&self.session.pub.head)

    @property
    def finished(self) -> bool:
        """Nothing more will be delivered."""
        return self.closed or self.ended or self.pos >= self.end

    @property
    def cursor(self) -> str:
        """The token of the last event delivered: where to resume. Also after the events are gone."""
        self.note()
        return self.last_token

    cdef int note(self) except -1:
        """Keep the token of the position while it can be told: retention may pass it."""
        if self.chunk is not None and self.chunk.first <= self.pos + 1 <= self.chunk.first + self.chunk.count:
            self.last_token = token_text(self.session.hex16, self.pos, self.chunk.tag_at(self.pos), False)
        return 0

    cdef int check_lost(self) except -1:
        """At the head of a session that is gone, nothing will ever come: say so."""
        if self.session._log._closed:
            self.session._log.guard()
        if self.session.pub.state & State.WAS_REAPED:
            raise Overrun(self.session.verdict_at(self.pos))
        return 0

    cdef int next_ready(self, int64_t deadline) except -1:
        """1: there is an event after the position; 0: the reading is over; TimeoutError."""
        cdef uint64_t head
        while True:
            head = rl_load64(&self.session.pub.head)
            if self.closed or self.pos >= self.end:
                return 0
            if self.pos < head:
                return 1
            self.caught()
            if self.ended:
                return 0
            self.check_lost()
            if not self.session.wait_moved(self.pos, deadline):
                raise TimeoutError(f"no event after id {self.pos} for {self.timeout_s} s; the reader is still usable")

    cdef int caught(self) except -1:
        """The promise is kept; from here on retention may pass this reader."""
        if self.held is not None:
            self.held.expires_ns = 0
            self.held = None
        return 0

    def __next__(self):
        if not self.next_ready(deadline_of(self.timeout_s)):
            self.note()
            raise StopIteration
        self.ready()
        self.pos += 1
        return event_at(self.chunk, self.pos)

    def take(self, bytes_max=FRAMES_BYTES) -> bytes:
        """Without waiting: SSE text of the next events, b"" when caught up. Overrun; LogClosed."""
        cdef uint64_t last = min(rl_load64(&self.session.pub.head), self.end)
        cdef object out
        if self.closed:
            return b""
        if self.pos >= last:
            self.caught()
            self.check_lost()
            return b""
        out = self.gather(last, bytes_max)
        self.note()
        if self.pos >= last:
            self.caught()
        return out

    def frames(self, chunk_bytes_max=FRAMES_BYTES):
        """The same as SSE bytes; waits for events like the iteration."""
        while self.next_ready(deadline_of(self.timeout_s)):
            yield self.take(chunk_bytes_max)

    def next_nowait(self):
        """The next event, None when caught up. Overrun; LogClosed."""
        if self.closed or self.pos >= min(rl_load64(&self.session.pub.head), self.end):
            self.caught()
            if not self.closed:
                self.check_lost()
            return None
        self.ready()
        self.pos += 1
        return event_at(self.chunk, self.pos)

    def is_lost(self) -> bool:
        """The session was reaped."""
        return (self.session.pub.state & State.WAS_REAPED) != 0

    def close(self):
        """End the iteration, also in another thread that waits. Idempotent."""
        self.note()
        self.closed = True
        self.caught()
        self.session._wake()
