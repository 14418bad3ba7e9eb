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


def test_a_reader_of_the_store_survives_a_close(tmp_path: Path) -> None:
    import threading

    log = replaylog.open(tmp_path / "log", memory_bytes=1 << 20, checkpoint_interval_s=0.05)
    for i in range(500):
        log.create(f"s{i}", wait=False).append_nowait(b"x" * 500)
    log.flush()
    log.checkpoint()
    told: list[BaseException] = []

    def read() -> None:
        try:
            while True:
                for info in log.sessions():
                    log.check(info.name, 0)
        except replaylog.ReplayLogError as error:
            told.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    log.close()
    for thread in threads:
        thread.join(30)
    assert [type(error) for error in told] == [replaylog.LogClosed] * 3


def test_a_journal_that_is_gone_is_damage_and_not_an_empty_tail(log: Any) -> None:
    session = log.session("other")
    log.checkpoint()
    session.append("acknowledged")
    log._abandon()
    for extent in (log.path / "journal").iterdir():
        extent.unlink()
    for mode in ("w", "r"):
        with pytest.raises(replaylog.CorruptLog):
            replaylog.open(log.path, journal_extent_bytes=1 << 20, mode=mode)


def test_a_view_beside_a_busy_writer_is_never_called_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = f"""
import replaylog
log = replaylog.open({str(path)!r}, journal_extent_bytes=65536, journal_bytes_max=1 << 20, checkpoint_interval_s=0.01)
session = log.create("s", exist_ok=True, retention=replaylog.Retention(events=50))
print("ready", flush=True)
while True:
    session.append(b"x" * 300)
"""
    import subprocess
    import sys

    process = subprocess.Popen([sys.executable, "-c", writer], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        heads = []
        for _ in range(30):
            with replaylog.open(path, mode="r") as view:
                heads.append(view.session("s").head)
                assert view.check("s", replaylog.FLOOR).ok
        assert heads == sorted(heads)
        assert heads[-1] > heads[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_key_that_threads_retry_at_once_is_one_event(tmp_path: Path) -> None:
    import sys
    import threading

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with replaylog.open(tmp_path / "log", durability="relaxed") as log:
            session = log.create("s")
            session.append("x")
            log.checkpoint()
            barrier = threading.Barrier(4)
            ids: dict[int, set[int]] = {n: set() for n in range(300)}

            def retry() -> None:
                for n in range(300):
                    barrier.wait(30)
                    ids[n].add(session.append("same", key=f"k{n}"))

            threads = [threading.Thread(target=retry) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert [len(found) for found in ids.values()] == [1] * 300
            assert session.head == 301
    finally:
        sys.setswitchinterval(before)


def test_an_append_that_can_never_fit_is_told_so(tmp_path: Path) -> None:
    with replaylog.open(tmp_path / "log", memory_bytes=1 << 20) as log:
        session = log.create("s")
        with pytest.raises(replaylog.EventTooLarge) as caught:
            session.append(b"x" * (2 << 20))
        assert caught.value.bound == "memory_bytes"
        assert session.append("small") == 1


def test_after_a_refused_batch_flush_and_close_are_as_ever(log: Any) -> None:
    refuse_next_write(log)
    with pytest.raises(replaylog.LogFull):
        log.session("other").append("lost")
    log.flush()
    with reopen(log) as again:
        assert again.stats()["recovered_records"] == 0


def test_meta_is_a_copy_in_both_directions(log: Any) -> None:
    given: dict[str, Any] = {"user": "u1"}
    session = log.create("m", meta=given)
    given["late"] = object()
    session.meta["evil"] = object()
    log.checkpoint()
    assert session.meta == {"user": "u1"}
