"""A request, read once from its ASGI scope: what the guards and the events resource look at.

Pure. One pass over the headers, and the query only where there is one: this runs before every answer.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from replaylog import _http

__all__ = ["Asking"]

Scope = MutableMapping[str, Any]


class Asking:
    """`headers` holds the last value of each name that a decision needs, `last_event_ids` every one."""

    __slots__ = ("headers", "last_event_ids", "method", "query")

    def __init__(self, scope: Scope) -> None:
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = {}
        self.last_event_ids: list[str] = []
        for name, value in scope["headers"]:
            if name == b"last-event-id":
                self.last_event_ids.append(value.decode("latin-1"))
            else:
                self.headers[name] = value
        query = scope.get("query_string")
        self.query = _http.query_of(query.decode("latin-1")) if query else {}

    def header(self, name: bytes) -> str | None:
        """A header's text, None where it was not sent."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def field(self, name: str) -> str | None:
        """A field of the query, None where it was not sent."""
        values = self.query.get(name)
        return None if values is None else values[-1]

    def events(self) -> _http.Asked:
        """The position that it asks for, and how."""
        return _http.read(self.last_event_ids, self.header(b"replay-refuse") or "", self.query)
