"""What stands in the way: a failing disk, a full one, damage. Reads go on; nothing acknowledged is lost.

A failed flush is an unknown outcome and poisons the log; a refused write is known to be absent. Damage
is named, never served. (`_journal.inject_error`: errno for the next fdatasync, negative for the next write.)
"""

from __future__ import annotations

import errno
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import replaylog
from replaylog import Reason, Retention
from support import in_threads


def payloads_of(log: Any, name: str = "s") -> list[Any]:
    with log.resume(name, replaylog.FLOOR) as replay:
        events = list(replay)
    assert [event.id for event in events] == [events[0].id + n for n in range(len(events))]
    return [event.payload for event in events]


# --- a flush that fails ---


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_flush_is_an_unknown_outcome_and_poisons_the_log(opener: Any, error: int) -> None:
    log = opener("sync")
    session = log.create("s")
    for n in range(1, 6):
        session.append(n)
    log._journal.inject_error(error)
    with pytest.raises(replaylog.OutcomeUnknown) as caught:
        session.append(6)
    assert caught.value.cause
    assert (session.head, log.check("s", 5).reason) == (5, Reason.AT_HEAD), "not shown: it may not be there"
    for write in (
        lambda: session.append(7),
        lambda: session.extend([(7, "message")]),
        lambda: log.create("t"),
        lambda: session.end(),
        lambda: session.trim(3),
    ):
        with pytest.raises(replaylog.LogPoisoned):
            write()
    assert payloads_of(log) == [1, 2, 3, 4, 5]
    log.close()

    log = opener("sync")
    found = payloads_of(log)
    assert found in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6])
    assert log.session("s").append("on") == len(found) + 1
    assert log.verify() == []


def test_of_many_waiters_none_is_told_that_it_succeeded(opener: Any) -> None:
    log = opener("sync")
    session = log.create("s")
    session.append("first")
    told: list[int] = []

    def work(n: int) -> None:
        while True:
            told.append(session.append(n))

    threading.Timer(0.05, lambda: log._journal.inject_error(errno.EIO)).start()
    outcomes = in_threads(6, work)
    assert {type(outcome) for outcome in outcomes} <= {replaylog.OutcomeUnknown, replaylog.LogPoisoned}
    head = session.head
    assert sorted(told) == list(range(2, head + 1))
    log.close()
    assert opener("sync").session("s").head >= head


def test_a_failed_flush_of_tickets_fails_each_of_them(opener: Any) -> None:
    log = opener("sync")
    session = log.create("s")
    log._journal.inject_error(errno.EIO)
    outcomes: list[Any] = []
    tickets = []
    for n in range(20):
        try:
            tickets.append(session.append_nowait(n))
        except replaylog.LogPoisoned as error:
            outcomes.append(error)
    for ticket in tickets:
        with pytest.raises((replaylog.OutcomeUnknown, replaylog.LogPoisoned)):
            ticket.wait(10)
    assert session.head == 0


def test_a_follower_of_a_poisoned_log_waits_or_is_told_but_sees_nothing_unsure(opener: Any) -> None:
    log = opener("sync")
    session = log.create("s")
    session.append(1)
    with session.follow(0, timeout_s=0.2) as events:
        assert next(events).id == 1
        log._journal.inject_error(errno.EIO)
        with pytest.raises(replaylog.OutcomeUnknown):
            session.append(2)
        with pytest.raises((TimeoutError, replaylog.ReplayLogError)):
            next(events)


def test_in_relaxed_a_failed_flush_is_told_by_flush(opener: Any) -> None:
    log = opener("relaxed", flush_s=3600)
    session = log.create("s")
    session.append(1)
    log._journal.inject_error(errno.EIO)
    with pytest.raises((replaylog.OutcomeUnknown, replaylog.LogPoisoned)):
        log.flush()
    with pytest.raises(replaylog.LogPoisoned):
        session.append(2)
    assert payloads_of(log) == [1]


# --- no room ---


def test_a_refused_write_is_known_to_be_absent_and_appends_resume(opener: Any, disk: str) -> None:
    log = opener(disk)
    session = log.create("s")
    session.append(1)
    cursor = session.cursor
    for turn in range(3):
        log._journal.inject_error(-errno.ENOSPC)
        with pytest.raises(replaylog.LogFull):
            session.append("refused")
        assert log.check("s", cursor).reason is Reason.AT_HEAD
        assert session.append(turn + 2) == turn + 2
        cursor = session.cursor
    log._journal.inject_error(-errno.ENOSPC)
    with pytest.raises(replaylog.LogFull):
        session.end("refused")
    assert session.state == "open"
    log._journal.inject_error(-errno.ENOSPC)
    with pytest.raises(replaylog.LogFull):
        log.create("t")
    assert log.check("t").reason is Reason.UNKNOWN
    log.create("t")
    assert payloads_of(log) == [1, 2, 3, 4]
    log.flush()
    log._abandon()
    log = opener(disk)
    assert payloads_of(log) == [1, 2, 3, 4]
    assert log.check("s", cursor).reason is Reason.AT_HEAD


def test_a_refused_write_under_many_threads_loses_no_id(opener: Any) -> None:
    log = opener("sync")
    session = log.create("s")
    refusals = []

    def work(n: int) -> dict[int, str]:
        got = {}
        for k in range(100):
            try:
                got[session.append(f"{n}.{k}")] = f"{n}.{k}"
            except replaylog.LogFull as error:
                refusals.append(error)
            if n == 0 and k % 10 == 5:
                log._journal.inject_error(-errno.ENOSPC)
        return got

    acknowledged = {id: text for got in in_threads(5, work) for id, text in got.items()}
    assert refusals
    assert sorted(acknowledged) == list(range(1, session.head + 1))
    assert payloads_of(log) == [acknowledged[id] for id in sorted(acknowledged)]
    log._abandon()
    assert payloads_of(opener("sync")) == [acknowledged[id] for id in sorted(acknowledged)]


def test_memory_bytes_is_a_bound_of_a_log_without_a_disk(opener: Any) -> None:
    log = opener("memory", memory_bytes=1 << 20)
    session = log.create("s", retention=Retention(events=1_000_000))
    count = 0
    with pytest.raises(replaylog.LogFull) as caught:
        while True:
            session.append("x" * 1000)
            count += 1
    assert caught.value.limit == 1 << 20
    assert caught.value.used <= caught.value.limit + (64 << 10)  # one chunk past it
    assert caught.value.bound == "memory_bytes"
    assert 100 < count < 1100
    assert len(payloads_of(log)) == count
    session.trim(count + 1)
    assert session.append("there is room again") == count + 1


def test_map_bytes_is_a_bound_that_is_met_before_the_store_is_full(opener: Any, disk: str) -> None:
    log = opener(disk, map_bytes=4 << 20, checkpoint_interval_s=0.02)
    session = log.create("s", retention=Retention(events=1_000_000))
    other = log.create("other", retention=Retention(events=1_000_000))
    count = 0
    with pytest.raises(replaylog.LogFull) as caught:
        for _ in range(20_000):
            count = session.append(f"{count + 1} " + "x" * 1000)
    assert caught.value.bound == "map_bytes"
    assert caught.value.limit == 4 << 20
    assert count > 500
    with pytest.raises(replaylog.LogFull):
        other.append("y" * 100_000)
    assert log.check("s", count).reason is Reason.AT_HEAD
    assert [int(text.split()[0]) for text in payloads_of(log)] == list(range(1, count + 1))
    session.trim(count - 9)  # making room must be possible on a full log
    log.checkpoint()
    assert session.append("there is room again") == count + 1
    log.close()
    log = opener(disk, map_bytes=4 << 20)
    assert len(payloads_of(log)) == 11
    assert log.verify() == []


def test_append_nowait_is_told_of_the_backlog_and_append_waits(opener: Any, disk: str) -> None:
    log = opener(disk, backlog_bytes=64 << 10)
    session = log.create("s")
    tickets = []
    with pytest.raises(replaylog.Backlogged) as caught:
        for _ in range(10_000):
            tickets.append(session.append_nowait("x" * 30_000))
    assert caught.value.queued > 0
    assert caught.value.limit > 0
    assert session.append("this one waits for room") == len(tickets) + 1
    assert [ticket.wait(10) for ticket in tickets] == list(range(1, len(tickets) + 1))


# --- damage ---


def closed_log(opener: Any, disk: str, count: int = 200) -> None:
    log = opener(disk)
    session = log.create("damaged")
    for n in range(1, count + 1):
        session.append(f"MARK{n:06} " + "x" * 100)
    log.create("sound").append("sound")
    log.close()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x20
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("n", [1, 77, 200])
def test_a_flipped_byte_in_the_store_is_named_and_never_served(
    opener: Any, disk: str, tmp_path: Path, n: int
) -> None:
    closed_log(opener, disk)
    data = tmp_path / "log" / "data.mdb"
    # LMDB may have left an older copy of the page: damage them all.
    places = [found.start() for found in re.finditer(f"MARK{n:06}".encode(), data.read_bytes())]
    assert places
    for at in places:
        flip(data, at + 5)
    log = opener(disk)
    with pytest.raises(replaylog.CorruptLog) as caught, log.resume("damaged") as replay:
        for event in replay:
            assert event.payload.startswith(f"MARK{event.id:06} ")
    assert "session" in caught.value.where
    assert any("damaged" in problem for problem in log.verify())
    assert payloads_of(log, "sound") == ["sound"]


def crashed_log(opener: Any, disk: str, count: int) -> list[str]:
    log = opener(disk, checkpoint_interval_s=3600)
    session = log.create("s")
    texts = [f"event {n} " + "y" * (37 * n % 900) for n in range(1, count + 1)]
    for text in texts:
        session.append(text)
    log.flush()
    log._abandon()
    return texts


def extents(directory: Path) -> list[Path]:
    """Journal extents that hold anything."""
    return [path for path in sorted((directory / "journal").iterdir()) if any(path.read_bytes())]


def test_a_journal_cut_at_every_block_gives_a_prefix(opener: Any, tmp_path: Path) -> None:
    """`relaxed`: a power cut may leave any prefix of what was not flushed, and never anything else."""
    texts = crashed_log(opener, "relaxed", 40)
    (extent,) = extents(tmp_path / "log")
    whole = extent.read_bytes()
    used = len(whole.rstrip(b"\0"))
    heads = []
    for cut in range(0, used + 512, 512):
        shutil.copytree(tmp_path / "log", tmp_path / "cut")
        (tmp_path / "cut" / "journal" / extent.name).write_bytes(whole[:cut] + bytes(len(whole) - cut))
        log = opener("relaxed", name="cut")
        if log.check("s").reason is Reason.UNKNOWN:
            heads.append(0)
        else:
            found = payloads_of(log)
            assert found == texts[: len(found)]
            heads.append(len(found))
            assert log.session("s").append("next") == len(found) + 1
        log.close()
        shutil.rmtree(tmp_path / "cut")
    assert heads == sorted(heads)
    assert heads[-1] == len(texts)
    assert len(set(heads)) > 20


def test_damage_behind_the_last_flush_is_corrupt_and_not_a_shorter_log(opener: Any, tmp_path: Path) -> None:
    """`sync`: a block that a later one says was flushed cannot be missing."""
    crashed_log(opener, "sync", 40)
    (extent,) = extents(tmp_path / "log")
    whole = extent.read_bytes()
    flip(extent, whole.find(b"event 20 "))
    with pytest.raises(replaylog.CorruptLog):
        opener("sync")
    extent.write_bytes(whole)
    assert len(payloads_of(opener("sync"))) == 40


def test_a_payload_that_imitates_the_journal_is_not_replayed(opener: Any, disk: str, tmp_path: Path) -> None:
    crashed_log(opener, disk, 5)
    (extent,) = extents(tmp_path / "log")
    image = extent.read_bytes()[:4096]
    log = opener(disk, checkpoint_interval_s=3600)
    session = log.create("t")
    for shift in (0, 64, 128, 200, 512):
        session.append(bytes(shift) + image)
    log.flush()
    log._abandon()
    log = opener(disk)
    assert payloads_of(log, "t") == [bytes(shift) + image for shift in (0, 64, 128, 200, 512)]
    assert log.session("s").head == 5
    assert log.verify() == []
