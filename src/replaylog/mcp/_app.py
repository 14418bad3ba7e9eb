"""One line for an implementer: a server of any of the SDKs, and the app that serves it from a log.

Guarantees: the app is the SDK's own, with its routes, its authentication and its lifespan; only the session
manager in it is ours. No name in a module of an SDK is replaced: the manager that the SDK built is changed in
place, before it runs.
"""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from replaylog import aio
from replaylog._log import Log
from replaylog.mcp._book import Limits
from replaylog.mcp._manager import SessionManager
from replaylog.mcp._transport import Refuse

__all__ = ["resumable"]

DEFAULT_PATH = "/mcp"


def resumable(
    server: Any,
    log: Log | aio.Log,
    *,
    refuse: Refuse = "event",
    limits: Limits | None = None,
    retry_interval: int | None = None,
    **options: Any,
) -> Starlette:
    """The ASGI app of an `MCPServer`, a `FastMCP` (of either project) or a low-level `Server`.

    refuse: how a refused cursor is answered, "event" (what the SDKs' clients understand) or "status". limits:
    what each session keeps in the log. retry_interval: milliseconds after which a client should come back
    when the server closes a stream. options: what the SDK's own method for the app takes, where it has one
    (`http_app`, `streamable_http_app`).
    """
    if options.get("event_store") is not None:
        raise ValueError("event_store: the log is the store; leave the argument out")
    attach = _Attach(log, refuse, limits or Limits(), retry_interval)
    if hasattr(server, "http_app"):
        return _from_fastmcp(server, attach, options)
    if hasattr(server, "streamable_http_app"):
        app: Starlette = server.streamable_http_app(**options)
        attach(server.session_manager)
        return app
    return _from_lowlevel(server, attach, options)


class _Attach:
    def __init__(self, log: Log | aio.Log, refuse: Refuse, limits: Limits, retry_interval: int | None) -> None:
        self._log = log
        self._refuse = refuse
        self._limits = limits
        self._retry_interval = retry_interval

    def __call__(self, manager: Any) -> None:
        SessionManager.adopt(manager, log=self._log, refuse=self._refuse, limits=self._limits)
        if self._retry_interval is not None:
            manager.retry_interval = self._retry_interval


def _from_lowlevel(server: Any, attach: _Attach, options: dict[str, Any]) -> Starlette:
    """mcp 1.x has no app for a low-level server."""
    from replaylog.mcp._edges import StreamableHTTPSessionManager

    path = options.pop("streamable_http_path", DEFAULT_PATH)
    manager = StreamableHTTPSessionManager(server, **options)
    attach(manager)
    return Starlette(routes=[Route(path, endpoint=_Endpoint(manager))], lifespan=lambda app: manager.run())


class _Endpoint:
    """An ASGI app, which Starlette tells from a function by its being none."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._manager.handle_request(scope, receive, send)


def _from_fastmcp(server: Any, attach: _Attach, options: dict[str, Any]) -> Starlette:
    """fastmcp makes its manager anew each time the app starts and puts it into its endpoint."""
    app: Starlette = server.http_app(**options)
    endpoint = next(filter(None, (_endpoint_of(route) for route in app.routes)), None)
    if endpoint is None:
        raise ValueError("this app has no streamable HTTP endpoint: resumable() is for that transport")
    base = type(endpoint)

    def get(self: Any) -> Any:
        return self.__dict__.get("session_manager")

    def put(self: Any, manager: Any) -> None:
        attach(manager)
        self.__dict__["session_manager"] = manager

    endpoint.__class__ = type(base.__name__, (base,), {"session_manager": property(get, put)})
    return app


def _endpoint_of(route: Any) -> Any:
    """The endpoint that holds the manager, itself or behind the check of a bearer token."""
    found = getattr(route, "endpoint", None)
    while found is not None and "session_manager" not in getattr(found, "__dict__", ()):
        found = getattr(found, "app", None)
    return found
