"""Read everything, compare everything: what `verify` reports and `backup` relies on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replaylog._errors import CorruptLog
from replaylog._session import Session

if TYPE_CHECKING:
    from replaylog._log import Log
    from replaylog._ring import Chunk

__all__ = ["verify_log"]


def verify_log(log: Log) -> list[str]:
    """What is wrong with a log, one sentence each, naming session and ids; empty when all is well."""
    problems: list[str] = []
    if not log._on_disk:
        return problems
    if not log._state():
        log.checkpoint()
    problems += log._store.disagreements()
    for info in log.sessions():
        with log._checkpoint_lock:
            session = log._live(info.name)
            if session is not None:
                problems += _verify_session(log, session)
    return problems


def _verify_session(log: Log, session: Session) -> list[str]:
    """One session: its stored runs are contiguous, unbroken in CRC and tag, and reach from floor to head."""
    name, floor, last_stored = session.name, session.floor, session._persisted()
    problems: list[str] = []
    expected, tag = None, 0
    for first, run in log._store.segments_of(session._number):
        if isinstance(run, CorruptLog):
            problems.append(f"session {name!r}: segment at id {first}: {run}")
            expected = None
            continue
        problems += _verify_run(name, run, expected, tag)
        expected, tag = run.last + 1, run.event(run.last).tag
    if floor <= last_stored:
        if expected is None and not problems:
            problems.append(f"session {name!r}: ids {floor}..{last_stored} have no segment")
        elif expected is not None and log._state() and expected > last_stored + 1:
            pass  # a view of its opening: the writer has stored more since
        elif expected is not None and expected != last_stored + 1:
            problems.append(f"session {name!r}: segments end at id {expected - 1}, the row says {last_stored}")
        elif not problems and tag != session._stored_tag():
            problems.append(f"session {name!r}: tag {tag:08x} at id {last_stored}, the row says otherwise")
    return problems


def _verify_run(name: str, run: Chunk, expected: int | None, tag: int) -> list[str]:
    problems = []
    if expected is not None and run.first != expected:
        problems.append(f"session {name!r}: ids {expected}..{run.first - 1} are missing between segments")
    elif expected is not None and run.tag_before != tag:
        problems.append(f"session {name!r}: the tag chain breaks before id {run.first}")
    if bad := run.verify_chain():
        problems.append(f"session {name!r}: event {bad} does not have the tag that is stored with it")
    return problems
