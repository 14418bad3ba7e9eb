"""A batch that the disk refuses never was: not its events, not its creations, not what they replaced.

The property: after LogFull everything answers as before the call, and once there is room everything goes on.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import replaylog
from replaylog import Reason


def refuse_next_write(log: Any) -> None:
    log._journal.inject_error(-errno.ENOSPC)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with replaylog.open(tmp_path / "log", checkpoint_interval_s=1000, journal_extent_bytes=1 << 20) as log:
        log.create("other").append("x")
        yield log


def reopen(log: Any) -> Any:
    log.close()
    return replaylog.open(log.path, journal_extent_bytes=1 << 20)


def test_a_refused_append_gives_its_id_to_the_next_one(log: Any) -> None:
    session = log.session("other")
    refuse_next_write(log)
    with pytest.raises(replaylog.LogFull):
        session.append("lost")
    assert (session.head, session.append("kept")) == (1, 2)
    with reopen(log) as again:
        assert [event.payload for event in again.resume("other", 0)] == ["x", "kept"]


def test_a_handle_of_a_refused_creation_takes_nothing(log: Any) -> None:
    session = log.create("s", wait=False)
    refuse_next_write(log)
    with pytest.raises(replaylog.LogFull):
        session.append("one")
    for call in (lambda: session.append("two"), session.end, lambda: session.append_nowait("three")):
        with pytest.raises(replaylog.SessionUnknown):
            call()
    assert log.check("s", 0).reason is Reason.UNKNOWN
    assert log.create("s").append("one") == 1
    with reopen(log) as again:
        assert [event.payload for event in again.resume("s", 0)] == ["one"]


def test_a_refused_creation_can_be_asked_for_again(log: Any) -> None:
    log.create("s", wait=False)
    refuse_next_write(log)
    session = log.create("s", exist_ok=True)
    assert session.append("one") == 1
    assert log.session("s") is session


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_reaped_session_stays_reaped_when_its_re_creation_is_refused(log: Any, checkpoint: bool) -> None:
    log.create("s").extend([("x", "message")] * 5)
    log.checkpoint()
    log.reap("s", reason="idle")
    refuse_next_write(log)
    with pytest.raises(replaylog.LogFull):
        log.create("s")
    if checkpoint:
        log.checkpoint()
    assert log.check("s", 3).reason is Reason.REAPED
    with reopen(log) as again:
        assert again.check("s", 3).reason is Reason.REAPED
        assert again.verify() == []


def test_a_reaped_session_stays_reaped_when_the_process_dies_before_its_re_creation_is_written(log: Any) -> None:
    log.create("s").extend([("x", "message")] * 5)
    log.checkpoint()
    log.reap("s", reason="idle")
    log.create("s", wait=False)
    log.checkpoint()
    log._abandon()
    with replaylog.open(log.path, journal_extent_bytes=1 << 20) as again:
        assert again.check("s", 3).reason is Reason.REAPED
        assert again.verify() == []


def test_what_a_running_checkpoint_has_taken_is_cut_too(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = log.session("other")
    real = log._store.commit

    def refused_meanwhile(changes: Any, **rest: Any) -> None:
        refuse_next_write(log)
        with pytest.raises(replaylog.LogFull):
            session.append("lost")
        real(changes, **rest)

    log.create("more").append("y")
    monkeypatch.setattr(type(log._store), "commit", lambda store, changes, **rest: refused_meanwhile(changes, **rest))
    log.checkpoint()
    monkeypatch.undo()
    assert session.append("kept") == 2
    with reopen(log) as again:
        assert [event.payload for event in again.resume("other", 0)] == ["x", "kept"]
