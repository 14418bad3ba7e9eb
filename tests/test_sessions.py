"""Sessions as claims: their names, creation, listing, reaping; what is never created by asking.

"Ended", "reaped" and "never existed" stay three answers.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

import replaylog
from support import in_threads

NAMES_GOOD = [
    "a", "x" * 255, "\u00e9" * 127, "a b", "a/b", "..", "\u00fc\u4e16\U0001f4a9", "a\u2028b", "%00", "-",
    "\u200b",
]  # fmt: skip
NAMES_BAD = [
    "", "x" * 256, "\u00e9" * 128, "\0", "a\nb", "a\rb", "\t", "\x1f", "\x7f", "a\x85", "\x9f", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES_GOOD, ids=lambda name: ascii(name[:12]))
def test_a_name_of_1_to_255_bytes_is_a_session(log: Any, name: str) -> None:
    session = log.create(name)
    session.append("x")
    assert session.name == name
    assert log.session(name).head == 1
    assert log.check(name, 1).reason is replaylog.Reason.AT_HEAD
    assert [info.name for info in log.sessions()] == [name]


@pytest.mark.parametrize("name", NAMES_BAD, ids=lambda name: ascii(name[:12]))
def test_another_name_is_a_value_error_and_creates_nothing(log: Any, name: str) -> None:
    with pytest.raises(ValueError):
        log.create(name)
    assert log.sessions() == []


@pytest.mark.parametrize("name", [b"a", 1, None, ["a"]])
def test_a_name_of_another_type_is_a_type_error(memory_log: Any, name: Any) -> None:
    for call in (memory_log.create, memory_log.session):
        with pytest.raises(TypeError):
            call(name)


def test_names_that_look_alike_are_different_sessions(log: Any) -> None:
    names = ["e\u0301", "\u00e9", "a", "A", "a ", " a"]
    epochs = {log.create(name).epoch for name in names}
    assert len(epochs) == len(names)
    assert len(log.sessions()) == len(names)


def test_session_never_creates(log: Any) -> None:
    with pytest.raises(replaylog.SessionUnknown) as caught:
        log.session("never")
    assert caught.value.name == "never"
    assert "never" in str(caught.value)
    assert log.sessions() == []


def test_create_of_a_taken_name_says_who_has_it(log: Any) -> None:
    session = log.create("s", meta={"user": "u1"})
    session.append("x")
    with pytest.raises(replaylog.SessionExists) as caught:
        log.create("s", meta={"user": "u2"})
    assert (caught.value.name, caught.value.epoch, caught.value.head) == ("s", session.epoch, 1)
    again = log.create("s", meta={"user": "u2"}, exist_ok=True)
    assert (again.epoch, again.head, again.meta) == (session.epoch, 1, {"user": "u1"})


def test_a_fresh_session_is_open_and_empty(log: Any) -> None:
    session = log.create("s")
    assert (session.name, session.floor, session.head, session.state) == ("s", 1, 0, "open")
    assert 0 <= session.epoch < 2**64
    assert session.cursor == log.check("s").from_token
    assert session.cursor.split(".")[:2] == [f"{session.epoch:016x}", "0"]


def test_an_epoch_is_drawn_anew_each_time(log: Any) -> None:
    epochs = []
    for _ in range(20):
        epochs.append(log.create("s").epoch)
        log.reap("s")
    assert len(set(epochs)) == 20


META = {"user": "u1", "n": 1, "nested": {"list": [1, "a", None, True, 2.5]}, "\u00fc": ""}


def test_meta_comes_back_and_survives_a_restart(opener: Any, durability: str) -> None:
    log = opener(durability)
    assert log.create("s", meta=META).meta == META
    assert not log.create("bare").meta
    assert {info.name: info.meta for info in log.sessions()}["s"] == META
    if durability != "memory":
        log.close()
        assert opener(durability).session("s").meta == META


def test_reap_leaves_name_epoch_last_id_reason_and_time(log: Any) -> None:
    session = log.create("s")
    session.extend([("x", "message")] * 5)
    before_ns = time.time_ns()
    log.reap("s", reason="idle")
    with pytest.raises(replaylog.SessionReaped) as caught:
        log.session("s")
    reaped = caught.value
    assert (reaped.name, reaped.epoch, reaped.last_id, reaped.reason) == ("s", session.epoch, 5, "idle")
    assert abs(reaped.time_ns - before_ns) < 60e9
    assert "idle" in str(reaped)
    assert session.state == "reaped"


def test_an_old_handle_of_a_reaped_session_never_writes_to_the_new_one(log: Any) -> None:
    old = log.create("s")
    old.append("old")
    log.reap("s")
    for write in (
        lambda: old.append("late"),
        lambda: old.append_nowait("late").wait(5),
        lambda: old.extend([("late", "message")]),
        old.end,
    ):
        with pytest.raises(replaylog.SessionReaped):
            write()
    new = log.create("s")
    with pytest.raises(replaylog.ReplayLogError):
        old.append("late")
    assert (new.head, old.state) == (0, "reaped")


def test_reap_of_a_prefix_takes_these_and_no_others(log: Any) -> None:
    for name in ("job-1", "job-2", "job", "jo", "other", "job-3"):
        log.create(name).append("x")
    log.reap(prefix="job-", reason="sweep")
    assert sorted(info.name for info in log.sessions() if info.state != "reaped") == ["jo", "job", "other"]
    for name in ("job-1", "job-2", "job-3"):
        assert log.check(name, 1).reason is replaylog.Reason.REAPED


def test_reap_of_nobody_leaves_no_tombstone(log: Any) -> None:
    with contextlib.suppress(replaylog.SessionUnknown):
        log.reap("never")
    assert log.check("never").reason is replaylog.Reason.UNKNOWN


# --- listing ---


def test_sessions_are_paged_in_order_without_a_gap(log: Any) -> None:
    names = sorted(f"{prefix}-{n:03}" for prefix in "ab" for n in range(25))
    for name in names[::2] + names[1::2]:
        log.create(name)
    assert [info.name for info in log.sessions()] == names
    assert [info.name for info in log.sessions("a")] == names[:25]
    assert [info.name for info in log.sessions(prefix="c")] == []
    assert [info.name for info in log.sessions(after="a-023", limit=3)] == ["a-024", "b-000", "b-001"]
    assert [info.name for info in log.sessions(prefix="a", after="a-023", limit=3)] == ["a-024"]
    assert [info.name for info in log.sessions(after="a-0235", limit=1)] == ["a-024"]
    pages, after = [], None
    while page := log.sessions(after=after, limit=7):
        pages += [info.name for info in page]
        after = page[-1].name
    assert pages == names


def test_sessions_tell_the_window(log: Any) -> None:
    session = log.create("s", meta={"a": 1})
    session.extend([("x", "message")] * 5)
    session.trim(3)
    session.end()
    (info,) = log.sessions()
    assert (info.name, info.epoch, info.floor, info.head, info.state, info.meta) == (
        "s", session.epoch, 3, 5, "ended", {"a": 1},
    )  # fmt: skip


def test_sessions_survive_a_restart_in_the_same_order(opener: Any, disk: str) -> None:
    log = opener(disk)
    names = ["b", "a\u00e9", "ab", "a", "\U0001f4a9", "\uffee"]
    for name in names:
        log.create(name).append("x")
    listed = [(info.name, info.head) for info in log.sessions()]
    log.close()
    log = opener(disk)
    log.create("aa")
    assert [(i.name, i.head) for i in log.sessions() if i.name != "aa"] == listed
    assert [info.name for info in log.sessions()].index("aa") == 1


def test_threads_that_create_one_name_get_one_session(log: Any) -> None:
    for turn in range(10):
        name = f"s{turn}"
        outcomes = in_threads(6, lambda n, name=name: log.create(name))
        assert sum(isinstance(outcome, replaylog.SessionExists) for outcome in outcomes) == 5
        epochs = in_threads(6, lambda n, name=name: log.create(name, exist_ok=True).epoch)
        assert len(set(epochs)) == 1
