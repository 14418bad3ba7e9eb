"""Every error that replaylog raises. Each carries its numbers and builds its sentence from them:
the fact, the number, the remedy.

`You` errors are answers to a request that cannot be served as asked; `Us` errors say that the log,
the disk or another process stands in the way. Pure: no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replaylog._judge import Verdict

__all__ = [
    "Backlogged",
    "CorruptLog",
    "EventTooLarge",
    "Fenced",
    "FormatMismatch",
    "HeadMoved",
    "KeyReused",
    "LogClosed",
    "LogFull",
    "LogLocked",
    "LogPoisoned",
    "NotResumable",
    "OutcomeUnknown",
    "Overrun",
    "ReplayLogError",
    "SessionBusy",
    "SessionEnded",
    "SessionExists",
    "SessionReaped",
    "SessionUnknown",
]


class ReplayLogError(Exception):
    """Base of every error here. Its keyword arguments are its attributes."""

    sentence = "{error}"

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(self.sentence.format(**facts) if facts else self.sentence)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.facts))


def _rebuild(kind: type[ReplayLogError], facts: dict[str, Any]) -> ReplayLogError:
    return kind(**facts)


# --- the request cannot be served as asked -------------------------------------------------------


class NotResumable(ReplayLogError):
    """The cursor cannot be served; `verdict` says why and from where a reader can start again."""

    sentence = "{verdict.explanation}"
    verdict: Verdict

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict=verdict)


class Overrun(NotResumable):
    """The reader was promised a replay and retention passed it: too slow for too long."""

    sentence = "reader overrun: {verdict.explanation}"


class SessionExists(ReplayLogError):
    """`create` of a name that is taken."""

    sentence = (
        "session {name!r} exists already (epoch {epoch:016x}, head {head}): "
        "open it with session(), or create with exist_ok=True"
    )
    name: str
    epoch: int
    head: int


class SessionUnknown(ReplayLogError, KeyError):
    """No session of that name, and no tombstone of one."""

    sentence = "session {name!r} does not exist and never did, or its tombstone has expired: create it first"
    name: str

    def __str__(self) -> str:
        return str(self.args[0])


class SessionReaped(ReplayLogError):
    """The session was reaped: its events are gone, a tombstone is left."""

    sentence = (
        "session {name!r} was reaped (reason {reason!r}, last id {last_id}): its events are gone; "
        "create it again for a new epoch"
    )
    name: str
    epoch: int
    last_id: int
    reason: str
    time_ns: int


class SessionEnded(ReplayLogError):
    """An append after the end."""

    sentence = "session {name!r} ended at id {head}: it takes no more events; use a new session"
    name: str
    head: int


class HeadMoved(ReplayLogError):
    """`expect_head` did not hold; nothing was appended."""

    sentence = "session {name!r}: expected head {expected}, but id {head} is assigned: read on and try again"
    name: str
    expected: int
    head: int


class KeyReused(ReplayLogError):
    """An idempotency key came again with another content; nothing was appended."""

    sentence = "session {name!r}: key {key!r} was used for id {id} with another content: use a new key"
    name: str
    key: str
    id: int


class EventTooLarge(ReplayLogError):
    """The event, or the whole call, exceeds a bound; nothing was appended."""

    sentence = "{size} bytes exceed {bound}={limit}: split the payload or raise {bound}"
    size: int
    limit: int
    bound: str


# --- the log, the disk or another process stands in the way --------------------------------------


class SessionBusy(ReplayLogError):
    """Another process owns the session and did not hand it over in time."""

    sentence = "session {name!r} is owned by {owner} and was not handed over in {waited_s} s: try again"
    name: str
    owner: str
    waited_s: float


class Fenced(ReplayLogError):
    """This handle's ownership has passed to another process."""

    sentence = "session {name!r} has passed to another owner (fence {fence}): open it again"
    name: str
    fence: int


class Backlogged(ReplayLogError):
    """The bytes queued for the disk have reached their bound."""

    sentence = "{queued} bytes wait for the disk, the bound is {bound}={limit}: wait for the flush, or raise it"
    queued: int
    limit: int
    bound: str


class LogLocked(ReplayLogError):
    """Another handle has the log directory open for writing."""

    sentence = "{path} is open in {holder}: close it there, or open with mode='r'"
    path: str
    holder: str


class LogFull(ReplayLogError):
    """There is no room; nothing was appended, reads go on."""

    sentence = "no room: {used} bytes used of {bound}={limit}: trim or reap sessions, or make room"
    used: int
    limit: int
    bound: str


class LogClosed(ReplayLogError):
    """The log was closed, or this process is a fork of the one that opened it."""

    sentence = "the log is closed ({why}): open it again with replaylog.open()"
    why: str


class LogPoisoned(ReplayLogError):
    """A flush failed earlier; what was queued behind it was not written."""

    sentence = "the log is poisoned since a flush failed ({cause}): nothing was appended; close and reopen the log"
    cause: str


class OutcomeUnknown(ReplayLogError):
    """The flush of this very append failed: the event may or may not be there."""

    sentence = (
        "the flush failed ({cause}): the event may or may not be in the log; close and reopen it, "
        "then compare the head"
    )
    cause: str


class CorruptLog(ReplayLogError):
    """What was read is not what was written."""

    sentence = "{where}: found {found}, expected {expected}: restore a backup, or move the directory away"
    where: str
    found: str
    expected: str


class FormatMismatch(ReplayLogError):
    """The directory was written by another format version."""

    sentence = "{path} has format {found}, this library reads {expected}: use the matching release"
    path: str
    found: int
    expected: int
