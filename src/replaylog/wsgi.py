"""A session's events for Django, Flask and any other WSGI application, as a sync generator.

Guarantees: the same answers as `replaylog.asgi` (PROTOCOL.md sections 2 to 5), made from the same text.
One thread serves one stream for as long as it lasts: that is WSGI, and `streams_max` is the server's
number of threads. A reader that left is noticed at the next write, `keepalive_s` later at the latest.
Needs no framework.
"""

from __future__ import annotations

import http
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from replaylog import _http, _sse
from replaylog._cursor import HEAD
from replaylog._errors import LogClosed, NotResumable, Overrun, SessionReaped, SessionUnknown
from replaylog._log import Log as SyncLog
from replaylog._verdict import Reason

if TYPE_CHECKING:
    from replaylog import Log, Session, Verdict
    from replaylog._session import Follow

__all__ = ["Answer", "EventStream", "answer"]

KEEPALIVE_S = 15.0
RETRY_MS = 1000
CHUNK_BYTES = 128 * 1024


class Answer(NamedTuple):
    """Status, headers, and the body: an iterable of bytes with `close()`."""

    status: int
    headers: _http.Headers
    body: Iterable[bytes]


def answer(
    session: str | Session,
    environ: Mapping[str, Any],
    *,
    log: Log | None = None,
    keepalive_s: float = KEEPALIVE_S,
) -> Answer:
    """The answer to a request for the events of `session` (or of that name in `log`).

    `environ` is the WSGI environment, in Django `request.META`.
    """
    asked, method = _asked(environ), environ["REQUEST_METHOD"]
    name, log = (session, log) if isinstance(session, str) else (session.name, _log_of(session))
    if log is None:
        raise TypeError("a session by name needs log=")
    try:
        follow = log.session(name).follow(asked.cursor, timeout_s=keepalive_s)
    except NotResumable as error:
        verdict = error.verdict
    except (SessionUnknown, SessionReaped):
        verdict = log.check(name, asked.cursor)
    else:
        return _served(log, name, follow, asked, method, keepalive_s)
    return _refused(log, name, asked, method, verdict, keepalive_s)


class EventStream:
    """A WSGI application that serves one session: `return EventStream(name, log=log)` where a framework
    takes one, or `EventStream(name, log=log)(environ, start_response)`."""

    def __init__(
        self, session: str | Session, *, log: Log | None = None, keepalive_s: float = KEEPALIVE_S
    ) -> None:
        self._session, self._log, self._keepalive_s = session, log, keepalive_s

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        made = answer(self._session, environ, log=self._log, keepalive_s=self._keepalive_s)
        start_response(f"{made.status} {http.HTTPStatus(made.status).phrase}", made.headers)
        return made.body


def _log_of(session: Session) -> Log:
    assert isinstance(session._log, SyncLog)
    return session._log


def _asked(environ: Mapping[str, Any]) -> _http.Asked:
    # A server joins what was sent twice with a comma, and no cursor has one.
    cursors = [environ["HTTP_LAST_EVENT_ID"]] if "HTTP_LAST_EVENT_ID" in environ else []
    query = _http.query_of(environ.get("QUERY_STRING", ""))
    return _http.read(cursors, environ.get("HTTP_REPLAY_REFUSE", ""), query)


def _served(
    log: Log, name: str, follow: Follow, asked: _http.Asked, method: str, keepalive_s: float
) -> Answer:
    verdict = follow.verdict
    headers = _http.steady_headers(keepalive_s, None) + _http.verdict_headers(verdict)
    if _http.is_finished(verdict) or method == "HEAD":
        follow.close()
        if _http.is_finished(verdict):
            return Answer(204, headers, [])
        return Answer(200, [*headers, _http.EVENT_STREAM], [])
    return Answer(
        200, [*headers, _http.EVENT_STREAM], _Frames(log, name, follow, until_head=asked.until_head)
    )


def _refused(
    log: Log, name: str, asked: _http.Asked, method: str, verdict: Verdict, keepalive_s: float
) -> Answer:
    facts = log.check(name, HEAD) if verdict.reason is Reason.MALFORMED else verdict
    headers = _http.steady_headers(keepalive_s, None) + _http.verdict_headers(verdict, facts)
    problem = _http.problem_members(verdict, facts)
    if not asked.in_band:
        body = [] if method == "HEAD" else [json.dumps(problem).encode()]
        return Answer(problem["status"], [*headers, ("content-type", "application/problem+json")], body)
    if asked.cursor == _sse.REFUSED_ID:
        return Answer(204, headers, [])
    return Answer(200, [*headers, _http.EVENT_STREAM], [_sse.refused(problem)])


class _Frames:
    """The body of a stream. The server calls `close` when the reader is gone."""

    def __init__(self, log: Log, name: str, follow: Follow, *, until_head: bool) -> None:
        self._log, self._name, self._follow = log, name, follow
        self._frames = self._all(until_head)

    def __iter__(self) -> Iterator[bytes]:
        return self._frames

    def close(self) -> None:
        self._follow.close()
        self._frames.close()

    def _all(self, until_head: bool) -> Generator[bytes, None, None]:
        follow = self._follow
        try:
            yield from self._backlog()
            if not follow.verdict.ended:
                yield _http.caught_up(follow.cursor)
                if until_head:
                    return
            yield from self._live()
            if follow.ended:
                token = follow.cursor
                yield _http.ending(token, self._log.check(self._name, token).last_reason)
        except Overrun as overrun:
            yield _sse.control(_sse.OVERRUN, follow.cursor, _http.problem_members(overrun.verdict))
        except LogClosed:  # for the reader it is a server that goes
            yield _sse.retry(RETRY_MS)
        finally:
            follow.close()

    def _backlog(self) -> Iterator[bytes]:
        follow, out = self._follow, _http.opening(self._follow.verdict)
        while _http.id_of(follow.cursor) < (follow.verdict.head or 0) and (part := follow.take(CHUNK_BYTES)):
            yield out + part
            out = b""
        if out:
            yield out

    def _live(self) -> Iterator[bytes]:
        frames = self._follow.frames(CHUNK_BYTES)
        while True:
            try:
                yield from frames
            except TimeoutError:
                yield _sse.comment(f"head={self._follow.head}")
                frames = self._follow.frames(CHUNK_BYTES)  # a generator that raised is over
            else:
                return
