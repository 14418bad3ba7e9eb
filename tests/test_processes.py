"""A log directory and the world around it: permissions, locks, forks, what is left after a crash."""

from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import replaylog
from replaylog import Reason
from support import EXTENT_BYTES, open_log

# --- permissions ---


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_log_directory_is_0700_and_its_files_0600(tmp_path: Path, disk: str, umask: int) -> None:
    before = os.umask(umask)
    try:
        with open_log(disk, tmp_path / "var" / "events", checkpoint_interval_s=0.05) as log:
            log.create("s").extend([("x" * 1000, "message")] * 100)
            log.flush()
            check_modes(tmp_path / "var" / "events")
        check_modes(tmp_path / "var" / "events")
    finally:
        os.umask(before)


def check_modes(directory: Path) -> None:
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    files = list(directory.rglob("*"))
    assert files
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


# --- locks ---


def test_a_second_open_in_this_process_is_locked_and_names_the_holder(opener: Any, disk: str) -> None:
    log = opener(disk)
    log.create("s").append("x")
    with pytest.raises(replaylog.LogLocked) as caught:
        opener(disk)
    assert str(os.getpid()) in str(caught.value.holder)
    assert str(caught.value.path) in str(caught.value)
    assert log.session("s").append("y") == 2
    log.close()
    assert opener(disk).session("s").head == 2


def test_the_same_directory_by_another_path_is_locked_too(opener: Any, disk: str, tmp_path: Path) -> None:
    opener(disk)
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pytest.raises(replaylog.LogLocked):
        opener(disk, name="link")


OPEN = """
import sys, replaylog
try:
    log = replaylog.open(sys.argv[1], durability=sys.argv[2], journal_extent_bytes=int(sys.argv[3]))
except replaylog.LogLocked as error:
    print("locked", error.holder)
else:
    print("head", log.session("s").head)
    log.close()
"""


def open_elsewhere(path: Path, durability: str) -> str:
    command = [sys.executable, "-c", OPEN, str(path), durability, str(EXTENT_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_second_process_is_locked_until_the_first_has_closed(
    opener: Any, disk: str, tmp_path: Path
) -> None:
    log = opener(disk)
    log.create("s").append("x")
    told = open_elsewhere(tmp_path / "log", disk)
    assert told.startswith("locked")
    assert str(os.getpid()) in told
    assert log.session("s").append("y") == 2
    log.close()
    assert open_elsewhere(tmp_path / "log", disk) == "head 2"


@pytest.mark.parametrize("durability_again", ["sync", "relaxed"])
def test_a_directory_can_be_opened_in_the_other_durability(
    opener: Any, disk: str, durability_again: str
) -> None:
    log = opener(disk)
    log.create("s").append("x")
    log.close()
    log = opener(durability_again)
    assert log.session("s").append("y") == 2
    log.close()
    assert opener(disk).session("s").head == 2


# --- what is not a log ---


def test_an_emptied_data_file_is_corrupt_and_not_an_empty_log(opener: Any, disk: str, tmp_path: Path) -> None:
    log = opener(disk)
    log.create("s").append("x")
    log.close()
    (tmp_path / "log" / "data.mdb").write_bytes(b"")
    with pytest.raises(replaylog.CorruptLog):
        opener(disk)
    (tmp_path / "log" / "data.mdb").unlink()
    with pytest.raises(replaylog.CorruptLog):
        opener(disk)


def test_a_path_that_cannot_be_a_log_raises_and_leaves_it_alone(tmp_path: Path, disk: str) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises((OSError, replaylog.ReplayLogError)):
        open_log(disk, path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "settings",
    [
        {"durability": "fsync"},
        {"durability": None},
        {"durability": "sync", "path": None},
        {"durability": "memory", "journal_bytes": 1},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    path = settings.pop("path", None if settings["durability"] == "memory" else tmp_path / "log")
    with pytest.raises((TypeError, ValueError)):
        replaylog.open(path, **settings)


# --- fork ---


def in_child(action: Callable[[], str], timeout_s: float = 20) -> str:
    """What `action` returns in a forked child, which then leaves without cleaning up."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            told = action()
        except BaseException as error:  # noqa: BLE001 - the parent compares what it was
            told = f"{type(error).__name__}: {error}"
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], timeout_s)
    if not ready:
        os.kill(pid, 9)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read().decode()
    os.waitpid(pid, 0)
    return told if ready else "hung"


def test_a_forked_child_gets_log_closed_and_the_parent_goes_on(log: Any) -> None:
    session = log.create("s")
    session.append("x")
    follow = session.follow(0)
    promised = session.resume(0)

    def in_the_child() -> str:
        told = []
        for call in (
            lambda: session.append("child"),
            lambda: session.append_nowait("child"),
            lambda: session.check(0),
            lambda: session.end(),
            lambda: session.trim(1),
            lambda: log.check("s", 0),
            lambda: log.create("t"),
            lambda: log.session("s"),
            lambda: log.sessions(),
            lambda: log.flush(),
            lambda: log.reap("s"),
            lambda: next(follow),
            lambda: list(promised),
        ):
            try:
                call()
                told.append("served")
            except replaylog.LogClosed as error:
                told.append("closed" if "fork" in error.why else error.why)
        log.close()
        return " ".join(told)

    assert in_child(in_the_child) == " ".join(["closed"] * 13)
    assert session.append("y") == 2
    assert next(follow).id == 1
    with log.resume("s") as replay:
        assert [event.payload for event in replay] == ["x", "y"]
    assert log.create("t").append("x") == 1


def test_a_child_that_lives_on_keeps_no_lock_of_its_parent(opener: Any, disk: str) -> None:
    log = opener(disk)
    log.create("s").append("x")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    try:
        os.close(read)
        log.close()
        assert opener(disk).session("s").append("y") == 2
    finally:
        os.close(write)
        os.waitpid(pid, 0)


def test_a_child_can_open_a_log_of_its_own(opener: Any, disk: str, tmp_path: Path) -> None:
    opener(disk).create("s").append("x")

    def in_the_child() -> str:
        with open_log(disk, tmp_path / "other") as other:
            return str(other.create("s").append("x"))

    assert in_child(in_the_child) == "1"


def test_fork_while_threads_append_neither_hangs_nor_loses(opener: Any, durability: str) -> None:
    log = opener(durability)
    session = log.create("s")
    stop = threading.Event()
    counts = [0, 0, 0]

    def work(n: int) -> None:
        while not stop.is_set():
            session.append(n)
            counts[n] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            told = in_child(lambda: str(session.append("child")))
            assert told.startswith("LogClosed"), told
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert session.head == sum(counts)


# --- the end of objects and of the process ---

FORGET = """
import gc, sys, replaylog
durability, path, how = sys.argv[1:]
for n in range(20):
    log = replaylog.open(
        None if durability == "memory" else f"{path}/{n}", durability=durability, journal_extent_bytes=1 << 20
    )
    session = log.create("s")
    session.append("x")
    kept = [session.follow(0), session.resume(0), log.watch(), session.append_nowait("y"), log.check("s", 0)]
    kept += [next(kept[0]), iter(kept[1]), kept[1].frames()]
    kept.append(kept)  # a cycle: only the collector can take them
    if how == "closed":
        log.close()
    if how != "kept":
        del log, session, kept
    gc.collect()
print("alive")
"""


@pytest.mark.parametrize("how", ["closed", "forgotten", "kept"])
def test_logs_that_are_dropped_or_never_closed_end_quietly(durability: str, how: str, tmp_path: Path) -> None:
    """The collector may take a log, its sessions and readers in any order; so may the interpreter's end."""
    command = [sys.executable, "-X", "faulthandler", "-c", FORGET, durability, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "alive\n"


# --- crash ---


def test_after_a_crash_everything_acknowledged_is_there(opener: Any, disk: str) -> None:
    log = opener(disk)
    session = log.create("s", meta={"a": 1})
    ids = [session.append(f"event {n}") for n in range(1, 301)]
    log.create("ended").end("x")
    log.create("gone").append("x")
    log.reap("gone", reason="idle")
    cursor = session.cursor
    log.flush()
    log._abandon()
    log = opener(disk)
    assert log.check("s", cursor).reason is Reason.AT_HEAD
    assert log.check("ended", 1).ended
    assert log.check("gone", 1).reason is Reason.REAPED
    assert log.session("s").meta == {"a": 1}
    with log.resume("s") as replay:
        assert [event.payload for event in replay] == [f"event {n}" for n in ids]
    assert log.verify() == []


def test_crashes_in_a_row_change_nothing(opener: Any, disk: str) -> None:
    log = opener(disk)
    cursor = log.create("s").cursor
    for n in range(1, 8):
        session = log.session("s")
        assert session.cursor == cursor
        assert session.append(n) == n
        cursor = session.cursor
        log.flush()
        log._abandon()
        for _ in range(n % 3):
            log = opener(disk)
            log._abandon()
        log = opener(disk)
    with log.resume("s") as replay:
        assert [event.payload for event in replay] == list(range(1, 8))


def test_control_records_survive_checkpoints_that_overlap_them(opener: Any, disk: str) -> None:
    """A checkpoint may take a session while its end, trim or reap is being flushed: it must take it again."""
    log = opener(disk, checkpoint_interval_s=60)
    stop = threading.Event()

    def checkpoint() -> None:
        while not stop.is_set():
            log.checkpoint()

    checkpointer = threading.Thread(target=checkpoint)
    checkpointer.start()
    names = [f"s{n}" for n in range(150)]
    try:
        for n, name in enumerate(names):
            session = log.create(name)
            session.extend([("x", "message")] * 3)
            if n % 3 == 0:
                log.reap(name, reason="over")
            elif n % 3 == 1:
                session.end()
            else:
                session.trim(3)
    finally:
        stop.set()
        checkpointer.join()
    log.checkpoint()
    log.close()
    log = opener(disk)
    expected = [("reaped", 4), ("ended", 1), ("open", 3)]
    found = [(verdict.state, verdict.floor) for verdict in (log.check(name, 3) for name in names)]
    assert found == [expected[n % 3] for n in range(len(names))]
