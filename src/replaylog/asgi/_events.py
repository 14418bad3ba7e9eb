"""`GET | HEAD /sessions/{name}/events`: the verdict, in headers and status, before any stream.

Guarantees: each answer carries the verdict's headers, refusals and HEAD included; a refused cursor
gets no event; an explicit start is judged like any cursor, never moved to where something is left.
Runs on the event loop of its `App`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from replaylog import _sse
from replaylog._cursor import HEAD, START, Origin
from replaylog._errors import NotResumable, SessionReaped, SessionUnknown
from replaylog._verdict import Reason
from replaylog.asgi._problems import Problem, hex_epoch, of_verdict
from replaylog.asgi._settings import Settings
from replaylog.asgi._stream import Stream
from replaylog.asgi._streams import Streams

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from replaylog import Verdict, aio

__all__ = ["answer", "asked_cursor", "fixed_headers"]

_EVENT_STREAM = {"Content-Type": _sse.MEDIA_TYPE}
_ORIGINS = {origin.value: origin for origin in Origin}


def asked_cursor(request: Request) -> str | Origin:
    """The position that a request names. The header wins; an empty one counts as absent.

    What was given more than once is joined as HTTP joins it, and no cursor has a comma.
    """
    headers = request.headers.getlist(_sse.LAST_EVENT_ID)
    if given := ", ".join(headers):
        return given
    query = request.query_params
    if given := ", ".join(query.getlist("last_event_id")):
        return given
    if "from" not in query:
        return START
    origin = ", ".join(query.getlist("from"))
    return _ORIGINS.get(origin, f"from={origin}")


def refuses_in_band(request: Request) -> bool:
    """Whether a refusal goes out as an event; the header overrides the query."""
    return (request.headers.get(_sse.REFUSE) or request.query_params.get("refuse")) == "event"


def fixed_headers(settings: Settings) -> dict[str, str]:
    """What every answer of this resource carries, whatever the verdict."""
    headers = {
        "Cache-Control": "no-store, no-transform",
        "X-Accel-Buffering": "no",
        _sse.KEEPALIVE: f"{settings.keepalive_s:g}",
    }
    if settings.stall_enforced:
        headers[_sse.STALL_MAX] = f"{settings.stall_max_s:g}"
    return headers


async def answer(
    log: aio.Log, settings: Settings, streams: Streams, request: Request, name: str | None
) -> ASGIApp:
    """The response: a stream, 204, or a refusal."""
    cursor, in_band = asked_cursor(request), refuses_in_band(request)
    name = "" if name is None else name
    verdict = await _check(log, name, cursor)
    why = ""
    if verdict.ok and request.method == "GET" and not _finished(verdict):
        why = streams.closed_to_new()
        try:
            if not why:
                return await _open(log, settings, streams, name, cursor)
        except NotResumable as error:  # retention moved between the two questions
            verdict = error.verdict
        except (SessionUnknown, SessionReaped):
            verdict = await _check(log, name, cursor)
            why = "the session was created again at this moment: connect again"
    facts = await _check(log, name, HEAD) if verdict.reason is Reason.MALFORMED else verdict
    headers = fixed_headers(settings) | _verdict_headers(verdict, facts)
    if verdict.ok:
        return _not_now(why, settings, headers, in_band=in_band) if why else _without_stream(verdict, headers)
    if in_band and cursor == _sse.REFUSED_ID:
        # The reader was refused before and asks again by itself: 204 ends that for good.
        return Response(status_code=204, headers=headers)
    refusal = of_verdict(verdict, facts, headers=headers)
    return _as_event(refusal, headers) if in_band else refusal


async def _check(log: aio.Log, name: str, cursor: str | Origin) -> Verdict:
    verdict = log.check_nowait(name, cursor)
    return verdict if verdict is not None else await log.check(name, cursor)


async def _open(
    log: aio.Log, settings: Settings, streams: Streams, name: str, cursor: str | Origin
) -> ASGIApp:
    session = await log.session(name)
    follow = await session.follow(cursor).__aenter__()
    headers = fixed_headers(settings) | _verdict_headers(follow.verdict, follow.verdict)
    return Stream(log, name, follow, settings, streams, headers)


def _not_now(why: str, settings: Settings, headers: dict[str, str], *, in_band: bool) -> Response:
    """The cursor is good and no stream is free. A browser would take 503 for the end of everything."""
    if in_band:
        return Response(_sse.retry(settings.retry_ms), 200, headers | _EVENT_STREAM)
    return Problem(
        503, "no-stream-now", "No new stream now", detail=why, headers=headers | {"Retry-After": "1"}
    )


def _finished(verdict: Verdict) -> bool:
    return verdict.reason is Reason.AT_HEAD and verdict.ended and verdict.seen_end


def _without_stream(verdict: Verdict, headers: dict[str, str]) -> Response:
    if _finished(verdict):
        return Response(status_code=204, headers=headers)
    return Response(status_code=200, headers=headers | _EVENT_STREAM)


def _as_event(refusal: Problem, headers: dict[str, str]) -> Response:
    return Response(_sse.refused(refusal.document), 200, headers | _EVENT_STREAM)


def _verdict_headers(verdict: Verdict, facts: Verdict) -> dict[str, str]:
    """`facts` is the verdict that knows the session; it is another one for a malformed cursor."""
    headers = {
        _sse.VERDICT: verdict.reason.value,
        _sse.PROOF: verdict.proof,
        _sse.SESSION_DURABLE: "?1" if verdict.session_durable else "?0",
    }
    epoch = hex_epoch(facts.epoch)
    for name, value in (
        (_sse.FLOOR, facts.floor),
        (_sse.HEAD, facts.head),
        (_sse.EPOCH, epoch),
        (_sse.STATE, facts.state),
    ):
        if value is not None:
            headers[name] = str(value)
    return headers
