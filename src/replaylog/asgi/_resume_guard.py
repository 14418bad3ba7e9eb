"""`ResumeGuard`: the verdict before an application of one's own is called.

Guarantees: the inner application is called only for a cursor that can be replayed, with the reservation
held until it returns; a refusal is the protocol's, by status or in band; what names no session passes
untouched. Runs on one event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from replaylog import _http, aio
from replaylog._errors import NotResumable, SessionReaped, SessionUnknown
from replaylog.asgi import _events
from replaylog.asgi._asked import Asking
from replaylog.asgi._event_stream import streams_of
from replaylog.asgi._streams import Streams

if TYPE_CHECKING:
    from replaylog import Log

__all__ = ["ResumeGuard"]

SCOPE_KEY = "replaylog"


class ResumeGuard:
    """ASGI middleware. `session_of(scope)` names the session that a request reads, or None.

    The inner application finds the reader in `scope["replaylog"]`: an `aio.Follow` that has begun, with
    `.verdict` and `async for`. Its answer gets the verdict's headers.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        log: Log | aio.Log,
        session_of: Callable[[Scope], str | None],
        streams: Streams | None = None,
    ) -> None:
        self._app = app
        self._log = log if isinstance(log, aio.Log) else aio.Log(log)
        self._session_of = session_of
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = None
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            name = self._session_of(scope)
        if name is None:
            await self._app(scope, receive, send)
        else:
            await self._guarded(name, scope, receive, send)

    async def _guarded(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        streams = streams_of(self._log) if self._streams is None else self._streams
        asked = Asking(scope).events()
        try:
            session = await self._log.session(name)
            async with session.follow(asked.cursor) as follow:
                if not _http.is_finished(follow.verdict):
                    headers = _http.raw([*streams.steady, *_http.verdict_headers(follow.verdict)])
                    await self._app({**scope, SCOPE_KEY: follow}, receive, _declaring(send, headers))
                    return
        except NotResumable as error:
            refusal: ASGIApp = await _events.refusal(self._log, streams, name, asked, error.verdict)
        except (SessionUnknown, SessionReaped):
            verdict = await self._log.check(name, asked.cursor)
            refusal = await _events.refusal(self._log, streams, name, asked, verdict)
        else:
            refusal = await _events.answer(self._log, streams, "HEAD", name, asked)
        await refusal(scope, receive, send)


def _declaring(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    ours = {name for name, _ in headers}

    async def wrapped(message: Any) -> None:
        if message["type"] == "http.response.start":
            theirs = [pair for pair in message.get("headers", ()) if pair[0].lower() not in ours]
            message = {**message, "headers": [*theirs, *headers]}
        await send(message)

    return wrapped
