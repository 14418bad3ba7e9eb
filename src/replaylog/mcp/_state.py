"""What of an MCP session can be brought back after a restart, and whom the server is waiting for: pure.

Guarantees: `State` is one JSON document, the last of which is all that a new process needs. Request ids of
the server never repeat between processes, so that a late answer meets nobody instead of the wrong one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from replaylog.mcp import _edges

if TYPE_CHECKING:
    from replaylog.mcp._book import Stream

__all__ = ["Calls", "State"]

WAITING_MAX: Final = 1024  # requests of the server whose loss would be told to it
IDS_PER_LIFE: Final = 1 << 32  # JSON numbers are exact up to 2^53: two million restarts


@dataclass
class State:
    """The record of a session. `initialize` is the client's request as it came."""

    initialize: str = ""
    owner: dict[str, Any] | None = None
    version: str = ""
    capabilities: dict[str, Any] = field(default_factory=dict)
    log_level: str = ""
    subscriptions: list[str] = field(default_factory=list)
    lives: int = 0  # processes that have served it before this one

    def as_json(self) -> str:
        """For the log."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> State:
        """From the log."""
        return cls(**json.loads(text))

    def learn(self, method: str, params: dict[str, Any], result: Any) -> bool:
        """A request was answered. True when the record must be written."""
        if method == "initialize" and isinstance(result, dict):
            self.version = str(result.get("protocolVersion", ""))
            self.capabilities = dict(result.get("capabilities") or {})
        elif method == "logging/setLevel":
            self.log_level = str(params.get("level", ""))
        elif method == "resources/subscribe":
            self.subscriptions = [u for u in self.subscriptions if u != params.get("uri")] + [str(params.get("uri"))]
        elif method == "resources/unsubscribe":
            self.subscriptions = [u for u in self.subscriptions if u != params.get("uri")]
        else:
            return False
        return True

    def declares(self, area: str) -> bool:
        """The server has tools, prompts or resources. The SDKs send `list_changed` also where they did not
        declare `listChanged`.
        """
        return area in self.capabilities

    def replayed(self) -> list[tuple[str, dict[str, Any]]]:
        """Requests that bring a new server to where the former was."""
        level = [("logging/setLevel", {"level": self.log_level})] if self.log_level else []
        return level + [("resources/subscribe", {"uri": uri}) for uri in self.subscriptions]


class Calls:
    """The server's own requests: their ids on the wire, and the ones without an answer."""

    def __init__(self) -> None:
        self.offset = 0
        self._last_id = 0
        self._waiting: dict[int, tuple[Stream, int]] = {}

    def wire_text(self, message: Any, kind: str, stream: Stream) -> str:
        """The message as it goes out: the client's own id on answers, this life's ids on requests."""
        text = _edges.dump(message)
        root = getattr(message, "root", message)
        if kind == "response":
            same = stream.is_get or stream.is_guess or _edges.same_id(root.id, stream.request_id)
            return text if same else _with_id(text, stream.request_id)
        if kind == "request":
            self._last_id = int(root.id)
            return text if not self.offset else _with_id(text, self.offset + int(root.id))
        return self._cancelled(text) if root.method == "notifications/cancelled" else text

    def _cancelled(self, text: str) -> str:
        document = json.loads(text)
        params = document.get("params") or {}
        if isinstance(params.get("requestId"), int):
            self._waiting.pop(params["requestId"], None)
            params["requestId"] += self.offset
        return json.dumps(document, separators=(",", ":"))

    def asked(self, stream: Stream, event_id: int) -> None:
        """The request that was written last went out as this event."""
        self._waiting[self._last_id] = (stream, event_id)
        while len(self._waiting) > WAITING_MAX:
            self._waiting.pop(next(iter(self._waiting)))

    def answered(self, wire_id: Any) -> int | None:
        """The server's own id of an answered request, or None when no one in this process asked."""
        if isinstance(wire_id, str) and wire_id.isascii() and wire_id.isdigit():
            wire_id = int(wire_id)
        if not isinstance(wire_id, int) or not 0 <= wire_id - self.offset < IDS_PER_LIFE:
            return None
        self._waiting.pop(wire_id - self.offset, None)
        return wire_id - self.offset

    def lost(self, stream: Stream, floor: int | None) -> list[int]:
        """Requests in events of `stream` below `floor` (None: in all of them); they wait no more."""
        found = [
            message_id
            for message_id, (asked_on, event_id) in self._waiting.items()
            if asked_on is stream and (floor is None or event_id < floor)
        ]
        for message_id in found:
            del self._waiting[message_id]
        return found


def _with_id(text: str, id: Any) -> str:
    document = json.loads(text)
    document["id"] = id
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
