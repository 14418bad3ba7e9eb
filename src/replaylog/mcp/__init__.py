"""MCP servers whose sessions, streams and cursors are honest: `app = replaylog.mcp.resumable(server, log)`.

For `mcp` 1.x (1.30), `mcp` 2.x (2.3) and `fastmcp` 4.x, and for the protocol revisions that have sessions (up
to 2025-11-25); what a 2026-07-28 client gets is the SDK's own. asyncio only.

`SessionManager` and `EventStore` are the single pieces. The store alone gives replay without a seam and
isolation of sessions; a client that does not read stalling nobody, sessions that outlive the process, and
verdicts in statuses and headers need the manager.
"""

from __future__ import annotations

from replaylog.mcp._app import resumable
from replaylog.mcp._book import Limits
from replaylog.mcp._manager import SessionManager
from replaylog.mcp._store import EventStore, per_session

__all__ = ["EventStore", "Limits", "SessionManager", "per_session", "resumable"]
