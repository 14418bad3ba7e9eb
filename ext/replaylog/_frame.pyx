"""One event <-> its SSE text; the tag chain; CRC32C.

Guarantees: `write_text` fills exactly `shape.text_bytes`; `text_payload(write_text(x)) == x` with the
same type; the tag covers id, payload type, kind and payload and nothing else. Callable from any thread.

A payload stands verbatim, line by line, when it is UTF-8 without CR; otherwise as one base64 line,
because a reader of SSE takes CR for a line end and cannot carry bytes that are not UTF-8.
"""

import binascii
import json

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memchr, memcpy

cdef extern from "native.h" nogil:
    uint32_t rl_crc32c(uint32_t crc, const void* data, size_t n)
    uint32_t rl_crc_by_table(uint32_t crc, const uint8_t* data, size_t n)
    int rl_utf8_valid(const uint8_t* p, size_t n)
    int rl_crc_mode

cdef const char* HEX = "0123456789abcdef"
cdef const char* B64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef size_t SUFFIX_BYTES = 7  # ";base64"


cdef uint32_t crc32c(uint32_t crc, const void* data, size_t n) noexcept nogil:
    return rl_crc32c(crc, data, n)


cdef uint32_t tag_zero(uint64_t epoch) noexcept nogil:
    return rl_crc32c(0, &epoch, 8)


cdef uint32_t tag_next(uint32_t tag, uint64_t id, uint8_t ptype, const uint8_t* kind, size_t kind_bytes,
                       const uint8_t* payload, size_t payload_bytes) noexcept nogil:
    # One small buffer for all but the payload: five CRC calls cost more than one copy.
    cdef uint8_t head[8 + 2 + 255 + 4]
    cdef uint32_t n32 = <uint32_t>payload_bytes
    memcpy(head, &id, 8)
    head[8] = ptype
    head[9] = <uint8_t>kind_bytes
    memcpy(head + 10, kind, kind_bytes)
    memcpy(head + 10 + kind_bytes, &n32, 4)
    return rl_crc32c(rl_crc32c(tag, head, 14 + kind_bytes), payload, payload_bytes)


cdef inline bint _is_message(const uint8_t* kind, size_t n) noexcept nogil:
    return n == 7 and kind[0] == c'm' and kind[1] == c'e' and kind[2] == c's' and kind[3] == c's' \
        and kind[4] == c'a' and kind[5] == c'g' and kind[6] == c'e'


cdef inline int _digits(uint64_t n) noexcept nogil:
    cdef int d = 1
    while n >= 10:
        n //= 10
        d += 1
    return d


cdef size_t _count_lf(const uint8_t* p, size_t n) noexcept nogil:
    cdef size_t count = 0, i
    for i in range(n):
        count += p[i] == c'\n'
    return count


cdef int measure(Shape* shape, uint64_t id, uint8_t ptype, const uint8_t* kind, size_t kind_bytes,
                 const uint8_t* payload, size_t payload_bytes) noexcept nogil:
    """Size and form of an event's text; -1 when it exceeds TEXT_BYTES_MAX. str is UTF-8 already."""
    cdef size_t n
    cdef uint32_t flags = ptype
    cdef bint base64 = False
    if ptype != TYPE_JSON:  # compact JSON escapes both line ends
        base64 = memchr(payload, c'\r', payload_bytes) != NULL
        if not base64 and ptype == TYPE_BYTES:
            base64 = not rl_utf8_valid(payload, payload_bytes)
    if base64:
        flags |= FLAG_BASE64
        n = 6 + (payload_bytes + 2) // 3 * 4 + 1
    elif ptype != TYPE_JSON and memchr(payload, c'\n', payload_bytes) != NULL:
        flags |= FLAG_LINES
        n = payload_bytes + 6 + 1 + 6 * _count_lf(payload, payload_bytes)
    else:
        n = 6 + payload_bytes + 1
    if base64 or not _is_message(kind, kind_bytes):
        n += 7 + kind_bytes + (SUFFIX_BYTES if base64 else 0) + 1
    shape.id_digits = _digits(id)
    n += 4 + 16 + 1 + shape.id_digits + 1 + 8 + 1 + 1
    shape.text_bytes = n
    shape.flags = flags
    return -1 if n > TEXT_BYTES_MAX else 0


cdef void write_hex(uint8_t* out, uint64_t value, int digits) noexcept nogil:
    while digits > 0:
        digits -= 1
        out[digits] = HEX[value & 15]
        value >>= 4


cdef uint8_t* _write_token(uint8_t* out, const uint8_t* epoch_hex, uint64_t id, int digits,
                           uint32_t tag) noexcept nogil:
    cdef int i
    memcpy(out, epoch_hex, 16)
    out[16] = c'.'
    out += 17
    for i in range(digits - 1, -1, -1):
        out[i] = <uint8_t>(c'0' + id % 10)
        id //= 10
    out += digits
    out[0] = c'.'
    write_hex(out + 1, tag, 8)
    return out + 9


cdef uint8_t* _write_lines(uint8_t* out, const uint8_t* p, size_t n) noexcept nogil:
    cdef const uint8_t* end = p + n
    cdef const uint8_t* lf
    cdef size_t k
    while True:
        memcpy(out, b"data: ", 6)
        out += 6
        lf = <const uint8_t*>memchr(p, c'\n', end - p)
        k = (end if lf == NULL else lf) - p
        memcpy(out, p, k)
        out[k] = c'\n'
        out += k + 1
        if lf == NULL:
            return out
        p = lf + 1


cdef uint8_t* _write_base64(uint8_t* out, const uint8_t* p, size_t n) noexcept nogil:
    cdef uint32_t w
    while n >= 3:
        w = (<uint32_t>p[0] << 16) | (<uint32_t>p[1] << 8) | p[2]
        out[0] = B64[w >> 18]
        out[1] = B64[(w >> 12) & 63]
        out[2] = B64[(w >> 6) & 63]
        out[3] = B64[w & 63]
        out += 4
        p += 3
        n -= 3
    if n:
        w = <uint32_t>p[0] << 16
        if n == 2:
            w |= <uint32_t>p[1] << 8
        out[0] = B64[w >> 18]
        out[1] = B64[(w >> 12) & 63]
        out[2] = B64[(w >> 6) & 63] if n == 2 else c'='
        out[3] = c'='
        out += 4
    return out


cdef void write_text(uint8_t* out, const Shape* shape, const uint8_t* epoch_hex, uint64_t id, uint32_t tag,
                     const uint8_t* kind, size_t kind_bytes, const uint8_t* payload,
                     size_t payload_bytes) noexcept nogil:
    """Write exactly `shape.text_bytes` bytes at `out`."""
    cdef bint base64 = (shape.flags & FLAG_BASE64) != 0
    memcpy(out, b"id: ", 4)
    out = _write_token(out + 4, epoch_hex, id, shape.id_digits, tag)
    out[0] = c'\n'
    out += 1
    if base64 or not _is_message(kind, kind_bytes):
        memcpy(out, b"event: ", 7)
        memcpy(out + 7, kind, kind_bytes)
        out += 7 + kind_bytes
        if base64:
            memcpy(out, b";base64", SUFFIX_BYTES)
            out += SUFFIX_BYTES
        out[0] = c'\n'
        out += 1
    if shape.flags & FLAG_LINES:
        out = _write_lines(out, payload, payload_bytes)
    else:
        memcpy(out, b"data: ", 6)
        out += 6
        if base64:
            out = _write_base64(out, payload, payload_bytes)
        else:
            memcpy(out, payload, payload_bytes)
            out += payload_bytes
        out[0] = c'\n'
        out += 1
    out[0] = c'\n'


# ---- text -> objects ---------------------------------------------------------------------------


cdef object token_text(const uint8_t* epoch_hex, uint64_t id, uint32_t tag, bint end):
    cdef uint8_t out[48]
    cdef uint8_t* stop = _write_token(out, epoch_hex, id, _digits(id), tag)
    if end:
        memcpy(stop, b".end", 4)
        stop += 4
    return PyUnicode_DecodeUTF8(<const char*>out, stop - out, NULL)


cdef const uint8_t* _after_line(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* lf = <const uint8_t*>memchr(p, c'\n', end - p)
    return end if lf == NULL else lf + 1


cdef object text_kind(const uint8_t* text, size_t n, uint32_t flags):
    cdef const uint8_t* end = text + n
    cdef const uint8_t* p = _after_line(text, end)
    cdef const uint8_t* stop
    if p >= end or p[0] != c'e':
        return "message"
    stop = _after_line(p, end) - 1
    if flags & FLAG_BASE64:
        stop -= SUFFIX_BYTES
    return PyUnicode_DecodeUTF8(<const char*>p + 7, stop - p - 7, NULL)


cdef object text_stored(const uint8_t* text, size_t n, uint32_t flags):
    """The payload's stored bytes, as the tag covers them."""
    cdef const uint8_t* end = text + n
    cdef const uint8_t* p = _after_line(text, end)
    if p < end and p[0] == c'e':
        p = _after_line(p, end)
    # What is left: "data: " line LF ... LF
    cdef object body = PyBytes_FromStringAndSize(<const char*>p + 6, end - p - 8)
    if flags & FLAG_BASE64:
        return binascii.a2b_base64(body)
    if flags & FLAG_LINES:
        return body.replace(b"\ndata: ", b"\n")
    return body


cdef object text_payload(const uint8_t* text, size_t n, uint32_t flags):
    cdef object stored = text_stored(text, n, flags)
    cdef uint32_t ptype = flags & TYPE_MASK
    if ptype == TYPE_BYTES:
        return stored
    if ptype == TYPE_STR:
        return stored.decode("utf-8")
    return json.loads(stored.decode("utf-8"))


# ---- for tests and tools -----------------------------------------------------------------------


def crc(data: bytes, crc: int = 0) -> int:
    """CRC32C of `data`, continued from `crc`."""
    return rl_crc32c(<uint32_t>crc, PyBytes_AS_STRING(data), len(data))


def crc_by_table(data: bytes, crc: int = 0) -> int:
    """The same without the CPU's instruction."""
    rl_crc32c(0, NULL, 0)
    return ~rl_crc_by_table(~<uint32_t>crc, <const uint8_t*>PyBytes_AS_STRING(data), len(data)) & 0xFFFFFFFF


def tag_of(tag: int, id: int, ptype: int, kind: bytes, stored: bytes) -> int:
    """tag(id), continued from tag(id - 1) over an event."""
    return tag_next(<uint32_t>tag, id, ptype, <const uint8_t*>PyBytes_AS_STRING(kind), len(kind),
                    <const uint8_t*>PyBytes_AS_STRING(stored), len(stored))


def first_tag(epoch: int) -> int:
    """tag(0): the start of an epoch's chain."""
    return tag_zero(epoch)
