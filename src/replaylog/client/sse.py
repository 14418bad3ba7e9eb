"""Server-sent events as they arrive: bytes in, frames out, by the WHATWG rules.

Guarantees:
  1. The frames do not depend on how the bytes were cut: one byte at a time gives the same ones.
  2. A frame tells whether it *contained* an `id` field. The last id alone cannot: it is sticky, so
     an event without one would look like a second copy of the event before it.
  3. What is held is bounded by `line_bytes_max` and `event_bytes_max`; past them, `FrameTooLarge`.

No I/O. One parser per connection, fed by one thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from replaylog._errors import ReplayLogError

__all__ = ["EVENT_BYTES_MAX", "LINE_BYTES_MAX", "Frame", "FrameTooLarge", "SseParser"]

LINE_BYTES_MAX = 64 * 2**20
EVENT_BYTES_MAX = 64 * 2**20
RETRY_MS_MAX = 3_600_000

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_RETRY = re.compile(rb"[0-9]{1,20}")


class Frame(NamedTuple):
    """One block of the stream. `data` is None where the block held an id and no data at all."""

    event: str = "message"
    data: str | None = None
    id: str = ""
    has_id: bool = False


class FrameTooLarge(ReplayLogError):
    """The server sent more than the reader is willing to hold."""

    sentence = "{size} bytes exceed {bound}={limit}: raise {bound}, or have the server send smaller events"
    size: int
    limit: int
    bound: str


class SseParser:
    """Feed it the body's bytes; `retry_ms` and `last_id` are the stream's, as last seen."""

    def __init__(
        self, *, line_bytes_max: int = LINE_BYTES_MAX, event_bytes_max: int = EVENT_BYTES_MAX
    ) -> None:
        self.last_id = ""
        self.retry_ms: int | None = None
        self._line_bytes_max = line_bytes_max
        self._event_bytes_max = event_bytes_max
        self._pending = bytearray()  # the line that has no end yet
        self._after_cr = False  # a LF that comes next belongs to the CR already seen
        self._at_start = True
        self._clear()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """The frames that `chunk` completes. Exhaust it before the next feed."""
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        first, *rest = _LINE_END.split(chunk)
        self._hold(first)
        if not rest:
            return
        self._after_cr = chunk.endswith(b"\r")
        begun = bytes(self._pending)
        self._pending.clear()
        *whole, tail = rest
        for line in (begun, *whole):
            frame = self._line(line)
            if frame is not None:
                yield frame
        self._hold(tail)

    def _hold(self, part: bytes) -> None:
        self._pending += part
        _bound(len(self._pending), "line_bytes_max", self._line_bytes_max)

    def _line(self, line: bytes) -> Frame | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        self._field(name, value.removeprefix(b" "))
        return None

    def _field(self, name: bytes, value: bytes) -> None:
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
            _bound(self._data_bytes, "event_bytes_max", self._event_bytes_max)
        elif name == b"id" and b"\0" not in value:
            self.last_id = _text(value)
            self._has_id = True
        elif name == b"event":
            self._event = _text(value)
        elif name == b"retry" and _RETRY.fullmatch(value):
            self.retry_ms = min(int(value), RETRY_MS_MAX)

    def _dispatch(self) -> Frame | None:
        frame = None
        if self._data or self._has_id:
            data = _text(b"\n".join(self._data)) if self._data else None
            frame = Frame(self._event or "message", data, self.last_id, self._has_id)
        self._clear()
        return frame

    def _clear(self) -> None:
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._event = ""
        self._has_id = False


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _bound(size: int, bound: str, limit: int) -> None:
    if size > limit:
        raise FrameTooLarge(size=size, bound=bound, limit=limit)
