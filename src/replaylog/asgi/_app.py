"""`App`: a log as an ASGI application.

Guarantees: a request passes host, origin and credentials before it is looked at; every answer to it
is one of PROTOCOL.md's. Made anywhere, used from one event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from replaylog import _sse
from replaylog._errors import ReplayLogError
from replaylog.asgi import _body, _events, _writes
from replaylog.asgi._asked import Asking
from replaylog.asgi._guard import Guard
from replaylog.asgi._path import Target, target
from replaylog.asgi._problems import BadRequest, Problem, hex_epoch, of_error
from replaylog.asgi._settings import Settings
from replaylog.asgi._streams import Abort, Streams, Writable

if TYPE_CHECKING:
    import replaylog
    from replaylog import aio

__all__ = ["App"]

PAGE = 100
METHODS: dict[str, tuple[str, ...]] = {
    "health": ("GET", "HEAD"),
    "sessions": ("GET", "HEAD"),
    "tickets": ("POST",),
    "session": ("GET", "HEAD", "PUT", "DELETE"),
    "events": ("GET", "HEAD", "POST"),
    "end": ("POST",),
}


class App:
    """Serves `log`, a `replaylog.Log` or a `replaylog.aio.Log`; closing it stays with its owner.

    `settings` by keyword, as in `Settings`. `abort` closes the connection of a request at once, and
    `writable` says whether a `send` would be done at once; a server that can passes them (`replaylog
    serve` does).
    """

    def __init__(
        self,
        log: replaylog.Log | aio.Log,
        *,
        settings: Settings | None = None,
        abort: Abort | None = None,
        writable: Writable | None = None,
        now_s: Callable[[], float] = time.time,
        **named: Any,
    ) -> None:
        if settings is not None and named:
            raise TypeError("settings= or single settings by name, not both")
        self.settings = settings or Settings(**named)
        self._given = log
        self._log: aio.Log | None = None
        self._guard = Guard(self.settings, now_s)
        self._streams = Streams(self.settings, abort=abort, writable=writable)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    async def drain(self, timeout_s: float = 2.0) -> None:
        """End all streams: each gets a `retry:` and closes at once; no new one opens. Await it before
        the server waits for its connections to close."""
        await self._streams.drain(timeout_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            asking = Asking(scope)
            headers = self._cors(asking)
            answer = await self._answer(asking, scope, receive)
            await answer(scope, receive, _with_headers(send, headers) if headers else send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.drain()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})

    # --- one request -----------------------------------------------------------------------------

    async def _answer(self, request: Asking, scope: Scope, receive: Receive) -> ASGIApp:
        asked = target(scope)
        refusal = self._refused(request, asked)
        if refusal is None:
            try:
                if asked.resource == "events" and request.method in ("GET", "HEAD"):
                    name = "" if asked.name is None else asked.name
                    return await _events.answer(
                        self._aio(), self._streams, request.method, name, request.events()
                    )
                return await self._handle(Request(scope, receive), asked)
            except BadRequest as error:
                refusal = error.problem
            except ReplayLogError as error:
                refusal = of_error(error)
            except TimeoutError as error:
                refusal = _unknown_outcome(error)
        if asked.resource == "events" and request.method in ("GET", "HEAD"):
            refusal.headers.update(dict(self._streams.steady))
        return refusal

    def _refused(self, request: Asking, asked: Target) -> Problem | None:
        guard = self._guard
        if refusal := guard.host(request):
            return refusal
        methods = METHODS.get(asked.resource)
        if methods is None:
            return Problem(404, "not-found", "No such resource", detail="PROTOCOL.md lists the resources")
        if refusal := guard.origin(request):
            return refusal
        # A preflight carries no credentials, a health probe has none.
        if request.method == "OPTIONS" or asked.resource == "health":
            pass
        elif refusal := guard.credentials(request, asked.name):
            return refusal
        if request.method not in (*methods, "OPTIONS"):
            allow = {"Allow": ", ".join((*methods, "OPTIONS"))}
            return Problem(405, "method-not-allowed", "Not a method of this resource", headers=allow)
        if asked.named and not asked.name and asked.resource != "events":
            detail = "a name is 1 to 255 bytes of UTF-8, percent-encoded"
            return Problem(400, "name-invalid", "Not a name of a session", detail=detail)
        return None

    async def _handle(self, request: Request, asked: Target) -> ASGIApp:
        log, name, method = self._aio(), asked.name or "", request.method
        match asked.resource, method:
            case resource, "OPTIONS":
                return Response(
                    status_code=204, headers={"Allow": ", ".join((*METHODS[resource], "OPTIONS"))}
                )
            case "events", _:
                return await _writes.append(log, self.settings, request, name)
            case "session", "PUT":
                return await _writes.create(log, request, name)
            case "session", "DELETE":
                return await _writes.reap(log, request, name)
            case "session", _:
                return await _session(log, request, name)
            case "end", _:
                return await _writes.end(log, self.settings, request, name)
            case "tickets", _:
                return await self._ticket(request)
            case "sessions", _:
                return await self._sessions(log, request)
            case _:
                return await self._health(log)

    def _aio(self) -> aio.Log:
        if self._log is None:
            from replaylog import aio

            self._log = self._given if isinstance(self._given, aio.Log) else aio.Log(self._given)
        return self._log

    # --- the small resources ---------------------------------------------------------------------

    async def _sessions(self, log: aio.Log, request: Request) -> Response:
        query = request.query_params
        limit = query.get("limit", str(PAGE))
        if not (limit.isascii() and limit.isdecimal() and 0 < int(limit) <= self.settings.page_max):
            detail = f"limit is a number from 1 to {self.settings.page_max}"
            return Problem(400, "query-invalid", "Not a page", detail=detail)
        found = await log.sessions(query.get("prefix", ""), query.get("after"), int(limit))
        rows = [
            {
                "name": row.name,
                "state": row.state,
                "epoch": hex_epoch(row.epoch),
                "floor": row.floor,
                "head": row.head,
                "meta": row.meta,
            }
            for row in found
        ]
        after = rows[-1]["name"] if len(rows) == int(limit) else None
        return JSONResponse({"sessions": rows, "next": after}, headers={"Cache-Control": "no-store"})

    async def _ticket(self, request: Request) -> Response:
        fields = await _body.fields(request, "session", "ttl_s")
        session, ttl_s = fields.get("session", ""), fields.get("ttl_s")
        timed = ttl_s is None or (isinstance(ttl_s, int | float) and not isinstance(ttl_s, bool))
        if not isinstance(session, str) or not timed:
            raise BadRequest(400, "body-malformed", "Not a ticket", "session is a string, ttl_s a number")
        ticket, life_s = self._guard.issue(session, ttl_s)
        return JSONResponse({"ticket": ticket, "ttl_s": life_s}, 201, {"Cache-Control": "no-store"})

    async def _health(self, log: aio.Log) -> Response:
        """503 where a supervisor should act: a poisoned log takes no append until it is opened again."""
        status = "ok"
        if self._streams.draining:
            status = "draining"
        elif log.sync.closed:
            status = "closed"
        elif (await log.stats()).get("poisoned"):
            status = "poisoned"
        document = {"status": status, "streams": self.streams}
        return JSONResponse(document, 200 if status == "ok" else 503, {"Cache-Control": "no-store"})

    # --- CORS ------------------------------------------------------------------------------------

    def _cors(self, request: Asking) -> list[tuple[bytes, bytes]]:
        """The headers that let a page of an allowed origin read the answer."""
        origin = request.header(b"origin")
        if origin is None or not self.settings.cors:
            return []
        named = origin in self.settings.cors
        if not named and "*" not in self.settings.cors:
            return [(b"vary", b"Origin")]
        exposed = (*_sse.CURSOR_HEADERS, "ETag", "Retry-After")
        return [
            (b"vary", b"Origin"),
            (b"access-control-allow-origin", origin.encode("latin-1") if named else b"*"),
            (b"access-control-expose-headers", ", ".join(exposed).encode()),
            (b"access-control-allow-headers", ", ".join((*_sse.REQUEST_HEADERS, "Content-Type")).encode()),
            (b"access-control-allow-methods", b"GET, HEAD, PUT, POST, DELETE"),
            (b"access-control-max-age", b"600"),
        ]


async def _session(log: aio.Log, request: Request, name: str) -> Response:
    session = await log.session(name)
    etag = f'"{session.cursor}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return JSONResponse(_writes.described(session), headers=headers)


def _unknown_outcome(error: TimeoutError) -> Problem:
    return Problem(
        500,
        "outcome-unknown",
        "The event may or may not be in the log",
        detail=f"the append was not durable in time ({error}): read the head, or repeat it with the same key",
    )


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def wrapped(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return wrapped
