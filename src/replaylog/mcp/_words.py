"""What a client is told, inside a stream and in headers: pure text.

Guarantees: a refused cursor and a failed log end a call with a JSON-RPC error that carries the numbers; an id
that belongs to someone else is refused in the same words as one that never existed; nothing here is stored.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from replaylog import Reason, Verdict, _sse
from replaylog._verdict import PROBLEM_BASE, wire_of
from replaylog.mcp import _edges

if TYPE_CHECKING:
    from replaylog.mcp._book import Book, Stream

__all__ = [
    "INTERRUPTED",
    "Outgoing",
    "broken",
    "comment",
    "error_text",
    "failure",
    "headers",
    "problem",
    "refusal",
    "unknown_id",
    "unknown_id_text",
]

INTERNAL_ERROR: Final = -32603
INTERRUPTED: Final = "the server process ended while this call was running: it has no result; call again"
UNKNOWN_ID: Final = "this event id does not belong to this session, or its events are gone: call again"
KEEPALIVE_S: Final = 15  # sse-starlette's own pings

_LISTS: Final = (
    ("tools", "notifications/tools/list_changed"),
    ("prompts", "notifications/prompts/list_changed"),
    ("resources", "notifications/resources/list_changed"),
)


class Outgoing:
    """One event on its way to the wire: what the SDK calls an EventMessage, with its text ready."""

    __slots__ = ("event_id", "is_response", "text")

    def __init__(self, text: str, event_id: str | None = None, *, is_response: bool = False) -> None:
        self.text = text
        self.event_id = event_id
        self.is_response = is_response

    @property
    def message(self) -> Any:
        """The SDK looks at it to see whether this is the response; nothing else is parsed."""
        return _edges.parse(self.text) if self.is_response and self.text else _edges.without_body()

    def as_event(self, retry_ms: int | None) -> dict[str, Any]:
        """As sse-starlette takes it. An event without text primes: an id, and when to come back."""
        event: dict[str, Any] = {"data": self.text}
        if self.text:
            event["event"] = "message"
        elif retry_ms is not None:
            event["retry"] = retry_ms
        if self.event_id is not None:
            event["id"] = self.event_id
        return event


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def error_text(request_id: Any, message: str, data: dict[str, Any]) -> str:
    """A JSON-RPC error."""
    error = {"code": INTERNAL_ERROR, "message": message, "data": data}
    return _json({"jsonrpc": "2.0", "id": request_id, "error": error})


def _notification(method: str, params: dict[str, Any] | None = None) -> Outgoing:
    return Outgoing(_json({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})}))


def failure(stream: Stream) -> Outgoing:
    """The log could not store an event of this call."""
    message = f"the events of this call could not be stored: {stream.failed}"
    text = error_text(stream.request_id, message, {"still_running": not stream.done})
    return Outgoing(text, is_response=True)


def refusal(book: Book, stream: Stream, verdict: Verdict) -> list[Outgoing]:
    """The verdict in-band: one error for a call; for the GET stream what is lost, and what to fetch again."""
    book.fail_requests(stream, verdict)
    facts = _facts(verdict)
    if not stream.is_get:
        facts["still_running"] = not stream.done
        text = error_text(stream.request_id, f"resumption failed: {verdict.explanation}", facts)
        return [Outgoing(text, is_response=True)]
    return _fetch_again(book, {"message": verdict.explanation, **facts}, verdict.restart_from)


def broken(book: Book, token: str) -> list[Outgoing]:
    """The GET stream has a hole: the log refused an event. `token` is where its successor begins."""
    return _fetch_again(book, {"message": "messages could not be stored and are lost", "lost": None}, token)


def _fetch_again(book: Book, data: dict[str, Any], token: str | None) -> list[Outgoing]:
    lost = _notification("notifications/message", {"level": "error", "logger": "replaylog", "data": data})
    lost.event_id = token
    changed = [_notification(method) for area, method in _LISTS if book.state.declares(area)]
    updated = [_notification("notifications/resources/updated", {"uri": uri}) for uri in book.state.subscriptions]
    return [lost, *changed, *updated]


def _facts(verdict: Verdict) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "verdict": verdict.reason.value,
        "cursor": verdict.cursor,
        "floor": verdict.floor,
        "head": verdict.head,
    }
    if verdict.lost:
        assert verdict.cursor is not None
        first = verdict.cursor + 1
        facts["lost"] = {"count": verdict.lost, "first": first, "last": first + verdict.lost - 1}
    return facts


def unknown_id_text(request_id: Any = _edges.NO_ID) -> str:
    """The refusal of an id of no stream of this session."""
    return error_text(request_id, f"resumption failed: {UNKNOWN_ID}", {"verdict": Reason.FORKED.value})


def unknown_id(request_id: Any, event_id: str | None) -> Outgoing:
    """The same as an event. Its id sends a GET stream, which no error ends, to where it can go on."""
    return Outgoing(unknown_id_text(request_id), event_id, is_response=True)


# -- headers and statuses ---------------------------------------------------------------------------------


def headers(verdict: Verdict | None, reason: Reason) -> dict[str, str]:
    """The proof. Without a verdict there is no window to speak of: the id is of no stream of this session."""
    fields = {
        _sse.VERDICT: reason.value,
        _sse.PROOF: "none",
        _sse.SESSION_DURABLE: "?0",
        _sse.KEEPALIVE: str(KEEPALIVE_S),
    }
    if verdict is not None:
        fields[_sse.PROOF] = verdict.proof
        fields[_sse.SESSION_DURABLE] = "?1" if verdict.session_durable else "?0"
        facts = (
            (_sse.FLOOR, verdict.floor),
            (_sse.HEAD, verdict.head),
            (_sse.EPOCH, None if verdict.epoch is None else f"{verdict.epoch:016x}"),
            (_sse.STATE, verdict.state),
        )
        fields.update({name: str(value) for name, value in facts if value is not None})
    return fields


def comment(fields: dict[str, str]) -> bytes:
    """The same as one comment, for clients that see the stream and no headers."""
    return _sse.comment(" ".join(f"{name}={value}" for name, value in fields.items()))


def problem(verdict: Verdict | None, reason: Reason) -> Response:
    """The refusal as a status. 404 and 410 would tell an MCP client that its whole session is gone."""
    wire = wire_of(reason)
    members: dict[str, Any] = {
        "type": PROBLEM_BASE + wire.problem,
        "title": wire.title,
        "status": 409 if wire.status in (404, 410) else wire.status,
        "detail": UNKNOWN_ID if verdict is None else verdict.explanation,
        "verdict": reason.value,
    }
    if verdict is not None:
        members |= {
            "cursor": verdict.cursor,
            "floor": verdict.floor,
            "head": verdict.head,
            "epoch": None if verdict.epoch is None else f"{verdict.epoch:016x}",
            "lost": verdict.lost,
            "restart_from": verdict.restart_from,
        }
    fixed = {"Cache-Control": "no-store", **headers(verdict, reason)}
    return Response(_json(members), members["status"], fixed, media_type="application/problem+json")
