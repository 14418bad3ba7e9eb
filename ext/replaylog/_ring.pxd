"""Contract of the ring: append-only chunks of ready SSE text with an index, and the event view.

A chunk's bytes below `text_used` and entries below `count` never change, except that a rolled-back
append may cut off entries that no reader was ever shown.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from replaylog._frame cimport Entry, Shape

cdef enum:
    CHUNK_BYTES_MIN = 512
    CHUNK_BYTES_MAX = 65536

cdef class Chunk:
    cdef uint8_t* text
    cdef Entry* index
    cdef readonly uint64_t epoch
    cdef readonly uint64_t first        # id of entry 0
    cdef readonly uint64_t cum_before   # text bytes of all events of the session before entry 0
    cdef readonly uint32_t count
    cdef readonly uint32_t tag_before   # tag(first - 1)
    cdef uint32_t index_cap
    cdef uint32_t text_used
    cdef uint32_t text_cap

    cdef uint32_t start(self, uint32_t i) noexcept nogil
    cdef uint32_t stop(self, uint32_t i) noexcept nogil
    cdef uint64_t cum_at(self, uint64_t id) noexcept nogil
    cdef uint32_t tag_at(self, uint64_t id) noexcept nogil
    cdef bint fits(self, size_t n) noexcept nogil
    cdef uint8_t* push(self, int64_t time_ns, uint32_t tag, const Shape* shape) except NULL
    cdef void cut(self, uint64_t last) noexcept
    cdef void seal(self) noexcept
    cdef size_t memory(self) noexcept nogil
    cdef object copy(self, uint64_t first, uint64_t last)

cdef class Event:
    cdef Chunk chunk
    cdef uint32_t i

    cdef uint32_t _size(self) noexcept
    cdef uint32_t _flags(self) noexcept

cdef Chunk new_chunk(uint64_t epoch, uint64_t first, uint64_t cum_before, uint32_t tag_before, size_t bytes)
cdef Event event_at(Chunk chunk, uint64_t id)
cdef Chunk chunk_of(list chunks, uint64_t id)
