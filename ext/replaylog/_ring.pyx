"""Append-only chunks of ready SSE text, and the events seen through them.

Invariants (`c` is a chunk; ids are implicit):
1. c.index[i] describes event c.first + i; its text is text[stop(i-1):stop(i)].
2. Chunks of a list are contiguous: next.first == c.first + c.count, next.tag_before == last tag of c,
   next.cum_before == c.cum_before + c.text_used.
3. Bytes below text_used never change once a reader may have seen them.

Under the GIL; a chunk is never touched by the writer thread. Layout of a segment: FORMAT.md.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython cimport freelist, no_gc
from libc.stdint cimport uint16_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from replaylog._errors import CorruptLog
from replaylog._frame cimport (
    END_BITS, FLAG_BASE64, TEXT_BYTES_MAX, TYPE_JSON, TYPE_MASK, crc32c, text_kind, text_payload, text_stored, tag_next, tag_zero,
)
from cpython.unicode cimport PyUnicode_DecodeUTF8

cdef uint32_t STOP_MASK = TEXT_BYTES_MAX

# Segment header, 56 bytes. FORMAT.md draws it; _format.py names the offsets for Python.
cdef packed struct SegmentHead:
    uint32_t magic
    uint16_t version
    uint16_t reserved0
    uint64_t epoch
    uint64_t first
    uint64_t cum_before
    uint32_t count
    uint32_t text_bytes
    uint32_t tag_before
    uint32_t text_crc
    uint32_t reserved1
    uint32_t index_crc   # over the 52 bytes before it and the index


cdef uint32_t SEGMENT_MAGIC = 0x47534C52  # "RLSG"
cdef uint16_t SEGMENT_VERSION = 1


@no_gc
cdef class Chunk:
    """A run of consecutive events of one session: SSE text and index."""

    def __cinit__(self):
        self.text = NULL
        self.index = NULL

    def __dealloc__(self):
        free(self.text)
        free(self.index)

    @property
    def last(self) -> int:
        """Id of the last event, `first - 1` when empty."""
        return self.first + self.count - 1

    cdef uint32_t start(self, uint32_t i) noexcept nogil:
        return self.index[i - 1].end_flags & STOP_MASK if i else 0

    cdef uint32_t stop(self, uint32_t i) noexcept nogil:
        return self.index[i].end_flags & STOP_MASK

    cdef uint64_t cum_at(self, uint64_t id) noexcept nogil:
        """Text bytes of the session up to and with event `id`; first - 1 <= id <= last."""
        return self.cum_before + self.start(<uint32_t>(id + 1 - self.first))

    cdef uint32_t tag_at(self, uint64_t id) noexcept nogil:
        """tag(id); first - 1 <= id <= last."""
        return self.tag_before if id + 1 == self.first else self.index[id - self.first].tag

    cdef bint fits(self, size_t n) noexcept nogil:
        return self.text_cap - self.text_used >= n

    cdef uint8_t* push(self, int64_t time_ns, uint32_t tag, const Shape* shape) except NULL:
        """Account for one more event and return where its text goes; the caller checked `fits`."""
        cdef Entry* index
        cdef uint32_t cap
        cdef uint8_t* at
        if self.count == self.index_cap:
            cap = self.index_cap * 2 if self.index_cap else 4
            index = <Entry*>realloc(self.index, cap * sizeof(Entry))
            if index == NULL:
                raise MemoryError("no memory for the index of a chunk")
            self.index = index
            self.index_cap = cap
        at = self.text + self.text_used
        self.text_used += <uint32_t>shape.text_bytes
        self.index[self.count].time_ns = time_ns
        self.index[self.count].end_flags = self.text_used | (shape.flags << END_BITS)
        self.index[self.count].tag = tag
        self.count += 1
        return at

    cdef void cut(self, uint64_t last) noexcept:
        """Forget the events after `last`; they were never visible."""
        self.count = <uint32_t>(last + 1 - self.first) if last + 1 > self.first else 0
        self.text_used = self.start(self.count)

    cdef void seal(self) noexcept:
        """Give back what a full chunk does not use."""
        cdef Entry* index
        cdef uint8_t* text
        if self.count and self.index_cap > self.count:
            index = <Entry*>realloc(self.index, self.count * sizeof(Entry))
            if index != NULL:
                self.index = index
                self.index_cap = self.count
        if self.text_used and self.text_cap - self.text_used > 64:
            text = <uint8_t*>realloc(self.text, self.text_used)
            if text != NULL:
                self.text = text
                self.text_cap = self.text_used

    cdef size_t memory(self) noexcept nogil:
        return self.text_cap + self.index_cap * sizeof(Entry) + 96

    cdef object copy(self, uint64_t first, uint64_t last):
        """The SSE text of events first..last as bytes."""
        cdef uint32_t a = self.start(<uint32_t>(first - self.first))
        cdef uint32_t b = self.stop(<uint32_t>(last - self.first))
        return PyBytes_FromStringAndSize(<const char*>self.text + a, b - a)

    def event(self, uint64_t id):
        """The event `id` of this chunk."""
        if not self.first <= id <= self.last:
            raise IndexError(id)
        return event_at(self, id)

    def verify_chain(self):
        """Re-compute the tag of every event; the first id that disagrees, or 0."""
        cdef uint32_t tag = self.tag_before
        cdef uint32_t i, flags
        cdef bytes stored, kind
        cdef const uint8_t* p
        for i in range(self.count):
            flags = self.index[i].end_flags >> END_BITS
            p = self.text + self.start(i)
            stored = text_stored(p, self.stop(i) - self.start(i), flags)
            kind = text_kind(p, self.stop(i) - self.start(i), flags).encode()
            tag = tag_next(tag, self.first + i, flags & TYPE_MASK,
                           <const uint8_t*>PyBytes_AS_STRING(kind), len(kind),
                           <const uint8_t*>PyBytes_AS_STRING(stored), len(stored))
            if tag != self.index[i].tag:
                return self.first + i
        return 0


cdef Chunk new_chunk(uint64_t epoch, uint64_t first, uint64_t cum_before, uint32_t tag_before, size_t bytes):
    """An empty chunk with room for `bytes` of text."""
    cdef Chunk c = Chunk.__new__(Chunk)
    c.text = <uint8_t*>malloc(bytes if bytes else 1)
    if c.text == NULL:
        raise MemoryError(f"no memory for a chunk of {bytes} bytes")
    c.text_cap = <uint32_t>bytes
    c.epoch = epoch
    c.first = first
    c.cum_before = cum_before
    c.tag_before = tag_before
    return c


cdef Chunk chunk_of(list chunks, uint64_t id):
    """The chunk that holds `id`, or None."""
    cdef Py_ssize_t low = 0, high = len(chunks), mid
    cdef Chunk c
    if high == 0:
        return None
    c = <Chunk>chunks[high - 1]
    if c.first <= id:  # followers ask for the newest chunk
        return c if id < c.first + c.count else None
    while low < high:
        mid = (low + high) // 2
        c = <Chunk>chunks[mid]
        if c.first > id:
            high = mid
        elif id >= c.first + c.count:
            low = mid + 1
        else:
            return c
    return None


# ---- events ------------------------------------------------------------------------------------


@no_gc
@freelist(256)
cdef class Event:
    """One event: a view into its chunk. Holding it keeps its chunk (about 64 KiB) in memory."""

    @property
    def id(self) -> int:
        """Position in the session, from 1."""
        return self.chunk.first + self.i

    @property
    def tag(self) -> int:
        """32-bit checksum chained over every event up to this one."""
        return self.chunk.index[self.i].tag

    @property
    def epoch(self) -> int:
        """64-bit identity of the session's numbering."""
        return self.chunk.epoch

    @property
    def time_ns(self) -> int:
        """When it was appended, ns since 1970; never decreases within a log."""
        return self.chunk.index[self.i].time_ns

    @property
    def kind(self) -> str:
        """The SSE event name, "message" by default."""
        return text_kind(self.chunk.text + self.chunk.start(self.i), self._size(), self._flags())

    @property
    def payload(self):
        """The payload, equal to what was appended and of the same type."""
        return text_payload(self.chunk.text + self.chunk.start(self.i), self._size(), self._flags())

    @property
    def cursor(self) -> str:
        """The token of this event: what a reader that has seen it sends back."""
        cdef const uint8_t* p = self.chunk.text + self.chunk.start(self.i) + 4
        cdef const uint8_t* lf = <const uint8_t*>memchr(p, c'\n', 48)
        return PyUnicode_DecodeUTF8(<const char*>p, lf - p, NULL)

    @property
    def frame(self) -> bytes:
        """The SSE text of this event, blank line included."""
        return self.chunk.copy(self.chunk.first + self.i, self.chunk.first + self.i)

    cdef uint32_t _size(self) noexcept:
        return self.chunk.stop(self.i) - self.chunk.start(self.i)

    cdef uint32_t _flags(self) noexcept:
        return self.chunk.index[self.i].end_flags >> END_BITS

    def __eq__(self, other):
        if not isinstance(other, Event):
            return NotImplemented
        return self.frame == other.frame and self._flags() == (<Event>other)._flags()

    def __hash__(self):
        return hash((self.epoch, self.id, self.tag))

    def __repr__(self):
        return f"Event(id={self.id}, kind={self.kind!r}, payload={self.payload!r})"

    def __reduce__(self):
        raise TypeError("an Event is a view into its log: copy what you need of it")


cdef Event event_at(Chunk chunk, uint64_t id):
    cdef Event e = Event.__new__(Event)
    e.chunk = chunk
    e.i = <uint32_t>(id - chunk.first)
    return e


# ---- segments: runs as they lie on disk ---------------------------------------------------------


def build_segments(list chunks, uint64_t first, uint64_t last, size_t bytes_max = CHUNK_BYTES_MAX) -> list:
    """Events first..last, which the contiguous `chunks` hold, as [(first id, last id, segment bytes)].

    A segment holds at most `bytes_max` bytes of text, or one event.
    """
    cdef list out = []
    cdef Chunk a, b
    cdef uint64_t id = first, stop
    cdef size_t n
    while id <= last:
        a = chunk_of(chunks, id)
        n = 0
        stop = id
        b = a
        while stop <= last:  # whole chunks first, then event by event
            b = chunk_of(chunks, stop)
            while stop <= last and stop < b.first + b.count:
                n += b.stop(<uint32_t>(stop - b.first)) - b.start(<uint32_t>(stop - b.first))
                if n > bytes_max and stop > id:
                    break
                stop += 1
            if n > bytes_max:
                break
        out.append((id, stop - 1, _segment(chunks, id, stop - 1)))
        id = stop
    return out


cdef bytes _segment(list chunks, uint64_t first, uint64_t last):
    cdef Chunk c = chunk_of(chunks, first)
    cdef uint32_t count = <uint32_t>(last - first + 1)
    cdef size_t text_bytes = chunk_of(chunks, last).cum_at(last) - c.cum_at(first - 1)
    cdef size_t index_bytes = count * sizeof(Entry)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, sizeof(SegmentHead) + index_bytes + text_bytes)
    cdef SegmentHead* head = <SegmentHead*>PyBytes_AS_STRING(out)
    cdef Entry* index = <Entry*>(<uint8_t*>head + sizeof(SegmentHead))
    cdef uint8_t* text = <uint8_t*>index + index_bytes
    cdef uint64_t id = first
    cdef uint32_t i, j, a, n, done = 0
    memset(head, 0, sizeof(SegmentHead))
    head.magic = SEGMENT_MAGIC
    head.version = SEGMENT_VERSION
    head.epoch = c.epoch
    head.first = first
    head.cum_before = c.cum_at(first - 1)
    head.count = count
    head.text_bytes = <uint32_t>text_bytes
    head.tag_before = c.tag_at(first - 1)
    while id <= last:
        c = chunk_of(chunks, id)
        i = <uint32_t>(id - c.first)
        j = <uint32_t>(min(last, c.first + c.count - 1) - c.first)
        a = c.start(i)
        n = c.stop(j) - a
        memcpy(text + done, c.text + a, n)
        while i <= j:
            index[0] = c.index[i]
            index.end_flags += done - a  # the flags above stay: the sum never carries into them
            index += 1
            i += 1
        done += n
        id = c.first + j + 1
    head.text_crc = crc32c(0, text, text_bytes)
    head.index_crc = crc32c(crc32c(0, head, sizeof(SegmentHead) - 4),
                            <uint8_t*>head + sizeof(SegmentHead), index_bytes)
    return out


cdef const SegmentHead* _check_head(const uint8_t* p, size_t n, object where) except NULL:
    cdef const SegmentHead* head = <const SegmentHead*>p
    if n < sizeof(SegmentHead) or head.magic != SEGMENT_MAGIC or head.version != SEGMENT_VERSION \
            or n != sizeof(SegmentHead) + <size_t>head.count * sizeof(Entry) + head.text_bytes:
        raise CorruptLog(where=where, found=f"{n} bytes that are no segment", expected="a segment of version 1")
    if head.index_crc != crc32c(crc32c(0, head, sizeof(SegmentHead) - 4), p + sizeof(SegmentHead),
                                head.count * sizeof(Entry)):
        raise CorruptLog(where=where, found="a segment index that fails its CRC", expected="the index as written")
    return head


def read_segment(data, where) -> Chunk:
    """The chunk in a segment's bytes, copied and with both CRCs checked; CorruptLog otherwise."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return _read_segment(<const uint8_t*>view.buf, view.len, where)
    finally:
        PyBuffer_Release(&view)


cdef Chunk _read_segment(const uint8_t* p, size_t n, object where):
    cdef const SegmentHead* head = _check_head(p, n, where)
    cdef const uint8_t* text = p + sizeof(SegmentHead) + head.count * sizeof(Entry)
    cdef Chunk c
    if head.text_crc != crc32c(0, text, head.text_bytes):
        raise CorruptLog(where=where, found="segment text that fails its CRC", expected="the text as written")
    return _chunk_from(head.epoch, head.first, head.cum_before, head.tag_before, head.count, head.text_bytes,
                       p + sizeof(SegmentHead), text)


cdef Chunk _chunk_from(uint64_t epoch, uint64_t first, uint64_t cum_before, uint32_t tag_before, uint32_t count,
                       uint32_t text_bytes, const uint8_t* index, const uint8_t* text):
    cdef Chunk c = new_chunk(epoch, first, cum_before, tag_before, text_bytes)
    c.index = <Entry*>malloc(count * sizeof(Entry) if count else 1)
    if c.index == NULL:
        raise MemoryError("no memory for the index of a chunk")
    memcpy(c.index, index, count * sizeof(Entry))
    memcpy(c.text, text, text_bytes)
    c.index_cap = c.count = count
    c.text_used = text_bytes
    return c


def chunk_from_run(uint64_t epoch, uint64_t first, uint64_t cum_before, uint32_t tag_before, uint32_t count,
                   bytes run) -> Chunk:
    """The chunk in a journal record's run: `count` index entries, then the text."""
    cdef size_t index_bytes = count * sizeof(Entry)
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(run)
    return _chunk_from(epoch, first, cum_before, tag_before, count, <uint32_t>(len(run) - index_bytes), p,
                       p + index_bytes)


def segment_span(data, where) -> tuple:
    """(first id, last id, cum_before, text bytes) of a segment, from its index alone."""
    cdef Py_buffer view
    cdef const SegmentHead* head
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        head = _check_head(<const uint8_t*>view.buf, view.len, where)
        return head.first, head.first + head.count - 1, head.cum_before, head.text_bytes
    finally:
        PyBuffer_Release(&view)


def segment_tag(data, uint64_t id, where) -> int:
    """tag(id) from a segment's index, without reading its text; first - 1 <= id <= last."""
    cdef Py_buffer view
    cdef const SegmentHead* head
    cdef const Entry* index
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        head = _check_head(<const uint8_t*>view.buf, view.len, where)
        index = <const Entry*>(<const uint8_t*>view.buf + sizeof(SegmentHead))
        if not head.first <= id + 1 <= head.first + head.count:
            raise CorruptLog(where=where, found=f"ids {head.first}..{head.first + head.count - 1}",
                             expected=f"id {id}")
        return head.tag_before if id + 1 == head.first else index[id - head.first].tag
    finally:
        PyBuffer_Release(&view)


def chunk_times(Chunk chunk) -> list:
    """The times of a chunk's events in ns, for tools."""
    return [chunk.index[i].time_ns for i in range(chunk.count)]
