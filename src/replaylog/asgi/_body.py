"""Request bodies: read within a bound, then turned into a payload.

Guarantees: never holds more than the bound; what is declared as JSON, text or msgpack and is not
becomes 400, never bytes by accident.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgpack
from starlette.requests import ClientDisconnect, Request

from replaylog.asgi._problems import BadRequest

__all__ = ["BATCH", "batch", "fields", "media_type", "payload", "read"]

BATCH = "application/msgpack"
JSON = "application/json"
FIELDS_BYTES_MAX = 64 * 1024


async def read(request: Request, bytes_max: int) -> bytes:
    """The body; 413 as soon as it is known to be longer than `bytes_max`."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > bytes_max:
        raise _too_large(request, int(declared), bytes_max)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > bytes_max:
                raise _too_large(request, size, bytes_max)
            chunks.append(chunk)
    except ClientDisconnect:
        raise BadRequest(400, "body-malformed", "The body is not complete", "the client went away") from None
    return b"".join(chunks)


def _too_large(request: Request, size: int, bytes_max: int) -> BadRequest:
    detail = f"{size} bytes exceed event_bytes_max={bytes_max}: split the payload or raise event_bytes_max"
    error = BadRequest(
        413,
        "event-too-large",
        "The event is too large",
        detail,
        size=size,
        limit=bytes_max,
        bound="event_bytes_max",
    )
    # The rest of the body is not read: an HTTP/1 connection cannot be used again.
    if request.scope.get("http_version", "1.1").startswith("1"):
        error.problem.headers["Connection"] = "close"
    return error


def media_type(request: Request) -> str:
    """The media type without its parameters, lower case, "" when there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def payload(body: bytes, media: str) -> Any:
    """JSON becomes a value, text a str, anything else stays bytes."""
    if media == JSON:
        return _json(body)
    if media.startswith("text/"):
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise _malformed(f"{media} must be UTF-8 here: {error}") from None
    return body


def batch(body: bytes, events_max: int) -> list[tuple[Any, str]]:
    """The `[payload, kind]` pairs of a msgpack batch."""
    try:
        items = msgpack.unpackb(body, strict_map_key=True)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise _malformed(f"not msgpack: {error or type(error).__name__}") from None
    if not isinstance(items, list) or not items:
        raise _malformed("a batch is a list of [payload, kind] and not empty")
    if len(items) > events_max:
        raise BadRequest(
            413,
            "event-too-large",
            "The batch is too large",
            f"{len(items)} events exceed batch_events_max={events_max}: send several batches",
            size=len(items),
            limit=events_max,
            bound="batch_events_max",
        )
    return [_pair(item) for item in items]


def _pair(item: Any) -> tuple[Any, str]:
    match item:
        case [value, str(kind)]:
            return value, kind
    raise _malformed("each item of a batch is [payload, kind] with kind a string")


async def fields(request: Request, *allowed: str) -> dict[str, Any]:
    """A small JSON object with no member but `allowed`; an empty body is an empty object."""
    body = await read(request, FIELDS_BYTES_MAX)
    value = _json(body) if body else {}
    if not isinstance(value, dict) or not set(value) <= set(allowed):
        raise _malformed(f"the body is a JSON object with no member but {', '.join(allowed)}")
    return value


def _json(body: bytes) -> Any:
    try:
        # Only UTF-8: json would guess at UTF-16, and then two readers see two payloads.
        return json.loads(body.decode(), parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"not JSON in UTF-8: {error}") from None


def _not_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _malformed(detail: str) -> BadRequest:
    return BadRequest(400, "body-malformed", "The body is not what its Content-Type says", detail)
