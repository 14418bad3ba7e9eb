"""Contract of the judgement: a cursor and a window in, a verdict out. No I/O, no clock."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum Code:          # numbered by hand; not on disk
    NEED_TAG = 0         # the window allows it: compare the tag at the cursor
    RESUMABLE = 1
    AT_HEAD = 2
    BELOW_FLOOR = 3
    FORKED = 4
    REAPED = 5
    UNKNOWN = 6
    MALFORMED = 7

cdef enum Form:
    FORM_MALFORMED = 0
    FORM_INTEGER = 1
    FORM_TOKEN = 2
    FORM_START = 3
    FORM_FLOOR = 4
    FORM_HEAD = 5

cdef enum State:         # bits, as published by the writer
    BORN = 1
    ENDED = 2
    WAS_REAPED = 4

cdef struct Asked:       # a parsed cursor
    uint64_t epoch
    uint64_t id
    uint32_t tag
    uint8_t form
    uint8_t end          # the token carries the end mark

cdef struct Window:
    uint64_t epoch
    uint64_t floor
    uint64_t head
    uint32_t state       # bits of State

cdef int parse_cursor(object cursor, Asked* out) except -1
cdef Code judge_window(const Window* w, Asked* asked) noexcept nogil

cdef class Verdict:
    cdef Window w
    cdef Asked asked
    cdef uint8_t code
    cdef uint8_t known          # a session, or its tombstone, was found
    cdef uint8_t on_disk
    cdef uint32_t floor_tag     # tag(floor - 1), for restart_from
    cdef uint32_t cursor_tag    # tag at the cursor, when ok
    cdef uint32_t head_tag      # tag(head), when ok
    cdef object source          # the session that knows the tags of an ok verdict, None: they are above
    cdef readonly str name
    cdef readonly str last_reason

    cdef bint _counted(self) noexcept
    cdef str _token(self, uint64_t id, uint32_t tag, bint end)
    cdef object _lookup(self, uint64_t id, uint32_t tag)

cdef Verdict new_verdict(str name, const Window* w, const Asked* asked, Code code, bint on_disk)
