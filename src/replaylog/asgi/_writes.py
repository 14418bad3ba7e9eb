"""The writing resources: create, append, end, reap.

Guarantees: 201 for an append is sent only once the event is durable; a precondition that does not
hold, or a key with another content, appends nothing; what is not understood appends nothing.
Runs on the event loop of its `App`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from replaylog import _cursor
from replaylog._errors import HeadMoved
from replaylog._verdict import Reason
from replaylog.asgi import _body
from replaylog.asgi._problems import BadRequest, hex_epoch
from replaylog.asgi._settings import Settings

if TYPE_CHECKING:
    from replaylog import Retention, aio

__all__ = ["append", "create", "end", "reap"]

RETENTION_FIELDS = ("events", "bytes", "age_s")


async def create(log: aio.Log, request: Request, name: str) -> Response:
    """PUT: 201, or 409 when it exists. The body may carry `meta` and `retention`."""
    fields = await _body.fields(request, "meta", "retention")
    try:
        session = await log.create(
            name, meta=fields.get("meta"), retention=_retention(fields.get("retention"))
        )
    except (ValueError, TypeError) as error:
        raise BadRequest(400, "session-invalid", "The session cannot be created so", str(error)) from None
    return JSONResponse(described(session), 201, {"ETag": f'"{session.cursor}"', "Cache-Control": "no-store"})


def _retention(limits: Any) -> Retention | None:
    from replaylog import Retention

    if limits is None:
        return None
    if not isinstance(limits, dict) or not set(limits) <= set(RETENTION_FIELDS):
        raise ValueError(f"retention is an object with no member but {', '.join(RETENTION_FIELDS)}")
    return Retention(**limits)


def described(session: aio.Session) -> dict[str, Any]:
    """A session as JSON."""
    return {
        "name": session.name,
        "state": session.state,
        "epoch": hex_epoch(session.epoch),
        "floor": session.floor,
        "head": session.head,
        "cursor": session.cursor,
        "meta": session.meta,
    }


async def append(log: aio.Log, settings: Settings, request: Request, name: str) -> Response:
    """POST events: one event from the body, or a msgpack batch."""
    session = await log.session(name)
    body = await _body.read(request, log.event_bytes_max)
    if (media := _body.media_type(request)) == _body.BATCH:
        return await _append_batch(session, settings, request, body)
    kind = request.query_params.get("kind", "message")
    payload = _body.payload(body, media)
    expect_head = await _expected_head(session, request)
    try:
        id = await session.append(
            payload,
            kind=kind,
            key=request.headers.get("idempotency-key"),
            expect_head=expect_head,
            timeout=settings.append_timeout_s,
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise _event_invalid(error) from None
    return _appended({"id": id, "cursor": await _token(session, id)})


async def _append_batch(session: aio.Session, settings: Settings, request: Request, body: bytes) -> Response:
    if "idempotency-key" in request.headers:
        detail = (
            "Idempotency-Key goes with one event, not with a batch: use If-Match, or send them one by one"
        )
        raise BadRequest(400, "batch-with-key", "A batch takes no key", detail)
    items = _body.batch(body, settings.batch_events_max)
    expect_head = await _expected_head(session, request)
    try:
        ids = await session.extend(items, expect_head=expect_head, timeout=settings.append_timeout_s)
    except (ValueError, TypeError, OverflowError) as error:
        raise _event_invalid(error) from None
    return _appended({"id": ids[-1], "first": ids[0], "cursor": await _token(session, ids[-1])})


def _appended(document: dict[str, Any]) -> Response:
    return JSONResponse(document, 201, {"Cache-Control": "no-store"})


def _event_invalid(error: Exception) -> BadRequest:
    return BadRequest(400, "event-invalid", "The event cannot be stored", str(error))


async def _token(session: aio.Session, id: int) -> str | None:
    """The cursor of `id`; None if retention has passed it already."""
    at_head = session.cursor
    if at_head.split(".", 2)[1] == str(id):
        return at_head
    token: str | None = (await session.check(id)).from_token
    return token


async def _expected_head(session: aio.Session, request: Request) -> int | None:
    """The head that `If-Match` asks for, compared by epoch and tag too; None without a condition."""
    condition = request.headers.get("if-match", "").strip()
    if not condition or condition == "*":
        return None
    expected = 0
    for tag in condition.split(","):
        cursor = _cursor.parse(tag.strip().strip('"'))
        if cursor is None or cursor.epoch is None:
            continue
        expected = cursor.id
        text = _cursor.token(cursor.epoch, cursor.id, cursor.tag or 0)
        if (await session.check(text)).reason is Reason.AT_HEAD:
            return cursor.id
    raise HeadMoved(name=session.name, expected=expected, head=session.head)


async def end(log: aio.Log, settings: Settings, request: Request, name: str) -> Response:
    """POST end: the body, if there is one, is the last event."""
    session = await log.session(name)
    body = await _body.read(request, log.event_bytes_max)
    query = request.query_params
    payload = _body.payload(body, _body.media_type(request)) if body else None
    try:
        await session.end(
            payload,
            kind=query.get("kind", "message"),
            reason=query.get("reason", ""),
            timeout=settings.append_timeout_s,
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise _event_invalid(error) from None
    return JSONResponse(described(session), 200, {"Cache-Control": "no-store"})


async def reap(log: aio.Log, request: Request, name: str) -> Response:
    """DELETE: the events go, a tombstone stays."""
    await log.reap(name, reason=request.query_params.get("reason", ""))
    return Response(status_code=204)
