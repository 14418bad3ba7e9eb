"""Contract of the journal: batches of records, group commit, publication. One mutex, no GIL in the flush."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass

cdef enum RecordType:      # on disk; numbered by hand, never renumbered, zero reserved
    REC_EVENTS = 1
    REC_CREATE = 2
    REC_END = 3
    REC_REAP = 4
    REC_TRIM = 5
    REC_LIMITS = 6

cdef packed struct RecordHead:   # 56 bytes; then count index entries, text, key, zeros to 8
    uint32_t bytes         # the whole record
    uint8_t type
    uint8_t flags
    unsigned short key_bytes
    uint64_t number        # the session's number
    uint64_t first         # first id; TRIM: the new floor
    uint64_t floor
    uint64_t fence
    uint32_t count         # events
    uint32_t text_bytes
    uint32_t tag_before
    uint32_t reserved

# What readers may see of a session. Written by the flushing thread without the GIL.
cdef struct Published:
    uint64_t head
    uint64_t trim          # highest explicit floor that is durable
    uint32_t state         # State bits
    uint32_t wake          # futex word, moves with every publication
    uint32_t waiters       # threads asleep on `wake`
    uint32_t bells         # bit b: bell b wants to know
    uint32_t queued        # bit b: stands in bell b's queue
    uint32_t reserved
    void* owner            # the Session, borrowed

cdef struct Post:          # one publication of a batch
    Published* pub
    uint64_t head
    uint64_t trim
    uint32_t state

cdef struct Batch:
    uint8_t* buf           # 64 bytes of header, then records
    size_t used
    size_t cap
    Post* posts
    uint32_t n_posts
    uint32_t cap_posts
    uint32_t records
    uint64_t seq           # number in this process; the block's number is given when it is written

cdef enum Outcome:
    OUT_DURABLE = 0
    OUT_PENDING = 1
    OUT_UNKNOWN = 2
    OUT_POISONED = 3
    OUT_FULL = 4
    OUT_CLOSED = 5

cdef enum:
    BELLS_MAX = 32
    EXTENTS_MAX = 4096

cdef struct Extent:
    int fd
    uint32_t number
    uint64_t last_block    # highest block in it
    bint dirty             # written since the last fdatasync

cdef struct BellCore:
    uint32_t bit
    int fd
    uint32_t armed
    uint32_t word
    Published** queue
    uint32_t n
    uint32_t cap

cdef class Bell:
    cdef BellCore core
    cdef Hub hub

    cdef void _leave(self) noexcept

cdef class Hub:
    cdef pthread_mutex_t mutex
    cdef BellCore* bells[BELLS_MAX]
    cdef uint32_t listening    # bells that want every session
    cdef uint32_t used

    cdef void publish(self, Published* pub, uint64_t head, uint64_t trim, uint32_t state) noexcept nogil
    cdef void ring(self, bint always) noexcept nogil
    cdef void forget(self, Published* pub) noexcept nogil

cdef class Journal:
    cdef pthread_mutex_t mutex
    cdef readonly Hub hub
    cdef Batch a
    cdef Batch b
    cdef Batch* pending
    cdef Batch* spare
    cdef bint busy
    cdef readonly bint relaxed
    cdef readonly bint broken
    cdef bint stop             # no more flushes by the background thread
    cdef bint ended            # no more flushes at all
    cdef bint kicked           # the background thread was told
    cdef uint32_t word[2]      # futex words by parity of a batch's seq
    cdef uint32_t sleepers[2]
    cdef uint32_t kick         # futex word of the background thread
    cdef uint32_t room         # futex word: a batch was taken, or an extent recycled
    cdef uint64_t completed    # highest seq with an outcome
    cdef uint64_t unknown_seq  # the batch whose flush failed; 0: none
    cdef uint64_t* full        # pairs lo, hi of seqs that failed for want of space
    cdef uint32_t n_full
    cdef uint32_t cap_full
    cdef readonly bint rollback    # a batch was refused: cut the rings before the next append
    cdef readonly int error        # errno of the failure
    cdef bint lying            # tests: a canary
    cdef uint32_t never
    cdef readonly int inject       # errno for the next fdatasync (tests); negative: for the next pwrite
    # chain
    cdef readonly uint64_t incarnation
    cdef readonly uint64_t block       # number of the last block written
    cdef readonly uint64_t block_settled   # highest block that was posted
    cdef readonly uint64_t flushed     # highest block known flushed
    cdef uint32_t last_crc
    cdef uint32_t slot
    cdef int64_t time_high
    # extents
    cdef bytes directory
    cdef const char* directory_c
    cdef int mode
    cdef readonly int64_t extent_bytes
    cdef readonly uint32_t extents_max
    cdef Extent used_extents[EXTENTS_MAX]
    cdef uint32_t n_used
    cdef Extent ready_extents[EXTENTS_MAX]
    cdef uint32_t n_ready
    cdef uint32_t next_extent
    cdef int64_t offset            # in the newest used extent
    cdef readonly size_t batch_bytes_max
    cdef readonly size_t backlog_bytes
    cdef readonly size_t refused_at   # what was queued when `begin` last refused
    cdef readonly uint64_t bytes_written
    cdef readonly uint64_t flushes
    cdef int64_t since_checkpoint  # journal bytes not yet check-pointed

    cdef bint refuses(self) noexcept nogil
    cdef uint8_t* begin(self, size_t n) noexcept nogil
    cdef uint64_t commit(self, size_t n, Published* pub, uint64_t head, uint64_t trim, uint32_t state,
                         int64_t time_ns) noexcept nogil
    cdef uint64_t add(self, size_t n, Published* pub, uint64_t head, uint64_t trim, uint32_t state,
                      int64_t time_ns) noexcept nogil
    cdef void cancel(self) noexcept nogil
    cdef bint drive(self) noexcept nogil
    cdef Outcome outcome(self, uint64_t seq) noexcept nogil
    cdef int wait(self, uint64_t seq, int64_t deadline_ns, bint lead) except -1
    cdef int wait_room(self, int64_t deadline_ns) except -1
    cdef void wake_writer(self) noexcept nogil
    cdef void nudge(self) noexcept nogil
    cdef void _moved_on(self) noexcept nogil
    cdef int _flush_newest(self) noexcept nogil
    cdef void _fail(self, uint64_t seq, int rc, int stage) noexcept nogil

    cdef int _write(self, Batch* b) noexcept nogil
    cdef int _next_extent(self) noexcept nogil
    cdef void _post(self, Batch* b) noexcept nogil
    cdef void _finish(self, Batch* b, int rc, int stage) noexcept nogil

cdef bint sleep_on(uint32_t* word, uint32_t seen, int64_t deadline) except -1
