"""`EventStream`: a session's events as a response of somebody else's application.

Guarantees: everything of PROTOCOL.md sections 2 to 5: the verdict before the stream, the statuses, the
headers, the frames, 204 after the end. Who may read is the application's to decide before it returns
this; Host, Origin and tokens are not looked at. What only the server can promise is in section 8.

Made anywhere, called on an event loop. It is a Starlette response, and a plain ASGI callable.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from replaylog import aio
from replaylog._log import Log as SyncLog
from replaylog._session import Session as SyncSession
from replaylog.asgi import _events
from replaylog.asgi._asked import Asking
from replaylog.asgi._streams import Streams

if TYPE_CHECKING:
    from replaylog import Log, Session

__all__ = ["EventStream", "log_and_name", "streams_of"]


class EventStream(Response):
    """The events of a session after the cursor that the request names.

    `session`: a session, or its name with `log=`. The name is the better choice where the session may not
    exist: the reader is then told by a 404 or 410 of the protocol. `request`: anything with a `.scope`,
    or a scope; without it the scope that this is called with. `streams`: whose settings and bounds hold,
    by default `streams_of(log)`.
    """

    def __init__(
        self,
        session: str | Session | aio.Session,
        request: Any = None,
        *,
        log: Log | aio.Log | None = None,
        streams: Streams | None = None,
    ) -> None:
        self._log, self._name = log_and_name(session, log)
        self._scope: Scope | None = getattr(request, "scope", request)
        self._streams = streams
        super().__init__()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streams = streams_of(self._log) if self._streams is None else self._streams
        asking = Asking(self._scope or scope)
        answer = await _events.answer(self._log, streams, asking.method, self._name, asking.events())
        # A framework collects headers and cookies on the response that it was given: they go along.
        more = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await answer(scope, receive, _with_headers(send, more) if more else send)
        if self.background is not None:
            await self.background()


def _with_headers(send: Send, more: list[tuple[bytes, bytes]]) -> Send:
    async def wrapped(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return wrapped


def log_and_name(session: str | Session | aio.Session, log: Log | aio.Log | None) -> tuple[aio.Log, str]:
    """The log of a session, or the one that was given with a name."""
    if isinstance(session, str):
        if log is None:
            raise TypeError("a session by name needs log=")
        return log if isinstance(log, aio.Log) else aio.Log(log), session
    if isinstance(session, aio.Session):
        return session._log, session.name
    if not isinstance(session, SyncSession):
        raise TypeError(f"a session or its name, not {type(session).__name__}")
    assert isinstance(session._log, SyncLog)
    return aio.Log(session._log), session.name


_streams: weakref.WeakKeyDictionary[SyncLog, dict[asyncio.AbstractEventLoop, Streams]] = (
    weakref.WeakKeyDictionary()
)


def streams_of(log: Log | aio.Log) -> Streams:
    """The streams of a log on this loop, made at the first use with the default settings."""
    of_log = _streams.setdefault(log.sync if isinstance(log, aio.Log) else log, {})
    loop = asyncio.get_running_loop()
    if loop not in of_log:
        for old in [other for other in of_log if other.is_closed()]:
            del of_log[old]
        of_log[loop] = Streams()
    return of_log[loop]
