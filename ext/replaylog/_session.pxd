"""Contract of the hot half of the engine: a log's shared state, a session, its readers and tickets."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from replaylog._frame cimport Shape
from replaylog._journal cimport Hub, Journal, Published
from replaylog._judge cimport Asked, Verdict, Window
from replaylog._ring cimport Chunk

cdef struct Prepared:          # one event on its way in; pointers into objects that the caller holds
    const uint8_t* payload
    size_t payload_bytes
    const uint8_t* kind
    size_t kind_bytes
    uint8_t type
    Shape shape

cdef enum Closed:
    IS_OPEN = 0
    IS_CLOSED = 1
    IS_FORKED = 2
    IS_READONLY = 3

cdef class LogCore:
    cdef readonly dict _sessions        # name -> Session: the ones in memory
    cdef readonly Journal _journal      # None in memory mode
    cdef readonly Hub _hub
    cdef readonly object _store
    cdef tuple _default_limits          # (events, bytes, age_ns) of sessions without their own
    cdef object _clock                  # None: the machine's
    cdef int64_t _clock_offset
    cdef int64_t _time_high             # no event is later
    cdef int64_t _last_now
    cdef readonly bint _on_disk
    cdef int _closed
    cdef bint _quota_full
    cdef readonly size_t memory_bytes
    cdef readonly size_t event_bytes_max
    cdef readonly int64_t _grace_ns
    cdef size_t _memory_used
    cdef size_t _memory_soft            # past this an append asks for room
    cdef int64_t _dirty_bytes           # text appended since the last checkpoint took it
    cdef int64_t _dirty_soft            # past this an append asks for a checkpoint
    cdef bint _attached
    cdef list _dirty                    # sessions with something for the next checkpoint
    cdef uint64_t _tick
    cdef uint64_t _appended

    cdef int64_t now(self) except -1
    cdef int guard(self) except -1
    cdef int usable(self) except -1
    cdef int admit(self, size_t n, int64_t deadline, bint wait) except -1
    cdef int settle_outcome(self, uint64_t seq, int64_t deadline, object waited) except -1

cdef class Pin:
    cdef uint64_t pos
    cdef int64_t expires_ns

cdef class Session:
    cdef Published pub
    cdef readonly LogCore _log
    cdef readonly str name
    cdef readonly uint64_t epoch
    cdef readonly uint64_t _number
    cdef uint64_t assigned              # last id given out; pub.head is what readers see
    cdef uint64_t cum                   # text bytes of all events up to `assigned`
    cdef uint64_t _floor
    cdef uint64_t settled               # head that _floor was computed for
    cdef uint64_t floor_cum             # text bytes of all events before _floor; valid with a bytes limit
    cdef int64_t floor_expires          # when the event at _floor passes age_ns; 0: not known
    cdef list ring                      # chunks, contiguous, up to `assigned`
    cdef uint64_t base                  # ring holds base + 1 ..; tag(base) and cum(base) follow
    cdef uint64_t base_cum
    cdef uint32_t base_tag
    cdef uint32_t tag                   # tag(assigned)
    cdef uint64_t limit_events
    cdef uint64_t limit_bytes
    cdef int64_t limit_age_ns
    cdef uint64_t persisted             # everything up to here is in the store
    cdef uint64_t segment_first         # first id of the newest stored segment, 0: none to extend
    cdef uint64_t fence
    cdef uint64_t last_seq              # the batch with its newest record
    cdef uint64_t used                  # tick of the last use
    cdef int64_t last_time
    cdef bint ending
    cdef bint refused                   # its creation found no room: this handle is of nothing
    cdef object former                  # the reaped session of the same name, until this one is stored
    cdef bint reaping
    cdef bint dirty
    cdef bint own_limits                # given to create(); otherwise the log's
    cdef bint checkpointed              # its row is in the store
    cdef uint8_t hex16[16]
    cdef dict keys                      # key -> (id, seq), those that the store may not have
    cdef list new_keys
    cdef list pins
    cdef object _meta
    cdef public int64_t _expires_ns     # where its row stands in `expiry`
    cdef str last_reason
    cdef int64_t changed_ns
    cdef object __weakref__

    cdef uint64_t put(self, Prepared* items, uint32_t n, bytes key, bytes end, object expect_head, int64_t deadline,
                      bint wait, uint64_t* seq) except 0
    cdef uint64_t append_one(self, object payload, object kind, object key, object expect_head, int64_t deadline,
                             bint wait, uint64_t* seq) except 0
    cdef int encode(self, Prepared* items, uint32_t n, uint8_t* at, int64_t now, bytes key) except -1
    cdef uint64_t _end(self, object payload, object kind, str reason, int64_t deadline) except? 0
    cdef int check_open(self, object expect_head) except -1
    cdef int raise_reaped(self) except -1
    cdef uint64_t known_key(self, bytes key, Prepared* p, uint64_t* seq) except? 0
    cdef int remember_key(self, bytes key, uint64_t id, uint64_t seq) except -1
    cdef void shed(self, Chunk c) except *
    cdef void evict(self, bint whole) except *
    cdef bint may_leave(self) noexcept
    cdef int wait_moved(self, uint64_t seen_head, int64_t deadline) except -1
    cdef uint64_t cum_of(self, uint64_t id) except? 0
    cdef Chunk room_for(self, size_t n)
    cdef int settle(self) except -1
    cdef uint64_t floor_at(self, uint64_t head, uint64_t end, uint64_t* floor_cum) except 0
    cdef uint64_t floor_among_new(self, uint64_t floor) noexcept
    cdef uint64_t floor_by_bytes(self, uint64_t floor, uint64_t head, uint64_t end, uint64_t* floor_cum) except 0
    cdef uint64_t floor_by_age(self, uint64_t floor, uint64_t head) except 0
    cdef uint64_t floor_by_time(self, uint64_t floor, uint64_t head, int64_t cutoff) except 0
    cdef int raise_floor(self, uint64_t floor) except -1
    cdef void drop(self) except *
    cdef uint64_t low(self) except 0
    cdef Chunk find(self, uint64_t id)
    cdef Chunk retained(self, uint64_t id)
    cdef Chunk look(self, uint64_t id)
    cdef uint32_t tag_at(self, uint64_t id) except? 0
    cdef Verdict judge(self, object cursor, bint whole)
    cdef Verdict judge_once(self, object cursor, bint whole)
    cdef Verdict verdict_at(self, uint64_t id)
    cdef Pin pin(self, uint64_t pos)
    cdef void mark(self) except *
    cdef void cut(self)
    cdef uint64_t control(self, int type, uint64_t first, bytes body, uint64_t trim, uint32_t state, int64_t deadline) except 0
