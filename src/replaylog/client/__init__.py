"""The client side: it refuses every stream that cannot prove that it continues the cursor.

Needs no compiler, no LMDB and no engine; httpx only for `connect`, and only once it is called.

    verify_resumption, drain_with_continuity   the decision boundary, as functions
    Verifier                                   the same as a state machine without I/O
    connect                                    a reader that reconnects and verifies, sync and async
    SseParser                                  bytes to frames
"""

from replaylog._cursor import FLOOR, HEAD, START
from replaylog._verdict import ClientState
from replaylog.client.answers import TimeoutConflict
from replaylog.client.outcome import ClientReason, StreamResumptionError
from replaylog.client.position import StreamEvent
from replaylog.client.reader import Backoff
from replaylog.client.reference import Event, ReconnectResult, drain_with_continuity, verify_resumption
from replaylog.client.sse import Frame, FrameTooLarge, SseParser
from replaylog.client.stream import IdleTimeoutWarning, Status, Stream, connect
from replaylog.client.verifier import Verifier

__all__ = [
    "FLOOR",
    "HEAD",
    "START",
    "Backoff",
    "ClientReason",
    "ClientState",
    "Event",
    "Frame",
    "FrameTooLarge",
    "IdleTimeoutWarning",
    "ReconnectResult",
    "SseParser",
    "Status",
    "Stream",
    "StreamEvent",
    "StreamResumptionError",
    "TimeoutConflict",
    "Verifier",
    "connect",
    "drain_with_continuity",
    "verify_resumption",
]
