"""The events of one session: the verdict, in headers and status, before any stream.

Guarantees: each answer carries the verdict's headers, refusals and HEAD included; a refused cursor
gets no event; an explicit start is judged like any cursor, never moved to where something is left.
Runs on one event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from replaylog import _http, _sse, aio
from replaylog._cursor import HEAD
from replaylog._errors import NotResumable, SessionReaped, SessionUnknown
from replaylog._verdict import Reason
from replaylog.asgi._problems import Problem, of_verdict
from replaylog.asgi._stream import Stream
from replaylog.asgi._streams import Streams

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from replaylog import Verdict
    from replaylog._cursor import Origin
    from replaylog._session import Follow, Session

__all__ = ["answer", "begin", "refusal"]


async def answer(log: aio.Log, streams: Streams, method: str, name: str, asked: _http.Asked) -> ASGIApp:
    """The response: a stream, 204, or a refusal. HEAD gives the verdict alone."""
    why = streams.closed_to_new()
    if method != "HEAD" and not why:
        try:
            session, follow = await begin(log, name, asked.cursor)
        except NotResumable as error:
            return await refusal(log, streams, name, asked, error.verdict)
        except (SessionUnknown, SessionReaped):
            pass  # judged below, as for HEAD
        else:
            verdict = follow.verdict
            headers = _http.raw([*streams.steady, *_http.verdict_headers(verdict)])
            if not _http.is_finished(verdict):
                return Stream(log, session, follow, streams, headers, until_head=asked.until_head)
            follow.close()
            return _finished(streams, verdict)
    verdict = await _check(log, name, asked.cursor)
    if not verdict.ok:
        return await refusal(log, streams, name, asked, verdict)
    if _http.is_finished(verdict):
        return _finished(streams, verdict)
    if method == "HEAD":
        return Response(status_code=200, headers=_headers(streams, verdict, _http.EVENT_STREAM))
    why = why or "the session was created again at this moment: connect again"
    return _not_now(why, streams, asked, _headers(streams, verdict))


async def begin(log: aio.Log, name: str, cursor: str | Origin) -> tuple[Session, Follow]:
    """Verdict and reservation in one step; in a thread only where the disk has to be asked."""
    session = (await log.session(name)).sync
    if session.judge_in_memory(cursor) is not None:
        return session, session.follow(cursor)
    return session, await aio._in_thread(session.follow, cursor)


async def refusal(
    log: aio.Log, streams: Streams, name: str, asked: _http.Asked, verdict: Verdict
) -> Response:
    """The answer to a cursor that cannot be served: by status, or as an event for who sees no status."""
    facts = await _check(log, name, HEAD) if verdict.reason is Reason.MALFORMED else verdict
    headers = _headers(streams, verdict, facts=facts)
    if not asked.in_band:
        return of_verdict(verdict, facts, headers=headers)
    if asked.cursor == _sse.REFUSED_ID:
        # The reader was refused before and asks again by itself: 204 ends that for good.
        return Response(status_code=204, headers=headers)
    frame = _sse.refused(_http.problem_members(verdict, facts))
    return Response(frame, 200, headers | dict([_http.EVENT_STREAM]))


async def _check(log: aio.Log, name: str, cursor: str | Origin) -> Verdict:
    verdict = log.check_nowait(name, cursor)
    return verdict if verdict is not None else await log.check(name, cursor)


def _headers(
    streams: Streams, verdict: Verdict, *more: tuple[str, str], facts: Verdict | None = None
) -> dict[str, str]:
    return dict([*streams.steady, *_http.verdict_headers(verdict, facts), *more])


def _finished(streams: Streams, verdict: Verdict) -> Response:
    return Response(status_code=204, headers=_headers(streams, verdict))


def _not_now(why: str, streams: Streams, asked: _http.Asked, headers: dict[str, str]) -> Response:
    """The cursor is good and no stream is free. A browser would take 503 for the end of everything."""
    if asked.in_band:
        frame = _sse.retry(streams.settings.retry_ms)
        return Response(frame, 200, headers | dict([_http.EVENT_STREAM]))
    headers["retry-after"] = "1"
    return Problem(503, "no-stream-now", "No new stream now", detail=why, headers=headers)
