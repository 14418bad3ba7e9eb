"""The control frames of a stream, and the names of its headers: pure text, no I/O.

Guarantees: every control frame carries an `id:`, because clients keep the last id field that they
saw; no argument can break a frame, because JSON is written in ASCII on one line and whatever else
goes in is checked for line ends. Frames of *events* are made by the core, which stores them ready.
Callable from any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = [
    "CAUGHT_UP",
    "CURSOR_HEADERS",
    "END",
    "END_MARK",
    "LAST_EVENT_ID",
    "MEDIA_TYPE",
    "OVERRUN",
    "REFUSED",
    "REFUSED_ID",
    "REPLAY",
    "REQUEST_HEADERS",
    "comment",
    "control",
    "refused",
    "retry",
]

MEDIA_TYPE: Final = "text/event-stream"
LAST_EVENT_ID: Final = "Last-Event-ID"

REPLAY: Final = "replay"
CAUGHT_UP: Final = "replay-caught-up"
OVERRUN: Final = "replay-overrun"
END: Final = "replay-end"
REFUSED: Final = "replay-refused"

END_MARK: Final = ".end"
REFUSED_ID: Final = "refused"  # no token and no integer: judged anywhere else, it is malformed

VERDICT: Final = "Replay-Verdict"
FLOOR: Final = "Replay-Floor"
HEAD: Final = "Replay-Head"
EPOCH: Final = "Replay-Epoch"
STATE: Final = "Replay-State"
PROOF: Final = "Replay-Proof"
SESSION_DURABLE: Final = "Session-Durable"
KEEPALIVE: Final = "Replay-Keepalive"
STALL_MAX: Final = "Replay-Stall-Max"
REFUSE: Final = "Replay-Refuse"

CURSOR_HEADERS: Final = (
    VERDICT,
    FLOOR,
    HEAD,
    EPOCH,
    STATE,
    PROOF,
    SESSION_DURABLE,
    KEEPALIVE,
    STALL_MAX,
)
REQUEST_HEADERS: Final = (LAST_EVENT_ID, "Authorization", "If-Match", "Idempotency-Key", REFUSE)

_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_BREAKS = re.compile("[\r\n\0]")


def control(event: str, token: str, data: Mapping[str, Any]) -> bytes:
    """One control frame: `id:`, `event:`, one line of JSON."""
    return f"id: {_one_line(token)}\nevent: {_one_line(event)}\ndata: {_json(data)}\n\n".encode("ascii")


def refused(problem: Mapping[str, Any]) -> bytes:
    """The refusal for a reader that sees no status: its next `Last-Event-ID` is `refused`."""
    return control(REFUSED, REFUSED_ID, problem)


def comment(text: str) -> bytes:
    """A line that every SSE parser ignores: a sign of life, no event."""
    return f": {_one_line(text)}\n\n".encode()


def retry(wait_ms: int) -> bytes:
    """How long a client should wait before it connects again."""
    assert wait_ms >= 0
    return f"retry: {wait_ms}\n\n".encode("ascii")


def _one_line(text: str) -> str:
    if _BREAKS.search(text):
        raise ValueError(f"{text!r} would break the frame: no CR, LF or NUL here")
    return text
