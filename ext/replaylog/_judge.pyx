"""judge(cursor, window) -> Verdict: the only place where a cursor is accepted or refused.

The order of the questions (STORAGE rules; each earlier answer makes the later ones meaningless):

    malformed?  unknown?  reaped?  other epoch?  ahead of the head?  below the floor?  other tag?  at head / resumable

"Below the floor" precedes the tag because the events that could prove the tag are gone. Nothing here
clamps: a cursor outside floor - 1 .. head is refused, whatever is nearest. Pure; callable from any thread.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from replaylog._cursor import Origin
from replaylog._frame cimport token_text, write_hex
from replaylog._verdict import Reason

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    bint PyUnicode_IS_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    TOKEN_BYTES_MAX = 49

cdef object START = Origin.START
cdef object AT_FLOOR = Origin.FLOOR
cdef object AT_THE_HEAD = Origin.HEAD

cdef tuple REASONS = (None, Reason.RESUMABLE, Reason.AT_HEAD, Reason.BELOW_FLOOR, Reason.FORKED, Reason.REAPED,
                      Reason.UNKNOWN, Reason.MALFORMED)


# ---- the cursor ---------------------------------------------------------------------------------


cdef inline int _hex(const char* p, int n, uint64_t* out) noexcept nogil:
    cdef int i
    cdef char c
    out[0] = 0
    for i in range(n):
        c = p[i]
        if c'0' <= c <= c'9':
            out[0] = out[0] << 4 | <uint64_t>(c - c'0')
        elif c'a' <= c <= c'f':
            out[0] = out[0] << 4 | <uint64_t>(c - c'a' + 10)
        else:
            return 0
    return 1


cdef inline int _decimal(const char* p, Py_ssize_t n, uint64_t* out) noexcept nogil:
    cdef Py_ssize_t i
    if not 1 <= n <= 19 or (n > 1 and p[0] == c'0'):
        return 0
    out[0] = 0
    for i in range(n):
        if not c'0' <= p[i] <= c'9':
            return 0
        out[0] = out[0] * 10 + <uint64_t>(p[i] - c'0')
    return out[0] <= <uint64_t>0x7FFFFFFFFFFFFFFF


cdef void _parse(const char* p, Py_ssize_t n, Asked* out) noexcept nogil:
    """The grammar of _cursor.py, without objects; a test holds the two together."""
    cdef uint64_t tag = 0
    cdef Py_ssize_t dot = 17
    out.form = FORM_MALFORMED
    if n > TOKEN_BYTES_MAX:
        return
    if n < 20:
        if _decimal(p, n, &out.id):
            out.form = FORM_INTEGER
        return
    if p[16] != c'.' or not _hex(p, 16, &out.epoch):
        return
    while dot < n and p[dot] != c'.':
        dot += 1
    if not _decimal(p + 17, dot - 17, &out.id):
        return
    if n - dot < 9 or not _hex(p + dot + 1, 8, &tag):
        return
    if n - dot == 13 and p[n - 4] == c'.' and p[n - 3] == c'e' and p[n - 2] == c'n' and p[n - 1] == c'd':
        out.end = 1
    elif n - dot != 9:
        return
    out.tag = <uint32_t>tag
    out.form = FORM_TOKEN


cdef int parse_cursor(object cursor, Asked* out) except -1:
    """Fill `out`; TypeError for what no client can send."""
    cdef Py_ssize_t n = 0
    cdef const char* p
    out.epoch = 0
    out.id = 0
    out.tag = 0
    out.end = 0
    out.form = FORM_MALFORMED
    if type(cursor) is int:
        if 0 <= cursor <= 0x7FFFFFFFFFFFFFFF:
            out.id = cursor
            out.form = FORM_INTEGER
    elif type(cursor) is str:
        if PyUnicode_GET_LENGTH(cursor) <= TOKEN_BYTES_MAX and PyUnicode_IS_ASCII(cursor):
            p = PyUnicode_AsUTF8AndSize(cursor, &n)
            _parse(p, n, out)
    elif type(cursor) is bytes:
        _parse(PyBytes_AS_STRING(cursor), PyBytes_GET_SIZE(cursor), out)
    elif cursor is None or cursor is START:
        out.form = FORM_START
    elif cursor is AT_FLOOR:
        out.form = FORM_FLOOR
    elif cursor is AT_THE_HEAD:
        out.form = FORM_HEAD
    elif isinstance(cursor, str):
        return parse_cursor(str.__str__(cursor), out)  # an exact str, whatever the subclass overrides
    else:
        raise TypeError(f"a cursor is an int, a token (str or bytes), START, FLOOR, HEAD or None, "
                        f"not {type(cursor).__name__}")
    return 0


# ---- the judgement ------------------------------------------------------------------------------


cdef Code judge_window(const Window* w, Asked* asked) noexcept nogil:
    """All but the tag. Resolves FLOOR and HEAD into an id; NEED_TAG: compare the tag, then ask by window."""
    if asked.form == FORM_MALFORMED:
        return Code.MALFORMED
    if not w.state & State.BORN:
        return Code.UNKNOWN
    if w.state & State.WAS_REAPED:
        return Code.REAPED
    if asked.form == FORM_TOKEN and asked.epoch != w.epoch:
        return Code.FORKED
    if asked.form == FORM_FLOOR:
        asked.id = w.floor - 1
    elif asked.form == FORM_HEAD:
        asked.id = w.head
    if asked.id > w.head:
        return Code.FORKED
    if asked.id + 1 < w.floor:
        return Code.BELOW_FLOOR
    if asked.end and not (w.state & State.ENDED and asked.id == w.head):
        return Code.FORKED  # it saw an end that this history does not have
    if asked.form == FORM_TOKEN:
        return Code.NEED_TAG
    return Code.AT_HEAD if asked.id == w.head else Code.RESUMABLE


# ---- the verdict --------------------------------------------------------------------------------


cdef class Verdict:
    """The answer to "can I replay from this cursor?". Frozen; true when the answer is yes.

    Counts, not ids: `missing` = head - cursor, `lost` = floor - 1 - cursor (0 when nothing is lost);
    both None where the cursor belongs to another history or there is no window.
    """

    def __init__(self):
        raise TypeError("a Verdict comes from check(), resume() or follow()")

    @property
    def reason(self):
        """The enum `Reason`."""
        return REASONS[self.code]

    @property
    def ok(self) -> bool:
        """True for RESUMABLE and AT_HEAD."""
        return self.code == Code.RESUMABLE or self.code == Code.AT_HEAD

    def __bool__(self):
        return self.code == Code.RESUMABLE or self.code == Code.AT_HEAD

    @property
    def floor(self):
        """Lowest id that can still be replayed, head + 1 when none; None where there is no session."""
        return self.w.floor if self.known else None

    @property
    def head(self):
        """Last id that readers may see; the last id ever for a reaped session; None where unknown."""
        return self.w.head if self.known else None

    @property
    def epoch(self):
        """64-bit identity of the numbering, None where there is no session."""
        return self.w.epoch if self.known else None

    @property
    def cursor(self):
        """The id that was judged; None when malformed, or when FLOOR or HEAD met no session."""
        if self.asked.form == FORM_MALFORMED:
            return None
        if self.asked.form >= FORM_FLOOR and not self.known:
            return None
        return self.asked.id

    cdef bint _counted(self) noexcept:
        return self.code in (Code.RESUMABLE, Code.AT_HEAD, Code.BELOW_FLOOR)

    @property
    def missing(self):
        """Events after the cursor, retained or not."""
        return self.w.head - self.asked.id if self._counted() else None

    @property
    def lost(self):
        """Events after the cursor that are gone."""
        if not self._counted():
            return None
        return self.w.floor - 1 - self.asked.id if self.code == Code.BELOW_FLOOR else 0

    @property
    def ended(self) -> bool:
        """No more events will come."""
        return bool(self.known and self.w.state & State.ENDED)

    @property
    def state(self):
        """"open", "ended" or "reaped"; None where unknown."""
        if not self.known:
            return None
        if self.w.state & State.WAS_REAPED:
            return "reaped"
        return "ended" if self.w.state & State.ENDED else "open"

    @property
    def seen_end(self) -> bool:
        """The cursor carried the end mark: its reader has seen the end."""
        return self.asked.end != 0

    @property
    def proof(self) -> str:
        """What was compared: "chain" (epoch, id and tag), "window" (the id alone) or "none"."""
        if not self.ok:
            return "none"
        return "chain" if self.asked.form == FORM_TOKEN else "window"

    @property
    def session_durable(self) -> bool:
        """The session's identity is proven: same epoch, or the session is on disk."""
        if not self.known:
            return False
        return bool(self.on_disk) or (self.asked.form == FORM_TOKEN and self.asked.epoch == self.w.epoch)

    cdef str _token(self, uint64_t id, uint32_t tag, bint end):
        cdef uint8_t hex16[16]
        write_hex(hex16, self.w.epoch, 16)
        return token_text(hex16, id, tag, end)

    @property
    def restart_from(self):
        """The token from which a refused reader can start again (the cursor floor - 1), or None."""
        if not self.known or self.w.state & State.WAS_REAPED or self.ok:
            return None
        return self._token(self.w.floor - 1, self.floor_tag, False)

    @property
    def from_token(self):
        """The token of the position that a replay starts after; None when refused, or gone by now."""
        return self._lookup(self.asked.id, self.cursor_tag)

    @property
    def head_token(self):
        """The token of the head at the time of the verdict; None when refused, or gone by now."""
        return self._lookup(self.w.head, self.head_tag)

    cdef object _lookup(self, uint64_t id, uint32_t tag):
        """A token whose tag may have to be asked of the session: a verdict on an integer does without."""
        if not self:
            return None
        if self.source is not None:
            found = self.source._tag_or_none(id)
            if found is None:
                return None
            tag = found
        return self._token(id, tag, False)

    @property
    def explanation(self) -> str:
        """Fact, number, remedy."""
        return _EXPLAIN[self.code](self)

    def _key(self):
        return (self.name, self.code, self.known, self.w.epoch, self.w.floor, self.w.head, self.w.state, self.asked.form,
                self.asked.epoch, self.asked.id, self.asked.tag, self.asked.end, self.on_disk)

    def __eq__(self, other):
        return self._key() == other._key() if isinstance(other, Verdict) else NotImplemented

    def __hash__(self):
        return hash(self._key())

    def __repr__(self):
        return f"<Verdict {self.reason.name} {self.name!r} cursor={self.cursor} floor={self.floor} head={self.head}>"

    def __reduce__(self):
        if self.source is not None:
            self.cursor_tag = self.source._tag_or_none(self.asked.id) or 0
            self.head_tag = self.source._tag_or_none(self.w.head) or 0
        return (_rebuild, (self.name, self.last_reason, self.code, self.known, self.on_disk, self.w.epoch, self.w.floor,
                           self.w.head, self.w.state, self.asked.form, self.asked.epoch, self.asked.id, self.asked.tag,
                           self.asked.end, self.floor_tag, self.cursor_tag, self.head_tag))


def _rebuild(name, last_reason, code, known, on_disk, epoch, floor, head, state, form, asked_epoch, id, tag, end,
             floor_tag, cursor_tag, head_tag):
    cdef Verdict v = Verdict.__new__(Verdict)
    v.name, v.last_reason, v.code, v.known, v.on_disk = name, last_reason, code, known, on_disk
    v.w = Window(epoch=epoch, floor=floor, head=head, state=state)
    v.asked = Asked(epoch=asked_epoch, id=id, tag=tag, form=form, end=end)
    v.floor_tag, v.cursor_tag, v.head_tag = floor_tag, cursor_tag, head_tag
    return v


cdef Verdict new_verdict(str name, const Window* w, const Asked* asked, Code code, bint on_disk):
    cdef Verdict v = Verdict.__new__(Verdict)
    v.w = w[0]
    v.asked = asked[0]
    v.code = code
    v.known = (w.state & State.BORN) != 0
    v.on_disk = on_disk and v.known
    v.name = name
    v.last_reason = ""
    v.floor_tag = v.cursor_tag = v.head_tag = 0
    return v


def _below_floor(v) -> str:
    return (f"cursor {v.cursor} is below floor {v.floor}: events {v.cursor + 1}..{v.floor - 1} are gone "
            f"({v.lost} lost); start again from {v.floor - 1}")


def _forked(v) -> str:
    cdef Verdict verdict = v
    cdef object fact
    if verdict.asked.form == FORM_TOKEN and verdict.asked.epoch != verdict.w.epoch:
        fact = f"cursor {v.cursor} is of epoch {verdict.asked.epoch:016x}, session {v.name!r} is of {v.epoch:016x}"
    elif v.cursor > v.head:
        fact = f"cursor {v.cursor} is ahead of head {v.head} of session {v.name!r}"
    elif verdict.asked.end:
        fact = f"cursor {v.cursor} saw an end that session {v.name!r} does not have (head {v.head}, {v.state})"
    else:
        fact = f"cursor {v.cursor} has tag {verdict.asked.tag:08x}, which session {v.name!r} does not have at that id"
    return f"{fact}: it belongs to another history; start again from {v.floor - 1}"


_EXPLAIN = (
    None,
    lambda v: f"{v.missing} events after cursor {v.cursor} are retained (floor {v.floor}, head {v.head})",
    lambda v: f"cursor {v.cursor} is at the head: nothing is missing",
    _below_floor,
    _forked,
    lambda v: (f"session {v.name!r} was reaped (reason {v.last_reason!r}, last id {v.head}): its events are gone; "
               "start a new session"),
    lambda v: f"session {v.name!r} does not exist: start a new session",
    lambda v: (f"the cursor for session {v.name!r} is malformed: send the token as it came in the last id field, "
               "or none to start again"),
)
