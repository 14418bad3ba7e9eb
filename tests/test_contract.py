"""The rest of the Python contract as claims: closing, flushing, backup, errors with their numbers.

Verdicts are in test_verdict.py, sessions in test_sessions.py, appends in test_append.py, payloads in
test_payloads.py, readers in test_follow.py, what needs a second process in test_processes.py.
"""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

import replaylog
from replaylog import Retention
from support import in_threads


def test_close_is_idempotent_and_everything_after_it_is_log_closed(opener: Any, durability: str) -> None:
    log = opener(durability)
    session = log.create("s")
    session.append("x")
    assert not log.closed
    log.close()
    log.close()
    log.close(timeout_s=1)
    assert log.closed
    for call in (
        lambda: log.create("t"),
        lambda: log.session("s"),
        lambda: log.check("s", 0),
        lambda: log.resume("s", 0),
        lambda: log.sessions(),
        lambda: log.reap("s"),
        lambda: log.flush(),
        lambda: session.append("y"),
        lambda: session.append_nowait("y"),
        lambda: session.extend([("y", "message")]),
        lambda: session.check(0),
        lambda: session.follow(0),
        lambda: session.trim(1),
        lambda: session.end(),
    ):
        with pytest.raises(replaylog.LogClosed) as caught:
            call()
        assert caught.value.why


def test_a_log_is_a_context_manager(opener: Any, durability: str) -> None:
    with opener(durability) as log:
        log.create("s").append("x")
    assert log.closed
    with pytest.raises(ZeroDivisionError):
        with opener("memory") as log:
            raise ZeroDivisionError
    assert log.closed


def test_close_waits_for_what_is_queued(opener: Any, disk: str) -> None:
    log = opener(disk)
    session = log.create("s")
    tickets = [session.append_nowait(f"event {n}") for n in range(500)]
    log.close()
    assert [ticket.wait(1) for ticket in tickets] == list(range(1, 501))
    assert opener(disk).session("s").head == 500


def test_close_while_threads_append_loses_nothing_acknowledged(opener: Any, disk: str) -> None:
    log = opener(disk)
    session = log.create("s")
    acknowledged: list[int] = []

    def work(n: int) -> None:
        while True:
            acknowledged.append(session.append(n))

    closer = threading.Timer(0.2, log.close)
    closer.start()
    outcomes = in_threads(4, work)
    closer.join()
    assert all(isinstance(outcome, replaylog.LogClosed) for outcome in outcomes)
    session = opener(disk).session("s")
    assert session.head >= max(acknowledged)
    assert sorted(acknowledged) == list(range(1, len(acknowledged) + 1))


def test_a_log_says_what_it_is(opener: Any, durability: str, tmp_path: Any) -> None:
    log = opener(durability)
    assert log.durability == durability
    assert log.path is None if durability == "memory" else str(log.path) == str(tmp_path / "log")
    log.create("s").append("x")
    log.flush()
    assert isinstance(log.stats(), dict)
    assert isinstance(log.session("s").stats(), dict)
    for value in (log, log.session("s")):
        assert len(repr(value)) < 300
    assert "s" in repr(log.session("s"))


def test_verify_finds_nothing_wrong_with_a_sound_log(log: Any) -> None:
    session = log.create("s", retention=Retention(events=50))
    for n in range(200):
        session.append_nowait(f"event {n}")
    log.create("t").end("x")
    log.create("r").append("x")
    log.reap("r")
    log.flush()
    assert log.verify() == []


def test_a_backup_of_a_live_log_opens_and_has_all_that_was_acknowledged(
    opener: Any, disk: str, tmp_path: Any
) -> None:
    log = opener(disk)
    session = log.create("s", meta={"a": 1})
    session.extend([(f"event {n}", "message") for n in range(300)])
    log.create("r").append("x")
    log.reap("r", reason="idle")
    log.flush()
    log.backup(tmp_path / "copy")
    session.append("after the backup")
    copy = opener(disk, name="copy")
    assert copy.verify() == []
    assert (copy.session("s").head, copy.session("s").epoch) == (300, session.epoch)
    assert copy.session("s").meta == {"a": 1}
    assert copy.check("r", 1).reason is replaylog.Reason.REAPED
    assert copy.check("s", session.cursor).reason is replaylog.Reason.FORKED


# --- errors ---

ERRORS = [
    "NotResumable", "Overrun", "SessionExists", "SessionUnknown", "SessionReaped", "SessionEnded",
    "SessionBusy", "HeadMoved", "KeyReused", "Fenced", "Backlogged", "EventTooLarge", "LogLocked",
    "LogFull", "LogClosed", "LogPoisoned", "OutcomeUnknown", "CorruptLog", "FormatMismatch",
]  # fmt: skip
PUBLIC = [
    "open", "Log", "Session", "Follow", "Verdict", "Reason", "Retention", "START", "FLOOR", "HEAD",
    "ReplayLogError", *ERRORS,
]  # fmt: skip
FACTS: dict[str, dict[str, Any]] = {
    "SessionExists": {"name": "s", "epoch": 7, "head": 41},
    "SessionUnknown": {"name": "s"},
    "SessionReaped": {"name": "s", "epoch": 7, "last_id": 41, "reason": "idle", "time_ns": 1},
    "SessionEnded": {"name": "s", "head": 41},
    "SessionBusy": {"name": "s", "owner": "pid 17", "waited_s": 2.5},
    "HeadMoved": {"name": "s", "expected": 40, "head": 41},
    "KeyReused": {"name": "s", "key": "k", "id": 41},
    "Fenced": {"name": "s", "fence": 41},
    "Backlogged": {"queued": 41, "limit": 40, "bound": "backlog_bytes"},
    "EventTooLarge": {"size": 41, "limit": 40, "bound": "event_bytes_max"},
    "LogLocked": {"path": "/p", "holder": "pid 17"},
    "LogFull": {"used": 41, "limit": 40, "bound": "map_bytes"},
    "LogClosed": {"why": "closed"},
    "LogPoisoned": {"cause": "EIO"},
    "OutcomeUnknown": {"cause": "EIO"},
    "CorruptLog": {"where": "journal", "found": "a", "expected": "b"},
    "FormatMismatch": {"path": "/p", "found": 2, "expected": 1},
}
UNSAID = {"SessionReaped": {"epoch", "time_ns"}}


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_derives_from_replay_log_error(name: str) -> None:
    assert issubclass(getattr(replaylog, name), replaylog.ReplayLogError)


@pytest.mark.parametrize("name", FACTS)
def test_an_error_carries_its_numbers_says_them_and_can_be_pickled(name: str) -> None:
    facts = FACTS[name]
    error = getattr(replaylog, name)(**facts)
    copy = pickle.loads(pickle.dumps(error))
    for fact, value in facts.items():
        assert getattr(error, fact) == getattr(copy, fact) == value
        if fact not in UNSAID.get(name, set()):
            assert (f"{value:016x}" if fact == "epoch" else str(value)) in str(error)
    assert str(copy) == str(error)
    assert type(copy) is type(error)
    assert ":" in str(error), "the remedy follows the fact"


@pytest.mark.parametrize("error", [replaylog.NotResumable, replaylog.Overrun])
def test_a_refusal_carries_its_verdict(memory_log: Any, error: Any) -> None:
    memory_log.create("s").append("x")
    verdict = memory_log.check("s", 500)
    refusal = error(verdict)
    assert refusal.verdict is verdict
    assert "500" in str(refusal)
    assert pickle.loads(pickle.dumps(refusal)).verdict == verdict


def test_an_unknown_session_is_a_key_error_and_reads_as_a_sentence(memory_log: Any) -> None:
    with pytest.raises(KeyError) as caught:
        memory_log.session("never")
    assert not str(caught.value).startswith("'")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there(name: str) -> None:
    assert hasattr(replaylog, name)
    assert name in replaylog.__all__
