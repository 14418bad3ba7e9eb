"""The session manager: the SDK's, with sessions that outlive the process.

Guarantees: a session that the log knows and that this owner began answers without a new initialize, also
after SIGKILL; anyone else gets the SDK's own "Session not found"; DELETE and the idle timeout reap the
session with all its streams; requests of the 2026-07-28 revision and of stateless managers never come here.
Belongs to the event loop that runs it.
"""

from __future__ import annotations

import logging
import time
from typing import Any
from uuid import uuid4

import anyio
from starlette.types import Receive, Scope, Send

from replaylog import ReplayLogError, aio
from replaylog._log import Log
from replaylog.mcp import _edges, _rebuild
from replaylog.mcp._book import PREFIX, Book, Limits, digest_of
from replaylog.mcp._store import as_aio
from replaylog.mcp._transport import Refuse, Transport

__all__ = ["SessionManager"]

logger = logging.getLogger("replaylog.mcp")

SESSION_ID = b"mcp-session-id"
SWEEP_S = 15.0
PAGE = 1024


class SessionManager(_edges.StreamableHTTPSessionManager):  # type: ignore[misc, unused-ignore]
    """`SessionManager(app, log=log, ...)` where the SDK's own would be made, or `adopt()` for one that is
    made.

    refuse: "event" answers a refused cursor inside the stream, "status" with 409 or 400; a request's header
    `Replay-Refuse` goes before. limits: what each session keeps.
    """

    def __init__(
        self,
        app: Any,
        *,
        log: Log | aio.Log,
        refuse: Refuse = "event",
        limits: Limits | None = None,
        **settings: Any,
    ) -> None:
        if settings.get("event_store") is not None:
            raise ValueError("event_store: this manager has its own for each session; leave the argument out")
        super().__init__(app, **settings)
        self._attach(log, refuse, limits or Limits())

    @classmethod
    def adopt(cls, manager: Any, *, log: Log | aio.Log, refuse: Refuse = "event", limits: Limits | None = None) -> None:
        """Make a manager that an SDK has built, and not yet run, one of ours, in place."""
        manager.__class__ = cls
        manager._attach(log, refuse, limits or Limits())

    def _attach(self, log: Log | aio.Log, refuse: Refuse, limits: Limits) -> None:
        if refuse not in ("event", "status"):
            raise ValueError(f"refuse {refuse!r}: 'event' or 'status'")
        self._log = as_aio(log)
        self._refuse: Refuse = refuse
        self._limits = limits
        self._reviving: dict[str, anyio.Event] = {}
        self._is_swept = False

    # -- sessions --------------------------------------------------------------------------------------

    def _admit_session(self, requestor: Any) -> Transport | None:
        return self.register(uuid4().hex, requestor)

    def register(self, session_id: str, owner: Any, book: Book | None = None) -> Transport | None:
        """A transport for a session, known from here on; None at the session limit."""
        if self.max_sessions is not None and len(self._server_instances) >= self.max_sessions:
            return None
        transport = Transport(
            book or Book(self._log, session_id, self._limits),
            None if owner is None else dict(owner),
            self._refuse,
            mcp_session_id=session_id,
            is_json_response_enabled=self.json_response,
            security_settings=self.security_settings,
            retry_interval=self.retry_interval,
            idle_timeout=self.session_idle_timeout,
        )
        if owner is not None:
            self._session_owners[session_id] = owner
        self._server_instances[session_id] = transport
        return transport

    async def _handle_stateful_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._sweep_from_now_on()
        session_id = next((v.decode("latin-1") for k, v in scope["headers"] if k == SESSION_ID), None)
        if session_id is not None:
            refusal = await self._known(session_id, scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await super()._handle_stateful_request(scope, receive, send)

    async def _known(self, session_id: str, scope: Scope) -> Any:
        """Bring the session back if a former process had it. A response where that is impossible now."""
        while (reviving := self._reviving.get(session_id)) is not None:
            await reviving.wait()
        if session_id in self._server_instances:
            return None
        done = self._reviving[session_id] = anyio.Event()
        try:
            return await _rebuild.revive(self, self._log, session_id, scope, self._limits)
        finally:
            del self._reviving[session_id]
            done.set()

    async def _discard_session(self, session_id: str, transport: Any) -> None:
        idle = transport.idle_scope is not None and transport.idle_scope.cancel_called
        await super()._discard_session(session_id, transport)
        if idle and isinstance(transport, Transport) and not transport.book.is_reaped:
            with anyio.CancelScope(shield=True):
                await self._reap(transport.book, "idle")

    async def _reap(self, book: Book, reason: str) -> None:
        try:
            await book.reap(reason)
        except ReplayLogError as error:
            logger.error("session %s is not reaped: %s", book.prefix, error)

    # -- sweeping --------------------------------------------------------------------------------------

    def _sweep_from_now_on(self) -> None:
        group: Any = self._task_group
        if not self._is_swept and group is not None:
            self._is_swept = True
            group.start_soon(self._sweep)

    async def _sweep(self) -> None:
        """Finished streams age; sessions that no client has come back to since the start are reaped."""
        started_s = time.monotonic()
        left = await self._left_behind()
        while True:
            await anyio.sleep(min(SWEEP_S, self._limits.finished_age_s / 2, (self.session_idle_timeout or 1e9) / 2))
            books = {t.book.prefix: t.book for t in self._server_instances.values() if isinstance(t, Transport)}
            for book in books.values():
                book.expire()
            left -= books.keys()
            if self.session_idle_timeout is not None and time.monotonic() - started_s > self.session_idle_timeout:
                await self._reap_all(left)
                left = set()

    async def _left_behind(self) -> set[str]:
        """Prefixes of the sessions that a former process has left in the log."""
        found: set[str] = set()
        after: str | None = None
        try:
            while page := await self._log.sessions(PREFIX, after, PAGE):
                found |= {info.name.rpartition("/")[0] + "/" for info in page}
                after = page[-1].name
        except ReplayLogError as error:
            logger.error("the sessions in the log cannot be listed: %s", error)
        return found - {f"{PREFIX}{digest_of(session_id)}/" for session_id in self._server_instances}

    async def _reap_all(self, prefixes: set[str]) -> None:
        for prefix in prefixes:
            try:
                await self._log.reap(prefix=prefix, reason="idle")
            except ReplayLogError as error:
                logger.error("session %s is not reaped: %s", prefix, error)
