"""The HTTP face of a log: an ASGI application, PROTOCOL.md in code.

Guarantees: a verdict stands in the headers of every answer of a session's events before any stream
opens; a cursor that cannot be served never gets a stream; no read creates a session; an append is
answered with 201 only once it is durable. Runs on one event loop; `App` may be mounted under any
prefix. What only a server can promise (the end of a stalled socket, the shutdown within its grace)
is done by `replaylog serve`, and PROTOCOL.md says what a mounted application has to set itself.
"""

from replaylog.asgi._app import App
from replaylog.asgi._guard import RedactTickets
from replaylog.asgi._settings import Settings

__all__ = ["App", "RedactTickets", "Settings"]
