"""The HTTP face of a log: an ASGI application, PROTOCOL.md in code, and its parts for other applications.

Guarantees: a verdict stands in the headers of every answer of a session's events before any stream
opens; a cursor that cannot be served never gets a stream; no read creates a session; an append is
answered with 201 only once it is durable. Runs on one event loop. What only a server can promise (the
end of a stalled socket, the shutdown within its grace) is done by `replaylog serve`, and PROTOCOL.md
section 8 says what a mounted application has to set itself. EXAMPLES.md shows each of these at work.

    App            all resources, to serve or to mount
    EventStream    one session's events as a response of Starlette or FastAPI, or as an ASGI callable
    ResumeGuard    the verdict before an application of one's own
    record         a producer, detached from every connection, into a session
"""

from replaylog._sse import CURSOR_HEADERS as EXPOSED_HEADERS
from replaylog.asgi._app import App
from replaylog.asgi._event_stream import EventStream, streams_of
from replaylog.asgi._guard import RedactTickets
from replaylog.asgi._problems import of_error as problem_of
from replaylog.asgi._record import Recording, Result, end_orphans, record
from replaylog.asgi._resume_guard import ResumeGuard
from replaylog.asgi._settings import Settings
from replaylog.asgi._streams import Streams

__all__ = [
    "EXPOSED_HEADERS",
    "App",
    "EventStream",
    "Recording",
    "RedactTickets",
    "Result",
    "ResumeGuard",
    "Settings",
    "Streams",
    "end_orphans",
    "problem_of",
    "record",
    "streams_of",
]
