"""The journal of one process: one group commit = one contiguous block = one pwrite + one fdatasync.

Invariants:
1. Order, always: fdatasync, publication to readers, acknowledgement. (`relaxed`: pwrite in place of fdatasync.)
2. A block's header names its incarnation, its number, the CRC of the block before; recovery follows that chain.
3. One thread at a time flushes (`busy`), whichever got there: a waiting appender leads when nobody does, so a lone
   appender pays no hand-over; the background thread serves appends that nobody waits for.
4. After a failed fdatasync nothing is written any more. After a refused pwrite the batch is known to be absent and its
   block number is given to the next one.

Appenders hold the GIL and, from `begin` to `commit`, the mutex; the flush holds neither. Byte layout: FORMAT.md.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_CheckSignals
from cython cimport no_gc
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from replaylog._errors import CorruptLog
from replaylog._frame cimport crc32c

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_mutex_destroy(pthread_mutex_t*)

cdef extern from "native.h" nogil:
    int rl_futex_wait(uint32_t* word, uint32_t seen, int64_t timeout_ns)
    void rl_futex_wake(uint32_t* word, int count)
    int64_t rl_monotonic_ns()
    int rl_pwrite_all(int fd, const void* data, size_t n, int64_t at)
    int rl_fdatasync(int fd)
    int rl_make_extent(const char* path, int64_t n, int mode)
    int rl_ofd_lock(int fd, int64_t at)
    int rl_ofd_held(int fd, int64_t at)
    void rl_ofd_unlock(int fd, int64_t at)
    int64_t rl_fs_type(const char* path)
    uint32_t rl_load(uint32_t* p)
    uint64_t rl_load64 "rl_load"(uint64_t* p)
    void rl_store(uint32_t* p, uint32_t v)
    void rl_store64 "rl_store"(uint64_t* p, uint64_t v)
    uint32_t rl_add(uint32_t* p, uint32_t v)
    uint32_t rl_or(uint32_t* p, uint32_t v)
    uint32_t rl_and(uint32_t* p, uint32_t v)
    int INT_MAX

cdef extern from "<errno.h>" nogil:
    int errno
    int EINTR
    int ENOSPC
    int EDQUOT
    int EIO
    int ECANCELED

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    ssize_t write(int fd, const void* buf, size_t n)
    ssize_t read(int fd, void* buf, size_t n)

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int count, int flags)
    int EFD_CLOEXEC
    int EFD_NONBLOCK

cdef packed struct BlockHead:   # 64 bytes, at a multiple of 512
    uint32_t magic
    unsigned short version
    unsigned short slot
    uint64_t incarnation
    uint64_t block
    uint64_t flushed       # highest block known flushed when this one was written
    uint32_t last_crc      # header CRC of the block before, 0 for the first
    uint32_t body_bytes
    int64_t time_high      # no event up to here is later
    uint32_t records
    uint32_t reserved
    uint32_t body_crc      # seeded with the incarnation
    uint32_t head_crc      # over the 60 bytes before it

cdef uint32_t BLOCK_MAGIC = 0x424A4C52  # "RLJB"
cdef unsigned short BLOCK_VERSION = 1
cdef enum:
    ALIGN = 512
    BATCH_KEEP_BYTES = 4 << 20
    STAGE_WRITE = 0
    STAGE_FLUSH = 1
    SIGNAL_SLICE_NS = 500000000
    LYING_NS = 20000000


# ---- bells: how the flush tells event loops and watchers ----------------------------------------


cdef bint sleep_on(uint32_t* word, uint32_t seen, int64_t deadline) except -1:
    """Until *word != seen (True) or the deadline (False; negative: never). KeyboardInterrupt comes through."""
    cdef int64_t left = -1
    cdef int rc
    while rl_load(word) == seen:
        if deadline >= 0:
            left = deadline - rl_monotonic_ns()
            if left <= 0:
                return False
        with nogil:
            rc = rl_futex_wait(word, seen, left)
        if rc == EINTR:
            PyErr_CheckSignals()
    return True


@no_gc  # it only holds its hub, which holds nothing: the collector must not clear it before __dealloc__
cdef class Bell:
    """A queue of sessions that moved and an eventfd that says "look"; taken out of service by `close`."""

    def __cinit__(self, Hub hub, *, every=False):
        cdef uint32_t b
        self.hub = hub
        self.core.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.core.fd < 0:
            raise OSError(errno, "no file descriptor for a bell")
        pthread_mutex_lock(&hub.mutex)
        for b in range(BELLS_MAX):
            if not hub.used >> b & 1:
                hub.used |= 1u << b
                hub.bells[b] = &self.core
                self.core.bit = b
                if every:
                    rl_or(&hub.listening, 1u << b)
                break
        pthread_mutex_unlock(&hub.mutex)
        if hub.bells[self.core.bit] != &self.core:
            close(self.core.fd)
            self.core.fd = -1
            raise OverflowError(f"{BELLS_MAX} event loops and watchers are in use (BELLS_MAX): close one")

    def __dealloc__(self):
        self._leave()
        free(self.core.queue)

    def close(self):
        """Out of service; idempotent."""
        self._leave()

    cdef void _leave(self) noexcept:
        cdef uint32_t i, mask
        if self.core.fd < 0:
            return
        mask = 1u << self.core.bit
        pthread_mutex_lock(&self.hub.mutex)
        for i in range(self.core.n):
            rl_and(&self.core.queue[i].queued, ~mask)
        self.core.n = 0
        rl_and(&self.hub.listening, ~mask)
        self.hub.bells[self.core.bit] = NULL
        self.hub.used &= ~mask
        pthread_mutex_unlock(&self.hub.mutex)
        close(self.core.fd)
        self.core.fd = -1

    @property
    def bit(self) -> int:
        """Its number among the bells of the log."""
        return self.core.bit

    def fileno(self) -> int:
        """The eventfd, for an event loop."""
        return self.core.fd

    def arm(self):
        """Ask for the next ring: one that nobody asked for costs no system call."""
        rl_store(&self.core.armed, 1)

    def drain(self) -> list:
        """The sessions that moved since the last drain, each once. Asks for the next ring.

        Look at outcomes after it, not before: a ring that came earlier is answered by this call.
        """
        cdef list out = []
        cdef uint32_t i
        cdef uint64_t count
        if self.core.fd >= 0:
            read(self.core.fd, &count, 8)
        # Armed after the read and before the look: armed earlier, a ring in between would be read away,
        # and the next one would find the bell unarmed and stay silent.
        rl_store(&self.core.armed, 1)
        pthread_mutex_lock(&self.hub.mutex)
        for i in range(self.core.n):
            rl_and(&self.core.queue[i].queued, ~(1u << self.core.bit))
            out.append(<object>self.core.queue[i].owner)
        self.core.n = 0
        pthread_mutex_unlock(&self.hub.mutex)
        return out

    def wait(self, timeout_s) -> bool:
        """Sleep until something is queued (True) or the time is over (False). Signals are served."""
        cdef int64_t deadline = -1 if timeout_s is None else rl_monotonic_ns() + <int64_t>(timeout_s * 1e9)
        cdef uint32_t seen = rl_load(&self.core.word)
        if self.core.n:
            return True
        return sleep_on(&self.core.word, seen, deadline)


cdef void _push(BellCore* bell, Published* pub) noexcept nogil:
    cdef uint32_t cap
    cdef Published** queue
    if bell.n == bell.cap:
        cap = bell.cap * 2 if bell.cap else 64
        queue = <Published**>realloc(bell.queue, cap * sizeof(Published*))
        if queue == NULL:
            return  # its reader also looks at every keepalive
        bell.queue = queue
        bell.cap = cap
    bell.queue[bell.n] = pub
    bell.n += 1
    rl_or(&pub.queued, 1u << bell.bit)


cdef void _drop(BellCore* bell, Published* pub) noexcept nogil:
    cdef uint32_t i, kept = 0
    for i in range(bell.n):
        if bell.queue[i] != pub:
            bell.queue[kept] = bell.queue[i]
            kept += 1
    bell.n = kept


cdef class Hub:
    """All bells of a log, and the publication of heads through them."""

    def __cinit__(self):
        pthread_mutex_init(&self.mutex, NULL)

    def __dealloc__(self):
        pthread_mutex_destroy(&self.mutex)

    def ring_all(self):
        """Wake every loop and watcher, whether or not something moved: the log closed or failed."""
        self.ring(True)

    cdef void publish(self, Published* pub, uint64_t head, uint64_t trim, uint32_t state) noexcept nogil:
        cdef uint32_t wanted, b
        if head > pub.head:
            rl_store64(&pub.head, head)
        if trim > pub.trim:
            rl_store64(&pub.trim, trim)
        if state:
            rl_or(&pub.state, state)
        rl_add(&pub.wake, 1)  # a full fence: whoever counts itself in after this sees the head
        if rl_load(&pub.waiters):
            rl_futex_wake(&pub.wake, INT_MAX)
        if self.used == 0:
            return
        wanted = (rl_load(&pub.bells) | rl_load(&self.listening)) & ~rl_load(&pub.queued)
        if wanted == 0:
            return
        pthread_mutex_lock(&self.mutex)
        for b in range(BELLS_MAX):
            if wanted >> b & 1 and self.bells[b] != NULL and not pub.queued >> b & 1:
                _push(self.bells[b], pub)
        pthread_mutex_unlock(&self.mutex)

    cdef void ring(self, bint always) noexcept nogil:
        """Wake the bells that have something queued, or all."""
        cdef uint32_t b
        cdef uint64_t one = 1
        cdef BellCore* bell
        if self.used == 0:
            return
        pthread_mutex_lock(&self.mutex)
        for b in range(BELLS_MAX):
            bell = self.bells[b]
            if bell == NULL or not (always or bell.n):
                continue
            rl_add(&bell.word, 1)
            rl_futex_wake(&bell.word, INT_MAX)
            if rl_load(&bell.armed):
                rl_store(&bell.armed, 0)
                write(bell.fd, &one, 8)
        pthread_mutex_unlock(&self.mutex)

    cdef void forget(self, Published* pub) noexcept nogil:
        """The session goes away: no bell may name it any more."""
        cdef uint32_t b
        if rl_load(&pub.queued) == 0:
            return
        pthread_mutex_lock(&self.mutex)
        for b in range(BELLS_MAX):
            if pub.queued >> b & 1 and self.bells[b] != NULL:
                _drop(self.bells[b], pub)
        pthread_mutex_unlock(&self.mutex)


# ---- the journal ----------------------------------------------------------------------------------


@no_gc  # as Bell
cdef class Journal:
    """Group commit into recycled extents. Methods with a leading underscore need what their comment says."""

    def __cinit__(self, Hub hub not None, *, bytes directory not None, int slot=0, bint relaxed=False,
                  int64_t extent_bytes=16 << 20, uint32_t extents_max=16, size_t backlog_bytes=8 << 20, int mode=0o600):
        pthread_mutex_init(&self.mutex, NULL)
        self.hub = hub
        self.directory = directory
        self.directory_c = PyBytes_AS_STRING(directory)
        self.slot = slot
        self.relaxed = relaxed
        self.extent_bytes = extent_bytes
        self.extents_max = min(extents_max, <uint32_t>EXTENTS_MAX)
        self.batch_bytes_max = extent_bytes - ALIGN
        self.backlog_bytes = min(backlog_bytes, self.batch_bytes_max)
        self.mode = mode
        self.pending = &self.a
        self.spare = &self.b
        self.pending.seq = 1
        self.a.used = self.b.used = sizeof(BlockHead)

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.n_used):
            close(self.used_extents[i].fd)
        for i in range(self.n_ready):
            close(self.ready_extents[i].fd)
        free(self.a.buf)
        free(self.b.buf)
        free(self.a.posts)
        free(self.b.posts)
        free(self.full)
        pthread_mutex_destroy(&self.mutex)

    # -- set-up: before the first append, one thread

    def attach(self, uint64_t incarnation, list extents):
        """Start a fresh chain. `extents`: [(fd, number)] of files to write over; they pass to the journal."""
        self.incarnation = incarnation
        for fd, number in extents:
            self.ready_extents[self.n_ready] = Extent(fd=fd, number=number, last_block=0, dirty=False)
            self.n_ready += 1
            self.next_extent = max(self.next_extent, <uint32_t>number + 1)

    def prepare_extent(self) -> bool:
        """Make a spare extent when there is none. False: there is one, or the bound is reached."""
        cdef uint32_t number
        cdef int fd
        cdef char path[4096]
        pthread_mutex_lock(&self.mutex)
        if self.n_ready or self.n_used >= self.extents_max:
            pthread_mutex_unlock(&self.mutex)
            return False
        number = self.next_extent
        self.next_extent += 1
        pthread_mutex_unlock(&self.mutex)
        snprintf(path, sizeof(path), "%s/%u-%u", self.directory_c, self.slot, number)
        with nogil:
            fd = rl_make_extent(path, self.extent_bytes, self.mode)
        if fd < 0:
            raise OSError(errno, os.strerror(errno), path.decode())
        pthread_mutex_lock(&self.mutex)
        self.ready_extents[self.n_ready] = Extent(fd=fd, number=number, last_block=0, dirty=False)
        self.n_ready += 1
        pthread_mutex_unlock(&self.mutex)
        self._moved_on()
        return True

    # -- appenders: with the GIL; begin .. commit under the mutex

    cdef uint8_t* begin(self, size_t n) noexcept nogil:
        """Room for n bytes of records in the pending batch, or NULL: wait. Locks the mutex unless NULL."""
        cdef uint8_t* buf
        cdef size_t cap
        pthread_mutex_lock(&self.mutex)
        if self.refuses() or (self.pending.used + n > self.backlog_bytes and self.pending.records):
            self.refused_at = self.pending.used
            pthread_mutex_unlock(&self.mutex)
            return NULL
        if self.pending.used + n > self.pending.cap:
            cap = max(self.pending.cap * 2, (self.pending.used + n + ALIGN + 4095) // 4096 * 4096)
            buf = <uint8_t*>realloc(self.pending.buf, cap)
            if buf == NULL:
                pthread_mutex_unlock(&self.mutex)
                return NULL
            self.pending.buf = buf
            self.pending.cap = cap
        return self.pending.buf + self.pending.used

    cdef bint refuses(self) noexcept nogil:
        """A failure has not been dealt with: a record taken now would follow events that are not there."""
        return self.rollback or self.unknown_seq != 0 or self.broken or self.ended

    cdef uint64_t commit(self, size_t n, Published* pub, uint64_t head, uint64_t trim, uint32_t state,
                         int64_t time_ns) noexcept nogil:
        """The record at `begin` is complete: post (pub, head, ...) when it is durable. Unlocks; the batch's seq."""
        cdef uint64_t seq = self.add(n, pub, head, trim, state, time_ns)
        pthread_mutex_unlock(&self.mutex)
        return seq

    cdef uint64_t add(self, size_t n, Published* pub, uint64_t head, uint64_t trim, uint32_t state,
                      int64_t time_ns) noexcept nogil:
        """`commit` without letting the mutex go: more records of the same batch follow."""
        cdef Batch* b = self.pending
        cdef Post* posts
        cdef uint64_t seq = b.seq
        b.used += n
        b.records += 1
        if time_ns > self.time_high:
            self.time_high = time_ns
        if b.n_posts and b.posts[b.n_posts - 1].pub == pub:
            b.posts[b.n_posts - 1].head = max(b.posts[b.n_posts - 1].head, head)
            b.posts[b.n_posts - 1].trim = max(b.posts[b.n_posts - 1].trim, trim)
            b.posts[b.n_posts - 1].state |= state
        else:
            if b.n_posts == b.cap_posts:
                b.cap_posts = b.cap_posts * 2 if b.cap_posts else 64
                posts = <Post*>realloc(b.posts, b.cap_posts * sizeof(Post))
                if posts == NULL:
                    # Nothing has been promised yet, but the record is in the batch: no way to go on.
                    self.broken = True
                    return seq
                b.posts = posts
            b.posts[b.n_posts] = Post(pub=pub, head=head, trim=trim, state=state)
            b.n_posts += 1
        return seq

    cdef void cancel(self) noexcept nogil:
        """Leave `begin` without a record."""
        pthread_mutex_unlock(&self.mutex)

    cdef void nudge(self) noexcept nogil:
        """Somebody must write the pending batch and nobody waits for it: the background thread, once."""
        cdef bint needed
        pthread_mutex_lock(&self.mutex)
        needed = not self.busy and not self.kicked  # a busy thread looks again when it is done
        self.kicked = self.kicked or needed
        pthread_mutex_unlock(&self.mutex)
        if needed:
            self.wake_writer()

    cdef void wake_writer(self) noexcept nogil:
        rl_add(&self.kick, 1)
        rl_futex_wake(&self.kick, 1)

    # -- the flush: any thread, no GIL

    cdef bint drive(self) noexcept nogil:
        """Write the pending batch if nobody else is writing. False: nothing to do, or somebody is."""
        cdef Batch* b
        cdef int rc, stage = STAGE_WRITE
        pthread_mutex_lock(&self.mutex)
        if self.busy or self.pending.records == 0 or self.unknown_seq or self.rollback or self.broken or self.ended:
            if not self.busy:
                self.kicked = False  # whoever was told has looked; the next nudge must tell again
            pthread_mutex_unlock(&self.mutex)
            return False
        self.busy = True
        self.kicked = False
        b = self.pending
        self.pending = self.spare
        self.spare = NULL
        self.pending.seq = b.seq + 1
        pthread_mutex_unlock(&self.mutex)
        self._moved_on()
        if self.lying:
            self._post(b)
            rl_store64(&self.completed, b.seq)
            rl_add(&self.word[b.seq & 1], 1)
            rl_futex_wake(&self.word[b.seq & 1], INT_MAX)
            rl_futex_wait(&self.never, 0, LYING_NS)
        rc = self._write(b)
        if rc == 0 and not self.relaxed:
            stage = STAGE_FLUSH
            rc = self._flush_newest()
        if rc == 0:
            self._post(b)
        self._finish(b, rc, stage)
        return True

    cdef void _moved_on(self) noexcept nogil:
        rl_add(&self.room, 1)
        rl_futex_wake(&self.room, INT_MAX)

    cdef int _flush_newest(self) noexcept nogil:
        cdef int rc
        cdef Extent* e = &self.used_extents[self.n_used - 1]
        if self.inject > 0:
            rc = self.inject
            self.inject = 0
            return rc
        rc = rl_fdatasync(e.fd)
        if rc == 0:
            e.dirty = False
            self.flushed = self.block
            self.flushes += 1
        return rc

    cdef int _write(self, Batch* b) noexcept nogil:
        """One block at the chain's end. An errno when it is known to be absent. Only the busy thread."""
        cdef size_t total = (b.used + ALIGN - 1) // ALIGN * ALIGN
        cdef BlockHead* head = <BlockHead*>b.buf
        cdef Extent* e
        cdef int rc
        if self.inject < 0:
            rc = -self.inject
            self.inject = 0
            return rc
        if self.n_used == 0 or self.offset + <int64_t>total > self.extent_bytes:
            rc = self._next_extent()
            if rc:
                return rc
        e = &self.used_extents[self.n_used - 1]
        memset(head, 0, sizeof(BlockHead))
        head.magic = BLOCK_MAGIC
        head.version = BLOCK_VERSION
        head.slot = <unsigned short>self.slot
        head.incarnation = self.incarnation
        head.block = self.block + 1
        head.flushed = self.flushed
        head.last_crc = self.last_crc
        head.body_bytes = <uint32_t>(b.used - sizeof(BlockHead))
        head.time_high = self.time_high
        head.records = b.records
        head.body_crc = crc32c(crc32c(0, &self.incarnation, 8), b.buf + sizeof(BlockHead), head.body_bytes)
        head.head_crc = crc32c(0, head, sizeof(BlockHead) - 4)
        memset(b.buf + b.used, 0, total - b.used)  # `begin` left room for it
        rc = rl_pwrite_all(e.fd, b.buf, total, self.offset)
        if rc:
            return rc
        self.offset += total
        self.block += 1
        self.last_crc = head.head_crc
        self.bytes_written += total
        self.since_checkpoint += total
        e.last_block = self.block
        e.dirty = True
        return 0

    cdef int _next_extent(self) noexcept nogil:
        """Go over to a ready extent, make one, or wait until a checkpoint recycles one."""
        cdef char path[4096]
        cdef uint32_t number, seen
        cdef int fd
        cdef Extent ready
        if self.relaxed and self.n_used and self.used_extents[self.n_used - 1].dirty:
            # A later extent's flush must never claim blocks of an earlier one that was not flushed.
            fd = rl_fdatasync(self.used_extents[self.n_used - 1].fd)
            if fd:
                return fd
            self.used_extents[self.n_used - 1].dirty = False
            self.flushed = self.block
        while True:
            seen = rl_load(&self.room)
            pthread_mutex_lock(&self.mutex)
            if self.n_ready:
                self.n_ready -= 1
                ready = self.ready_extents[self.n_ready]
                self.used_extents[self.n_used] = ready
                self.n_used += 1
                self.offset = 0
                pthread_mutex_unlock(&self.mutex)
                return 0
            if self.n_used < self.extents_max:
                number = self.next_extent
                self.next_extent += 1
                pthread_mutex_unlock(&self.mutex)
                snprintf(path, sizeof(path), "%s/%u-%u", self.directory_c, self.slot, number)
                fd = rl_make_extent(path, self.extent_bytes, self.mode)
                if fd < 0:
                    return errno
                pthread_mutex_lock(&self.mutex)
                self.ready_extents[self.n_ready] = Extent(fd=fd, number=number, last_block=0, dirty=False)
                self.n_ready += 1
                pthread_mutex_unlock(&self.mutex)
                continue
            pthread_mutex_unlock(&self.mutex)
            if self.stop:
                return ECANCELED
            rl_futex_wait(&self.room, seen, SIGNAL_SLICE_NS)

    cdef void _post(self, Batch* b) noexcept nogil:
        cdef uint32_t i
        for i in range(b.n_posts):
            self.hub.publish(b.posts[i].pub, b.posts[i].head, b.posts[i].trim, b.posts[i].state)

    cdef void _finish(self, Batch* b, int rc, int stage) noexcept nogil:
        """Record the outcome, give the buffer back, wake who waits for it and whoever leads next."""
        cdef uint64_t seq = b.seq
        cdef uint32_t side = seq & 1
        cdef bint more
        pthread_mutex_lock(&self.mutex)
        if rc:
            self._fail(b.seq, rc, stage)
        b.used = sizeof(BlockHead)
        b.records = 0
        b.n_posts = 0
        if b.cap > BATCH_KEEP_BYTES:
            free(b.buf)
            b.buf = NULL
            b.cap = 0
        self.spare = b
        rl_store64(&self.completed, seq)
        if rc == 0:
            self.block_settled = self.block
        else:  # what was queued behind it is refused with it
            rl_store64(&self.completed, self.pending.seq)
            self.pending.seq += 1
            self.pending.used = sizeof(BlockHead)
            self.pending.records = 0
            self.pending.n_posts = 0
        self.busy = False
        more = self.pending.records != 0
        pthread_mutex_unlock(&self.mutex)
        rl_add(&self.word[side], 1)
        if rl_load(&self.sleepers[side]):
            rl_futex_wake(&self.word[side], INT_MAX)
        if more or rc:
            rl_add(&self.word[side ^ 1], 1)
            if rl_load(&self.sleepers[side ^ 1]):
                rl_futex_wake(&self.word[side ^ 1], INT_MAX if rc else 1)
            else:
                self.wake_writer()
        self._moved_on()
        self.hub.ring(True)

    cdef void _fail(self, uint64_t seq, int rc, int stage) noexcept nogil:
        """Under the mutex. A refused write is known to be absent; a failed flush is an unknown outcome."""
        cdef uint64_t* full
        self.error = rc
        if stage == STAGE_FLUSH or rc not in (ENOSPC, EDQUOT, ECANCELED):
            self.unknown_seq = seq
            return
        if self.n_full == self.cap_full:
            self.cap_full = self.cap_full * 2 if self.cap_full else 8
            full = <uint64_t*>realloc(self.full, self.cap_full * 2 * sizeof(uint64_t))
            if full == NULL:
                self.unknown_seq = seq
                return
            self.full = full
        self.full[2 * self.n_full] = seq
        self.full[2 * self.n_full + 1] = self.pending.seq
        self.n_full += 1
        self.rollback = True

    # -- waiting and outcomes

    cdef Outcome outcome(self, uint64_t seq) noexcept nogil:
        cdef uint32_t i
        if seq > rl_load64(&self.completed):
            if self.unknown_seq:  # seen before `completed` moved: the failed batch itself is never "not there"
                return Outcome.OUT_UNKNOWN if seq == self.unknown_seq else Outcome.OUT_POISONED
            return Outcome.OUT_CLOSED if self.broken or (self.ended and not self.busy) else Outcome.OUT_PENDING
        if self.unknown_seq and seq >= self.unknown_seq:
            return Outcome.OUT_UNKNOWN if seq == self.unknown_seq else Outcome.OUT_POISONED
        if self.n_full == 0:
            return Outcome.OUT_DURABLE
        pthread_mutex_lock(&self.mutex)
        try:
            for i in range(self.n_full):
                if self.full[2 * i] <= seq <= self.full[2 * i + 1]:
                    return Outcome.OUT_FULL
        finally:
            pthread_mutex_unlock(&self.mutex)
        return Outcome.OUT_DURABLE

    cdef int wait(self, uint64_t seq, int64_t deadline_ns, bint lead) except -1:
        """Wait for the outcome of a batch; OUT_PENDING when the deadline passed. `lead`: flush it ourselves."""
        cdef uint32_t side = seq & 1
        cdef uint32_t seen
        cdef int64_t left = -1
        cdef int rc = 0
        cdef Outcome out
        while True:
            with nogil:
                rl_add(&self.sleepers[side], 1)
                seen = rl_load(&self.word[side])
                out = self.outcome(seq)
                rc = 0
                if out == Outcome.OUT_PENDING and not (lead and self.drive()):
                    if deadline_ns >= 0:
                        left = deadline_ns - rl_monotonic_ns()
                    if deadline_ns < 0 or left > 0:
                        rc = rl_futex_wait(&self.word[side], seen, left)
                    else:
                        rc = -1
                rl_add(&self.sleepers[side], <uint32_t>-1)
                if rc != 0:
                    self.wake_writer()  # we might have been the one to lead
                elif out != Outcome.OUT_PENDING and self.pending.records and not self.busy \
                        and rl_load(&self.sleepers[self.pending.seq & 1]) == 0:
                    self.nudge()  # we were woken to lead, and leave; nobody waits for what is queued
            if out != Outcome.OUT_PENDING or rc == -1:
                return out
            if rc == EINTR:
                PyErr_CheckSignals()

    cdef int wait_room(self, int64_t deadline_ns) except -1:
        """Wait until a batch was taken; 0 when the deadline passed."""
        cdef uint32_t seen = rl_load(&self.room)
        cdef bint drove
        with nogil:
            drove = self.drive()
        if drove:
            return 1
        return sleep_on(&self.room, seen, deadline_ns)

    def run(self):
        """The background thread: serves what nobody waits for, until close(). Holds no GIL while it works."""
        cdef uint32_t seen
        with nogil:
            while not self.stop:
                seen = rl_load(&self.kick)
                if not self.drive():
                    rl_futex_wait(&self.kick, seen, -1)

    # -- maintenance: any thread with the GIL

    def sync(self):
        """Flush what is written (relaxed mode). OSError poisons the journal."""
        cdef uint32_t i
        cdef int rc = 0, fd = -1
        cdef uint64_t block
        pthread_mutex_lock(&self.mutex)
        block = self.block if not self.busy else self.block_settled
        for i in range(self.n_used):
            if self.used_extents[i].dirty and i == self.n_used - 1:
                fd = self.used_extents[i].fd
        pthread_mutex_unlock(&self.mutex)
        if fd < 0:
            return
        with nogil:
            if self.inject > 0:
                rc = self.inject
                self.inject = 0
            else:
                rc = rl_fdatasync(fd)
        pthread_mutex_lock(&self.mutex)
        if rc:
            self.error = rc
            if not self.unknown_seq:
                self.unknown_seq = self.completed + 1
        elif block > self.flushed:
            self.flushed = block
            self.flushes += 1
        pthread_mutex_unlock(&self.mutex)
        if rc:
            raise OSError(rc, os.strerror(rc))

    def durable_block(self) -> int:
        """The highest block whose records a checkpoint may take: posted to readers, and flushed in `sync` mode."""
        pthread_mutex_lock(&self.mutex)
        cdef uint64_t block = self.block_settled
        pthread_mutex_unlock(&self.mutex)
        return block

    def recycle(self, uint64_t block):
        """A checkpoint through `block` is durable: its extents may be written over."""
        cdef uint32_t i, kept = 0
        pthread_mutex_lock(&self.mutex)
        for i in range(self.n_used):
            if self.used_extents[i].last_block <= block and i != self.n_used - 1:
                self.used_extents[i].dirty = False
                self.ready_extents[self.n_ready] = self.used_extents[i]
                self.n_ready += 1
            else:
                self.used_extents[kept] = self.used_extents[i]
                kept += 1
        self.n_used = kept
        pthread_mutex_unlock(&self.mutex)
        self._moved_on()

    def checkpoint_started(self):
        """Journal bytes written since the last call: what the next checkpoint takes."""
        pthread_mutex_lock(&self.mutex)
        cdef int64_t n = self.since_checkpoint
        self.since_checkpoint = 0
        pthread_mutex_unlock(&self.mutex)
        return n

    def checkpoint_due(self) -> int:
        """Journal bytes that wait for a checkpoint."""
        return self.since_checkpoint

    def rolled_back(self):
        """The rings were cut to what is visible: appends may try again."""
        pthread_mutex_lock(&self.mutex)
        self.rollback = False
        pthread_mutex_unlock(&self.mutex)
        self.wake_writer()

    def stop_writing(self):
        """End `run`; what is pending stays pending. Appends after this are refused by the log."""
        self.stop = True
        self.wake_writer()
        self._moved_on()

    def ended_now(self):
        """No flush begins after this, and waiters get OUT_CLOSED. A flush under way goes on: see `is_busy`."""
        cdef int side
        pthread_mutex_lock(&self.mutex)
        self.ended = True
        pthread_mutex_unlock(&self.mutex)
        for side in range(2):
            rl_add(&self.word[side], 1)
            rl_futex_wake(&self.word[side], INT_MAX)

    def flush_pending(self, timeout_s) -> bool:
        """Write all that is queued; False when the time was too short or the journal failed."""
        cdef int64_t deadline = -1 if timeout_s is None else rl_monotonic_ns() + <int64_t>(timeout_s * 1e9)
        cdef uint64_t seq
        cdef int out
        cdef bint queued
        pthread_mutex_lock(&self.mutex)
        queued = self.pending.records != 0
        seq = self.pending.seq if self.pending.records else self.pending.seq - 1
        pthread_mutex_unlock(&self.mutex)
        out = self.wait(seq, deadline, True)
        # A batch that was refused before, and whose appenders know, is not waiting for anything.
        return out == Outcome.OUT_DURABLE or (out == Outcome.OUT_FULL and not queued)

    def inject_error(self, int error):
        """Tests: the next fdatasync fails with errno `error`; negative: the next pwrite."""
        self.inject = error

    def _break(self, how):
        """Tests: a canary engine. "ack-before-write": outcomes are told before anything is written."""
        if how != "ack-before-write":
            raise ValueError(how)
        self.lying = True

    def queued(self) -> int:
        """Bytes that wait for the disk."""
        return self.pending.used - sizeof(BlockHead)

    def is_busy(self) -> bool:
        """A thread is writing or flushing just now."""
        pthread_mutex_lock(&self.mutex)
        cdef bint busy = self.busy
        pthread_mutex_unlock(&self.mutex)
        return bool(busy)

    def is_poisoned(self) -> bool:
        """A flush failed."""
        return self.unknown_seq != 0

    def seq_done(self) -> int:
        """The highest batch with an outcome."""
        return rl_load64(&self.completed)


# ---- reading blocks: recovery, tools --------------------------------------------------------------


cdef bint _head_ok(const BlockHead* h, uint64_t incarnation) noexcept nogil:
    return h.magic == BLOCK_MAGIC and h.version == BLOCK_VERSION and h.incarnation == incarnation \
        and h.head_crc == crc32c(0, h, sizeof(BlockHead) - 4)


def block_at(const uint8_t[::1] extent, size_t at, uint64_t incarnation):
    """(block, flushed, last_crc, head_crc, time_high, body) of the valid block at `at`, else None."""
    cdef const BlockHead* h
    cdef const uint8_t* body
    if at + sizeof(BlockHead) > <size_t>extent.shape[0]:
        return None
    h = <const BlockHead*>&extent[at]
    if not _head_ok(h, incarnation) or at + sizeof(BlockHead) + h.body_bytes > <size_t>extent.shape[0]:
        return None
    body = &extent[at] + sizeof(BlockHead)
    if h.body_crc != crc32c(crc32c(0, &incarnation, 8), body, h.body_bytes):
        return None
    return (h.block, h.flushed, h.last_crc, h.head_crc, h.time_high, <bytes>body[:h.body_bytes])


def first_block(const uint8_t[::1] extent, uint64_t incarnation) -> int:
    """Number of the block whose header stands at the extent's begin, 0 when none of this incarnation does."""
    cdef const BlockHead* h
    if <size_t>extent.shape[0] < sizeof(BlockHead):
        return 0
    h = <const BlockHead*>&extent[0]
    return h.block if _head_ok(h, incarnation) else 0


def find_block(const uint8_t[::1] extent, uint64_t incarnation, uint64_t block) -> int:
    """Offset of the valid block of that number, -1 when there is none."""
    cdef const BlockHead* h
    cdef size_t at = 0, n = extent.shape[0]
    while at + sizeof(BlockHead) <= n:
        h = <const BlockHead*>&extent[at]
        if h.magic == BLOCK_MAGIC and h.block == block and block_at(extent, at, incarnation) is not None:
            return at
        at += ALIGN
    return -1


def has_block(const uint8_t[::1] extent, uint64_t incarnation, uint64_t block) -> bool:
    """The header of the block of that number stands here, whatever became of its body."""
    cdef const BlockHead* h
    cdef size_t at = 0, n = extent.shape[0]
    while at + sizeof(BlockHead) <= n:
        h = <const BlockHead*>&extent[at]
        if h.magic == BLOCK_MAGIC and h.block == block and _head_ok(h, incarnation):
            return True
        at += ALIGN
    return False


def claims_flushed(const uint8_t[::1] extent, size_t at, uint64_t incarnation, uint64_t block) -> int:
    """The number of a block from `at` on whose header says that `block` was flushed, else 0."""
    cdef const BlockHead* h
    cdef size_t n = extent.shape[0]
    while at + sizeof(BlockHead) <= n:
        h = <const BlockHead*>&extent[at]
        if h.magic == BLOCK_MAGIC and _head_ok(h, incarnation) and h.flushed >= block:
            return h.block
        at += ALIGN
    return 0


def block_bytes(size_t body_bytes) -> int:
    """How many bytes a block with this body takes in its extent."""
    return (sizeof(BlockHead) + body_bytes + ALIGN - 1) // ALIGN * ALIGN


def records_of(bytes body, where):
    """[(type, number, first, floor, fence, count, tag_before, run or body, key)] of a block's body."""
    cdef list out = []
    cdef size_t at = 0, n = len(body), content
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(body)
    cdef RecordHead r
    while at < n:
        if n - at < sizeof(RecordHead):
            raise CorruptLog(where=where, found=f"{n - at} bytes that are no record", expected="a record")
        memcpy(&r, p + at, sizeof(RecordHead))
        content = <size_t>r.count * 16 + r.text_bytes
        if r.bytes < sizeof(RecordHead) + content + r.key_bytes or r.bytes > n - at:
            raise CorruptLog(where=where, found=f"a record of {r.bytes} bytes", expected=f"at most {n - at}")
        at += sizeof(RecordHead)
        out.append((r.type, r.number, r.first, r.floor, r.fence, r.count, r.tag_before, body[at:at + content],
                    body[at + content:at + content + r.key_bytes]))
        at += r.bytes - sizeof(RecordHead)
    return out


# ---- lock bytes -------------------------------------------------------------------------------------


def lock_byte(int fd, int64_t at) -> bool:
    """Take the lease on one byte for this open file. False: another open file has it."""
    cdef int rc = rl_ofd_lock(fd, at)
    if rc and rc not in (11, 13):  # EAGAIN, EACCES
        raise OSError(rc, os.strerror(rc))
    return rc == 0


def unlock_byte(int fd, int64_t at):
    """Give the lease back at once, though a forked child may not have closed its copy of the file yet."""
    rl_ofd_unlock(fd, at)


def byte_held(int fd, int64_t at) -> bool:
    """Another open file holds the lease on that byte."""
    return rl_ofd_held(fd, at) == 1


def fs_type(bytes path) -> int:
    """The magic number of the file system under a path, 0 when it cannot be told."""
    return rl_fs_type(PyBytes_AS_STRING(path))
