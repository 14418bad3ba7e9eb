"""The cursor as it goes over the wire: one strict grammar, no I/O, no state.

Guarantees: `parse` accepts exactly what the project issues (a token) and a plain decimal
integer; everything else is `None`, never a guess. A lenient parser is how `.41.`, `41 ` or an
Arabic-Indic digit becomes somebody's position. Callable from any thread.

    token   = epoch "." id "." tag [ ".end" ]
    epoch   = 16 lower-case hex digits      id = 0 or ASCII decimal without leading zero, <= 2^63-1
    tag     = 8 lower-case hex digits       ".end" = the reader has seen the end of the session
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

__all__ = ["FLOOR", "HEAD", "ID_MAX", "START", "Cursor", "Origin", "parse", "token"]

ID_MAX = 2**63 - 1
TOKEN_BYTES_MAX = 16 + 1 + 19 + 1 + 8 + 4

_DECIMAL = "(0|[1-9][0-9]{0,18})"
_TOKEN = re.compile(rf"([0-9a-f]{{16}})\.{_DECIMAL}\.([0-9a-f]{{8}})(\.end)?", re.ASCII)
_INTEGER = re.compile(_DECIMAL, re.ASCII)


class Origin(enum.Enum):
    """A position that a reader names instead of a cursor."""

    START = "start"
    FLOOR = "floor"
    HEAD = "head"

    def __repr__(self) -> str:
        return f"replaylog.{self.name}"


START = Origin.START
FLOOR = Origin.FLOOR
HEAD = Origin.HEAD


class Cursor(NamedTuple):
    """The last event that a reader has seen.

    `epoch` and `tag` are None for a plain integer: it is judged by the window alone.
    """

    id: int
    epoch: int | None = None
    tag: int | None = None
    ended: bool = False


def parse(text: str | bytes) -> Cursor | None:
    """The cursor in `text`, or None where `text` is malformed. Never raises for str or bytes."""
    if len(text) > TOKEN_BYTES_MAX:
        return None
    if isinstance(text, bytes):
        if not text.isascii():
            return None
        text = text.decode("ascii")
    if found := _TOKEN.fullmatch(text):
        epoch, number, tag, end = found.groups()
        cursor = Cursor(int(number), int(epoch, 16), int(tag, 16), end is not None)
    elif _INTEGER.fullmatch(text):
        cursor = Cursor(int(text))
    else:
        return None
    return cursor if cursor.id <= ID_MAX else None


def token(epoch: int, id: int, tag: int, *, end: bool = False) -> str:
    """The wire form of a cursor: 64-bit epoch, id, 32-bit tag."""
    return f"{epoch:016x}.{id}.{tag:08x}{'.end' if end else ''}"
