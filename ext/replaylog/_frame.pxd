"""Contract of the frame codec: one event <-> its SSE text, and the tag chain.

Pure functions over memory of the caller; no Python objects in the nogil part.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

# Payload types, numbered by hand: they stand in the index on disk and under the tag.
cdef enum:
    TYPE_BYTES = 1
    TYPE_STR = 2
    TYPE_JSON = 3

# Index entry flags (the high four bits of `end_flags`).
cdef enum:
    END_BITS = 28
    TYPE_MASK = 3
    FLAG_BASE64 = 4
    FLAG_LINES = 8  # the payload holds a line feed: several data lines

cdef enum:
    TEXT_BYTES_MAX = (1 << 28) - 1
    KIND_BYTES_MAX = 255

cdef struct Entry:       # 16 bytes, in memory and on disk alike
    int64_t time_ns
    uint32_t end_flags   # where the event's text ends in its run | flags << 28
    uint32_t tag

cdef struct Shape:       # what `measure` learned about a payload
    size_t text_bytes
    uint32_t flags
    int id_digits

cdef uint32_t crc32c(uint32_t crc, const void* data, size_t n) noexcept nogil
cdef uint32_t tag_zero(uint64_t epoch) noexcept nogil
cdef uint32_t tag_next(uint32_t tag, uint64_t id, uint8_t ptype, const uint8_t* kind, size_t kind_bytes,
                       const uint8_t* payload, size_t payload_bytes) noexcept nogil
cdef int measure(Shape* shape, uint64_t id, uint8_t ptype, const uint8_t* kind, size_t kind_bytes,
                 const uint8_t* payload, size_t payload_bytes) noexcept nogil
cdef void write_text(uint8_t* out, const Shape* shape, const uint8_t* epoch_hex, uint64_t id, uint32_t tag,
                     const uint8_t* kind, size_t kind_bytes, const uint8_t* payload,
                     size_t payload_bytes) noexcept nogil
cdef void write_hex(uint8_t* out, uint64_t value, int digits) noexcept nogil
cdef object token_text(const uint8_t* epoch_hex, uint64_t id, uint32_t tag, bint end)
cdef object text_kind(const uint8_t* text, size_t n, uint32_t flags)
cdef object text_payload(const uint8_t* text, size_t n, uint32_t flags)
cdef object text_stored(const uint8_t* text, size_t n, uint32_t flags)
