"""The path of a request, split before it is decoded: a session's name may hold a slash as %2F.

Pure. Reads `raw_path`; a server that does not give it cannot tell `%2F` from `/`, and names with a
slash are then not found.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

__all__ = ["Target", "target"]


class Target(NamedTuple):
    """What a path names. `name` is None where there is none, `resource` "" where nothing fits."""

    resource: str
    name: str | None = None
    named: bool = False


def target(scope: MutableMapping[str, Any]) -> Target:
    """The resource that the path names; a name that is not UTF-8 is None with `named` true."""
    match _segments(scope):
        case ["health" | "sessions" | "tickets" as resource]:
            return Target(resource)
        case ["sessions", name]:
            return Target("session", _decoded(name), True)
        case ["sessions", name, "events" | "end" as resource]:
            return Target(resource, _decoded(name), True)
        case _:
            return Target("")


def _segments(scope: MutableMapping[str, Any]) -> list[str]:
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    segments = path.partition("?")[0].split("/")
    return segments[_mounted(segments, scope.get("root_path", "").rstrip("/")) :]


def _mounted(segments: list[str], root: str) -> int:
    """How many leading segments belong to the prefix that this application is mounted under."""
    for count in range(1, len(segments) + 1):
        if unquote("/".join(segments[:count])) == root:
            return count
    return 1


def _decoded(segment: str) -> str | None:
    try:
        return unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeDecodeError:
        return None
