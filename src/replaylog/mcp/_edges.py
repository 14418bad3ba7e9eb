"""What differs between the SDKs, and every private name of theirs that this package touches.

Guarantees: no other module here asks which SDK is installed; `PRIVATE` is complete, and a test looks each
name up, so that a new release of an SDK fails there first. Known: mcp 1.30, mcp 2.3, fastmcp 4 (on mcp 2.x).
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

__all__ = [
    "GET_STREAM_KEY",
    "IS_V1",
    "NO_ID",
    "PRIVATE",
    "EventCallback",
    "EventMessage",
    "EventStore",
    "SessionMessage",
    "StreamableHTTPServerTransport",
    "StreamableHTTPSessionManager",
    "dump",
    "has_priming",
    "kind_of",
    "parse",
    "requestor_of",
    "same_id",
    "without_body",
]

try:
    from mcp_types import jsonrpc_message_adapter

    IS_V1 = False
    _parse: Any = partial(jsonrpc_message_adapter.validate_json, by_name=False)
except ImportError:
    import mcp.types

    IS_V1 = True
    _types: Any = mcp.types
    _parse = _types.JSONRPCMessage.model_validate_json

from mcp.shared.message import SessionMessage

PRIMING_SINCE: Final = "2025-11-25"
NO_ID: Final = "server-error" if IS_V1 else None  # the id of an error that answers no known request

PRIVATE: Final[dict[type, tuple[str, ...]]] = {
    StreamableHTTPServerTransport: (
        "_clean_up_memory_streams",
        "_create_error_response",
        "_create_event_data",
        "_create_session_message",
        "_event_store",
        "_handle_delete_request",
        "_handle_get_request",
        "_handle_post_request",
        "_mint_priming_event",
        "_read_stream_writer",
        "_replay_events",
        "_request_streams",
        "_retry_interval",
        "_validate_request_headers",
    ),
    StreamableHTTPSessionManager: (
        "_admit_session",
        "_discard_session",
        "_handle_stateful_request",
        "_serve_opening_request",
        "_server_instances",
        "_session_owners",
        "_task_group",
    ),
}
"""Methods that are overridden or called, and attributes that are read or set, by class."""


def parse(text: str) -> Any:
    """A JSON-RPC message of the SDK's own type."""
    return _parse(text)


def dump(message: Any) -> str:
    """The message as the SDK itself would write it to the wire."""
    if IS_V1:
        return str(message.model_dump_json(by_alias=True, exclude_none=True))
    return str(message.model_dump_json(by_alias=True, exclude_unset=True))


def kind_of(message: Any) -> str:
    """ "request", "response" (a result or an error) or "message" (a notification)."""
    root = getattr(message, "root", message)
    if not hasattr(root, "method"):
        return "response"
    return "request" if hasattr(root, "id") else "message"


def same_id(one: Any, other: Any) -> bool:
    """Request ids keep their JSON type: "7" is not 7."""
    return type(one) is type(other) and bool(one == other)


def without_body() -> Any:
    """Stands for a message that nobody looks into: its text goes out as it is stored."""
    return _NoBody


class _NoBody:
    root = None


def has_priming(protocol_version: str) -> bool:
    """Clients of this revision understand an event that has an id and no data."""
    return protocol_version >= PRIMING_SINCE


def requestor_of(scope: Any) -> dict[str, Any] | None:
    """Who asks, in the terms in which the SDK compares a session's owner; JSON, so that it can be stored."""
    user = scope.get("user")
    if not isinstance(user, AuthenticatedUser):
        return None
    return dict(json.loads(json.dumps(authorization_context(user))))
