"""Errors and refusals as `application/problem+json` (RFC 9457): pure tables and one response class.

Guarantees: every error of the library that a request can cause has its own status and type URI, and
carries its numbers as members; nothing of a traceback goes out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import Response

from replaylog import _errors as errors
from replaylog._http import hex_epoch, problem_members
from replaylog._verdict import PROBLEM_BASE

if TYPE_CHECKING:
    from replaylog import Verdict

__all__ = ["BadRequest", "Problem", "hex_epoch", "of_error", "of_verdict"]

RETRY_AFTER_S = 1


class Problem(Response):
    """A problem document. `slug` is the last segment of its type, "" for about:blank."""

    media_type = "application/problem+json"

    def __init__(
        self,
        status: int,
        slug: str,
        title: str,
        *,
        detail: str = "",
        members: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.document: dict[str, Any] = {
            "type": PROBLEM_BASE + slug if slug else "about:blank",
            "title": title,
            "status": status,
        }
        if detail:
            self.document["detail"] = detail
        self.document.update(members or {})
        fixed = {"Cache-Control": "no-store", **(headers or {})}
        super().__init__(json.dumps(self.document, separators=(",", ":")), status, fixed)


class BadRequest(Exception):
    """A request that cannot be understood; becomes its problem where the handler ends."""

    def __init__(self, status: int, slug: str, title: str, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.problem = Problem(status, slug, title, detail=detail, members=members)


def of_verdict(
    verdict: Verdict, facts: Verdict | None = None, *, headers: Mapping[str, str] | None = None
) -> Problem:
    """The refusal of a cursor. `facts` knows the session's window where `verdict` does not."""
    members = problem_members(verdict, facts)
    base = len(PROBLEM_BASE)
    fixed = [members.pop(name) for name in ("type", "title", "status", "detail")]
    kind, title, status, detail = fixed
    return Problem(status, kind[base:], title, detail=detail, members=members, headers=headers)


class _Row(NamedTuple):
    status: int
    slug: str
    title: str
    retry: bool = False


_ROWS: dict[type[errors.ReplayLogError], _Row] = {
    errors.SessionExists: _Row(409, "session-exists", "The session exists already"),
    errors.SessionUnknown: _Row(404, "session-unknown", "No such session"),
    errors.SessionReaped: _Row(410, "session-reaped", "The session was reaped"),
    errors.SessionEnded: _Row(409, "session-ended", "The session has ended"),
    errors.HeadMoved: _Row(412, "head-moved", "The head is not where the request expected it"),
    errors.EventTooLarge: _Row(413, "event-too-large", "The event is too large"),
    errors.KeyReused: _Row(422, "key-reused", "The idempotency key has another content"),
    errors.SessionBusy: _Row(503, "session-busy", "Another process owns the session", retry=True),
    errors.Fenced: _Row(503, "fenced", "The session has passed to another owner", retry=True),
    errors.Backlogged: _Row(503, "backlogged", "Too many bytes wait for the disk", retry=True),
    errors.LogPoisoned: _Row(503, "log-poisoned", "A flush failed; the log must be reopened", retry=True),
    errors.LogClosed: _Row(503, "log-closed", "The log is closed", retry=True),
    errors.LogLocked: _Row(503, "log-locked", "Another process writes this log", retry=True),
    errors.LogFull: _Row(507, "log-full", "There is no room"),
    errors.OutcomeUnknown: _Row(500, "outcome-unknown", "The event may or may not be in the log"),
    errors.CorruptLog: _Row(500, "log-corrupt", "What was read is not what was written"),
}
_OTHER = _Row(500, "", "Internal error")


def of_error(error: errors.ReplayLogError) -> Problem:
    """The problem of an error, with the error's numbers as members."""
    row = next((_ROWS[kind] for kind in type(error).__mro__ if kind in _ROWS), _OTHER)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if row.retry else {}
    members = {name: _plain(name, value) for name, value in error.facts.items() if name not in _HIDDEN}
    return Problem(row.status, row.slug, row.title, detail=str(error), members=members, headers=headers)


# `path` and `holder` tell a remote reader about the machine; the members of RFC 9457 keep their meaning.
_HIDDEN = frozenset({"path", "holder", "owner", "type", "title", "status", "detail", "instance", "verdict"})


def _plain(name: str, value: Any) -> Any:
    if name == "epoch":
        return hex_epoch(value)
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
