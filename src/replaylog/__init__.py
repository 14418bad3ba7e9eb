"""replaylog: can I replay from cursor N? Answered before any stream opens, with proof.

    import replaylog

    log = replaylog.open("var/events")
    session = log.create("agent-7")
    session.append({"pct": 10}, kind="progress")
    with log.resume("agent-7", 0) as replay:
        for event in replay: ...

The names below load the engine when first used, so that `replaylog.client` needs neither the C core nor LMDB.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from replaylog._cursor import FLOOR, HEAD, START
from replaylog._errors import (
    Backlogged,
    CorruptLog,
    EventTooLarge,
    Fenced,
    FormatMismatch,
    HeadMoved,
    KeyReused,
    LogClosed,
    LogFull,
    LogLocked,
    LogPoisoned,
    NotResumable,
    OutcomeUnknown,
    Overrun,
    ReplayLogError,
    SessionBusy,
    SessionEnded,
    SessionExists,
    SessionReaped,
    SessionUnknown,
)
from replaylog._retention import Retention
from replaylog._verdict import ClientState, Reason

if TYPE_CHECKING:
    from replaylog._judge import Verdict
    from replaylog._log import Durability, Log, SessionInfo, open
    from replaylog._plan import Plan, plan, plan_of
    from replaylog._ring import Event
    from replaylog._session import Follow, Replay, Session, Ticket
    from replaylog._watch import Moved, Watch

__version__ = "0.1.0"

_LAZY = {
    "Durability": "_log",
    "Event": "_ring",
    "Follow": "_session",
    "Log": "_log",
    "Moved": "_watch",
    "Plan": "_plan",
    "Replay": "_session",
    "Session": "_session",
    "SessionInfo": "_log",
    "Ticket": "_session",
    "Verdict": "_judge",
    "Watch": "_watch",
    "aio": "aio",
    "open": "_log",
    "plan": "_plan",
    "plan_of": "_plan",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'replaylog' has no attribute {name!r}")
    loaded = importlib.import_module(f"replaylog.{module}")
    value = loaded if module == name else getattr(loaded, name)
    globals()[name] = value
    return value


__all__ = [
    "FLOOR",
    "HEAD",
    "START",
    "Backlogged",
    "ClientState",
    "CorruptLog",
    "Durability",
    "Event",
    "EventTooLarge",
    "Fenced",
    "Follow",
    "FormatMismatch",
    "HeadMoved",
    "KeyReused",
    "Log",
    "LogClosed",
    "LogFull",
    "LogLocked",
    "LogPoisoned",
    "Moved",
    "NotResumable",
    "OutcomeUnknown",
    "Overrun",
    "Plan",
    "Reason",
    "Replay",
    "ReplayLogError",
    "Retention",
    "Session",
    "SessionBusy",
    "SessionEnded",
    "SessionExists",
    "SessionInfo",
    "SessionReaped",
    "SessionUnknown",
    "Ticket",
    "Verdict",
    "Watch",
    "__version__",
    "open",
    "plan",
    "plan_of",
]
