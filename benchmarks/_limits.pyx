# cython: language_level=3, boundscheck=False, wraparound=False
"""What nothing can beat: an empty method, memcpy, a write and its flush, one flush per batch behind a hand-off.

Compiled at run time by limits.py into a temporary directory; never shipped. Uses the engine's own native.h for
futexes, so that the hand-off differs from the engine's in what it leaves out: no ids, no tags, no SSE text, no
ring, no checkpoint.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import os

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* m, void* attr)
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)

cdef extern from "<unistd.h>" nogil:
    ssize_t write(int fd, const void* data, size_t n)

cdef extern from "native.h" nogil:
    int64_t rl_monotonic_ns()
    uint64_t rl_load64 "rl_load"(uint64_t* p)
    uint32_t rl_load(uint32_t* p)
    void rl_store64 "rl_store"(uint64_t* p, uint64_t v)
    uint32_t rl_add(uint32_t* p, uint32_t v)
    int rl_futex_wait(uint32_t* word, uint32_t seen, int64_t timeout_ns)
    void rl_futex_wake(uint32_t* word, int count)
    int rl_pwrite_all(int fd, const void* data, size_t n, int64_t at)
    int rl_fdatasync(int fd)
    int INT_MAX

cdef enum:
    BLOCK_BYTES = 512
    BUFFER_BYTES = 8 << 20


cdef class Empty:
    """The price of asking a C object anything at all."""

    def method(self, payload):
        """Takes one argument, returns a small int."""
        return 1

    @property
    def number(self):
        """A property that is there already."""
        return 1


def copy(bytes source):
    """A new bytes object with the same content: memcpy and the pages that it touches."""
    cdef Py_ssize_t n = PyBytes_GET_SIZE(source)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, n)
    memcpy(PyBytes_AS_STRING(out), PyBytes_AS_STRING(source), n)
    return out


def write_and_flush(int fd, bytes block, int64_t at):
    """One pwrite and one fdatasync, without the GIL."""
    cdef int rc
    cdef const char* data = PyBytes_AS_STRING(block)
    cdef size_t n = PyBytes_GET_SIZE(block)
    with nogil:
        rc = rl_pwrite_all(fd, data, n, at)
        if rc == 0:
            rc = rl_fdatasync(fd)
    if rc:
        raise OSError(rc, os.strerror(rc))


cdef struct Pending:
    uint8_t* data
    size_t used
    uint64_t seq


cdef class GroupFlush:
    """Appends share one write and one fdatasync into a recycled file. Durable when `commit` returns.

    `fd` is a file of `size` bytes that was written once: its blocks are allocated. With `leads` an appender
    writes for all, as the engine does for threads; otherwise `run` in a thread of its own does.
    """

    cdef pthread_mutex_t mutex
    cdef Pending a
    cdef Pending b
    cdef Pending* pending
    cdef Pending* spare
    cdef int fd
    cdef int bell
    cdef int64_t size
    cdef int64_t at
    cdef bint busy
    cdef bint leads
    cdef bint stopped
    cdef uint64_t completed
    cdef uint32_t word[2]
    cdef uint32_t kick
    cdef readonly uint64_t flushes

    def __cinit__(self, int fd, int64_t size, *, bint leads, int bell=-1):
        pthread_mutex_init(&self.mutex, NULL)
        self.fd, self.size, self.leads, self.bell = fd, size, leads, bell
        self.a.data = <uint8_t*>calloc(1, BUFFER_BYTES)
        self.b.data = <uint8_t*>calloc(1, BUFFER_BYTES)
        self.pending, self.spare = &self.a, &self.b
        self.pending.seq = 1

    def __dealloc__(self):
        free(self.a.data)
        free(self.b.data)

    cdef uint64_t put(self, const char* data, size_t n) noexcept nogil:
        cdef uint64_t seq
        pthread_mutex_lock(&self.mutex)
        if self.pending.used + n <= BUFFER_BYTES - BLOCK_BYTES:
            memcpy(self.pending.data + self.pending.used, data, n)
            self.pending.used += n
        seq = self.pending.seq
        pthread_mutex_unlock(&self.mutex)
        return seq

    cdef bint drive(self) noexcept nogil:
        cdef Pending* p
        cdef size_t total
        cdef uint64_t seq
        cdef uint64_t one = 1
        cdef bint more
        pthread_mutex_lock(&self.mutex)
        if self.busy or self.pending.used == 0:
            pthread_mutex_unlock(&self.mutex)
            return False
        self.busy = True
        p = self.pending
        self.pending = self.spare
        self.pending.seq = p.seq + 1
        pthread_mutex_unlock(&self.mutex)
        total = (p.used + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
        if self.at + <int64_t>total > self.size:
            self.at = 0
        rl_pwrite_all(self.fd, p.data, total, self.at)
        rl_fdatasync(self.fd)
        self.at += total
        pthread_mutex_lock(&self.mutex)
        seq = p.seq
        p.used = 0
        self.spare = p
        self.busy = False
        self.flushes += 1
        more = self.pending.used != 0
        rl_store64(&self.completed, seq)
        pthread_mutex_unlock(&self.mutex)
        rl_add(&self.word[seq & 1], 1)
        rl_futex_wake(&self.word[seq & 1], INT_MAX)
        if more and self.leads:
            rl_add(&self.word[(seq & 1) ^ 1], 1)
            rl_futex_wake(&self.word[(seq & 1) ^ 1], 1)
        if self.bell >= 0:
            write(self.bell, &one, 8)
        return True

    def commit(self, bytes payload):
        """Durable when this returns."""
        cdef const char* data = PyBytes_AS_STRING(payload)
        cdef uint64_t seq = self.put(data, PyBytes_GET_SIZE(payload))
        cdef uint32_t seen
        with nogil:
            if not self.leads:
                rl_add(&self.kick, 1)
                rl_futex_wake(&self.kick, 1)
            while True:
                seen = rl_load(&self.word[seq & 1])
                if rl_load64(&self.completed) >= seq:
                    break
                if not (self.leads and self.drive()):
                    rl_futex_wait(&self.word[seq & 1], seen, 100000000)

    def commit_nowait(self, bytes payload):
        """The number of the batch; durable when `done()` reaches it."""
        cdef uint64_t seq = self.put(PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
        if not self.busy:
            rl_add(&self.kick, 1)
            rl_futex_wake(&self.kick, 1)
        return seq

    def done(self):
        """The newest batch that is durable."""
        return rl_load64(&self.completed)

    def run(self):
        """The flushing thread, until `stop`."""
        cdef uint32_t seen
        with nogil:
            while not self.stopped:
                seen = rl_load(&self.kick)
                if not self.drive():
                    rl_futex_wait(&self.kick, seen, 100000000)

    def stop(self):
        """End `run`."""
        self.stopped = True
        rl_add(&self.kick, 1)
        rl_futex_wake(&self.kick, 1)
