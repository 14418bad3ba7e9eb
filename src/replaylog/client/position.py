"""Positions and events as the client holds them.

Guarantees: a position keeps the text that the server gave, byte for byte, beside what could be
read from it; an event's payload is what was appended, bytes included. Pure, for any thread.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from replaylog._cursor import ID_MAX, START, Cursor, Origin, parse, token
from replaylog.client.sse import Frame

__all__ = ["CursorLike", "IdOf", "Position", "StreamEvent", "event_of", "position_of", "starting_position"]

CursorLike = int | str | bytes | Cursor | Origin | None
IdOf = Callable[[str], "Cursor | int | None"]

_BASE64 = ";base64"


class Position(NamedTuple):
    """A cursor as the client holds it: the text to send back, and what could be read from it.

    `id` is None for an opaque id: it can be sent back, and it can be compared with nothing.
    """

    text: str
    id: int | None = None
    epoch: int | None = None
    tag: int | None = None

    @property
    def fresh(self) -> bool:
        """Nothing has been seen yet, so nothing can be missed before the first event."""
        return self.id == 0


def position_of(text: str, id_of: IdOf = parse) -> Position:
    """The position that an id field names. An `id_of` that raises ValueError calls it opaque."""
    try:
        found = id_of(text)
    except ValueError:  # int("abc"), the usual id_of: an id that is not ours to read
        return Position(text)
    if found is None:
        return Position(text)
    if isinstance(found, int):
        return Position(text, found)
    return Position(text, found.id, found.epoch, found.tag)


def starting_position(cursor: CursorLike, id_of: IdOf = parse) -> Position | None:
    """The position that a caller names; None where the first id that comes is to be accepted."""
    if isinstance(cursor, Cursor):
        return Position(_text_of(cursor), cursor.id, cursor.epoch, cursor.tag)
    if isinstance(cursor, int) and not isinstance(cursor, bool):
        if not 0 <= cursor <= ID_MAX:
            raise ValueError(f"cursor {cursor} is outside 0..{ID_MAX}: pass an id, a token or None")
        return Position(str(cursor), cursor)
    if isinstance(cursor, bytes):
        cursor = cursor.decode("utf-8")
    if isinstance(cursor, str):
        if any(ord(c) < 0x20 or ord(c) == 0x7F for c in cursor):
            raise ValueError(f"cursor {cursor!r} holds control characters: no id field can have carried it")
        return position_of(cursor, id_of) if cursor else None
    if cursor is None or isinstance(cursor, Origin):
        return Position("0", 0) if cursor is START else None
    raise TypeError(f"cursor is a {type(cursor).__name__}: pass an id, a token, START, FLOOR, HEAD or None")


@dataclasses.dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event off a verified stream.

    `payload` is text, or the exact bytes where the server sent them as base64. `cursor` is the
    position to resume from once this event is dealt with. `id` is None for an event without a
    number: one without an `id` field (its cursor is that of the event before) or with an opaque id.
    """

    id: int | None
    kind: str
    payload: str | bytes
    cursor: str | None

    @property
    def data(self) -> str | bytes:
        """`payload`, under the name that EventSource gives it."""
        return self.payload

    def json(self) -> Any:
        """The payload as the JSON value that was appended."""
        return json.loads(self.payload)


def event_of(frame: Frame, id: int | None, cursor: str | None) -> StreamEvent:
    """The event that a frame carries. Only what decodes strictly is taken for base64."""
    data = frame.data or ""
    kind = frame.event.removesuffix(_BASE64)
    if kind == frame.event:
        return StreamEvent(id, kind, data, cursor)
    try:
        return StreamEvent(id, kind or "message", base64.b64decode(data, validate=True), cursor)
    except (binascii.Error, ValueError):  # another server's kind that only looks like ours
        return StreamEvent(id, frame.event, data, cursor)


def _text_of(cursor: Cursor) -> str:
    if cursor.epoch is None or cursor.tag is None:
        return str(cursor.id)
    return token(cursor.epoch, cursor.id, cursor.tag, end=cursor.ended)
