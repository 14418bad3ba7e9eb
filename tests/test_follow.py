"""Readers as claims: replay, follow, watch, the grace of a promise, overrun.

One cursor, one loop: a reader at cursor c is next given c + 1, or is told why not.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import replaylog
from replaylog import HEAD, Reason, Retention


def fill(session: Any, count: int) -> None:
    session.extend([(f"event {n}", "message") for n in range(1, count + 1)])


def later(seconds: float, action: Callable[[], Any]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


# --- replay ---


def test_a_replay_is_finite_up_to_the_head_of_its_verdict(log: Any) -> None:
    session = log.create("s")
    fill(session, 10)
    with log.resume("s", 4) as replay:
        assert replay.verdict == log.check("s", 4)
        fill(session, 5)
        assert [event.id for event in replay] == [5, 6, 7, 8, 9, 10]
        assert list(replay) == []


def test_a_replay_at_head_is_empty_and_no_error(log: Any) -> None:
    session = log.create("s")
    for cursor in (0, None, HEAD, session.cursor):
        with session.resume(cursor) as replay:
            assert list(replay) == []
            assert list(replay.frames()) == []
            assert replay.verdict.reason is Reason.AT_HEAD


def test_replay_is_resume_by_another_name(log: Any) -> None:
    session = log.create("s")
    fill(session, 3)
    with session.replay(1) as one, session.resume(1) as other:
        assert [event.cursor for event in one] == [event.cursor for event in other]


def test_an_event_has_what_the_contract_names(opener: Any, durability: str, clock: Any) -> None:
    log = opener(durability, clock=clock)
    session = log.create("s")
    session.append({"pct": 10}, kind="progress")
    with log.resume("s") as replay:
        (event,) = replay
    assert (event.id, event.kind, event.payload) == (1, "progress", {"pct": 10})
    assert event.time_ns == clock()
    assert event.cursor == session.cursor == f"{event.epoch:016x}.1.{event.tag:08x}"
    assert event.epoch == session.epoch
    with pytest.raises(AttributeError):
        event.id = 2


def test_a_replay_can_stop_in_the_middle_and_be_closed_twice(log: Any) -> None:
    session = log.create("s")
    fill(session, 100)
    replay = log.resume("s")
    assert next(iter(replay)).id == 1
    replay.close()
    replay.close()
    assert session.append("x") == 101


def test_a_deep_session_replays_whole_whatever_is_in_memory(opener: Any, disk: str) -> None:
    """The ring is a cache: its depth never changes an answer."""
    log = opener(disk, memory_bytes=1 << 16, retention=Retention(events=100_000))
    session = log.create("s")
    for first in range(1, 20_001, 500):
        session.extend([(f"event {n}", "message") for n in range(first, first + 500)])
    log.flush()
    for cursor in (0, 5, 9_999, 19_990):
        with log.resume("s", cursor) as replay:
            assert [int(event.payload[6:]) for event in replay] == list(range(cursor + 1, 20_001))


def test_a_promise_outlives_retention_for_the_grace(opener: Any, durability: str) -> None:
    log = opener(durability, replay_grace_s=30, retention=Retention(events=100))
    session = log.create("s")
    fill(session, 100)
    with log.resume("s", 10) as replay:
        events = iter(replay)
        assert next(events).id == 11
        fill(session, 1000)
        session.trim(1101)
        log.flush()
        assert log.check("s", 10).reason is Reason.BELOW_FLOOR
        assert [event.id for event in events] == list(range(12, 101))


def test_past_the_grace_a_reader_is_told_and_never_skips(opener: Any, durability: str) -> None:
    log = opener(durability, replay_grace_s=0.05, checkpoint_interval_s=0.02)
    session = log.create("s")
    session.extend([("x" * 200, "message")] * 2000)
    log.flush()
    got = []
    with log.resume("s") as replay:
        events = iter(replay)
        got.append(next(events).id)
        session.trim(2001)
        time.sleep(0.3)
        session.extend([("y" * 200, "message")] * 2000)
        log.flush()
        with pytest.raises(replaylog.Overrun) as caught:
            got += [event.id for event in events]
    assert got == list(range(1, len(got) + 1))
    assert caught.value.verdict.reason is Reason.BELOW_FLOOR
    assert caught.value.verdict.cursor == len(got)
    assert caught.value.verdict.floor == 2001


# --- follow ---


def test_follow_gives_history_and_then_what_comes(log: Any) -> None:
    session = log.create("s")
    fill(session, 5)
    timer = later(0.05, lambda: [session.append(f"live {n}") for n in range(5)])
    with session.follow(2, until=10) as events:
        assert events.verdict == session.check(2)
        got = [(event.id, event.payload) for event in events]
    timer.join()
    assert [id for id, _ in got] == list(range(3, 11))
    assert got[3:] == [(id, f"live {id - 6}") for id in range(6, 11)]


def test_follow_checks_at_once(log: Any) -> None:
    session = log.create("s")
    with pytest.raises(replaylog.NotResumable):
        session.follow(7)


def test_the_cursor_of_a_follow_is_the_last_event_given(log: Any) -> None:
    session = log.create("s")
    fill(session, 3)
    with session.follow(1) as events:
        assert events.cursor == events.verdict.from_token
        assert events.cursor.split(".")[1] == "1"
        event = next(events)
        assert events.cursor == event.cursor
        assert not events.caught_up
        next(events)
        assert events.caught_up
        assert (events.head, events.head_token) == (3, session.cursor)


def test_a_timeout_leaves_a_follow_usable(log: Any) -> None:
    session = log.create("s")
    with session.follow(0, timeout_s=0.05) as events:
        for n in range(1, 4):
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                next(events)
            assert 0.04 <= time.monotonic() - started < 5
            session.append("x")
            assert next(events).id == n


def test_a_timeout_of_zero_only_looks(log: Any) -> None:
    session = log.create("s")
    fill(session, 2)
    with session.follow(0, timeout_s=0) as events:
        assert [next(events).id, next(events).id] == [1, 2]
        with pytest.raises(TimeoutError):
            next(events)


@pytest.mark.parametrize("timeout_s", [1e12, float("inf")])
def test_a_huge_timeout_waits(memory_log: Any, timeout_s: float) -> None:
    session = memory_log.create("s")
    timer = later(0.05, lambda: session.append("x"))
    try:
        with session.follow(0, timeout_s=timeout_s) as events:
            assert next(events).id == 1
    finally:
        timer.join()


def test_close_from_another_thread_ends_the_iteration(log: Any) -> None:
    session = log.create("s")
    fill(session, 2)
    events = session.follow(0)
    timer = later(0.1, events.close)
    assert [event.id for event in events] == [1, 2]
    timer.join()
    assert not events.ended
    events.close()
    assert list(events) == []


def test_closing_one_follow_disturbs_no_other(log: Any) -> None:
    session = log.create("s")
    first, second = session.follow(0), session.follow(0, timeout_s=10)
    first.close()
    later(0.05, lambda: session.append("x"))
    assert next(second).id == 1
    second.close()


def test_closing_the_log_wakes_a_follower(opener: Any, durability: str) -> None:
    log = opener(durability)
    session = log.create("s")
    events = session.follow(0)
    timer = later(0.1, log.close)
    with pytest.raises(replaylog.LogClosed):
        list(events)
    timer.join()


def test_a_follow_ends_when_the_session_has_ended(log: Any) -> None:
    session = log.create("s")
    fill(session, 2)
    later(0.1, lambda: session.end("bye", kind="result"))
    with session.follow(0) as events:
        assert not events.ended
        assert [event.kind for event in events] == ["message", "message", "result"]
        assert events.ended
        assert list(events) == []


def test_a_follow_of_an_ended_session_replays_and_ends(log: Any) -> None:
    session = log.create("s")
    fill(session, 3)
    session.end()
    for cursor, ids in [(0, [1, 2, 3]), (2, [3]), (3, []), (f"{session.cursor}.end", [])]:
        with session.follow(cursor) as events:
            assert [event.id for event in events] == ids
            assert events.ended


def test_a_waiting_follower_is_told_when_its_session_is_reaped(log: Any) -> None:
    session = log.create("s")
    events = session.follow(0, timeout_s=10)
    later(0.1, lambda: log.reap("s", reason="idle"))
    with pytest.raises(replaylog.Overrun) as caught:
        next(events)
    assert caught.value.verdict.reason is Reason.REAPED


def test_a_follower_of_a_reaped_session_is_not_moved_to_the_new_one(opener: Any, durability: str) -> None:
    log = opener(durability, replay_grace_s=0)
    session = log.create("s")
    fill(session, 3)
    events = session.follow(3, timeout_s=1)
    log.reap("s")
    fill(log.create("s"), 10)
    with pytest.raises(replaylog.Overrun) as caught:
        next(events)
    assert not caught.value.verdict.ok


def test_trim_past_a_follower_ends_it_with_below_floor(opener: Any, durability: str) -> None:
    log = opener(durability, replay_grace_s=0, retention=Retention(events=10))
    session = log.create("s")
    fill(session, 10)
    events = session.follow(0, timeout_s=1)
    assert next(events).id == 1
    fill(session, 20)
    with pytest.raises(replaylog.Overrun) as caught:
        next(events)
    verdict = caught.value.verdict
    assert (verdict.reason, verdict.cursor, verdict.floor, verdict.lost) == (Reason.BELOW_FLOOR, 1, 21, 19)
    assert isinstance(caught.value, replaylog.NotResumable)


def test_take_never_waits_and_gives_whole_frames(log: Any) -> None:
    session = log.create("s")
    fill(session, 100)
    with log.resume("s") as replay:
        frames = [event.frame for event in replay]
    with session.follow(0) as events:
        assert events.take() == b"".join(frames)
        assert events.take() == b""
        assert events.caught_up
        assert events.cursor == session.cursor
    with session.follow(0) as events:
        chunks = list(iter(lambda: events.take(300), b""))
        assert b"".join(chunks) == b"".join(frames)
        assert len(chunks) > 10
        assert all(chunk.endswith(b"\n\n") for chunk in chunks)
    with session.follow(0) as events:
        assert events.take(1) == frames[0], "an event larger than the bound comes alone"


def test_frames_of_a_follow_wait_and_end(log: Any) -> None:
    session = log.create("s")
    fill(session, 3)
    later(0.1, lambda: session.end("bye"))
    with session.follow(0) as events:
        text = b"".join(events.frames())
    with log.resume("s") as replay:
        assert text == b"".join(event.frame for event in replay)


def test_ctrl_c_reaches_a_waiting_follower(memory_log: Any) -> None:
    session = memory_log.create("s")
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with session.follow(0, timeout_s=20) as events:
            with pytest.raises(KeyboardInterrupt):
                next(events)
            session.append("x")
            assert next(events).id == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_many_followers_all_get_everything(log: Any) -> None:
    session = log.create("s")
    count, readers = 200, 8
    got: list[list[int]] = [[] for _ in range(readers)]

    def read(n: int) -> None:
        with session.follow(0, timeout_s=20, until=count) as events:
            got[n].extend(event.id for event in events)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(readers)]
    for thread in threads:
        thread.start()
    for n in range(0, count, 4):
        session.append(n)
        session.extend([(n, "message")] * 3)
    for thread in threads:
        thread.join(30)
    assert got == [list(range(1, count + 1))] * readers


def test_in_sync_nothing_is_seen_before_it_is_durable(opener: Any) -> None:
    """A reader never sees an id that is not yet acknowledged as durable to the log itself."""
    log = opener("sync")
    session = log.create("s")
    seen_early = []

    def watch() -> None:
        with session.follow(0, timeout_s=10, until=300) as events:
            for event in events:
                try:
                    session.wait_durable(event.id, 0)
                except TimeoutError:
                    seen_early.append(event.id)

    reader = threading.Thread(target=watch)
    reader.start()
    for _ in range(30):
        for ticket in [session.append_nowait("x") for _ in range(10)]:
            ticket.wait(10)
    reader.join(20)
    assert not reader.is_alive()
    assert seen_early == []


# --- drops and resumes under a writer that never pauses ---


def test_sixty_drops_under_a_writer_that_never_pauses_lose_and_repeat_nothing(
    opener: Any, durability: str
) -> None:
    """The seam between history and live is where others lose events: here there is none."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    log = opener(durability, **({} if durability == "memory" else {"memory_bytes": 1 << 20}))
    session = log.create("s", retention=Retention(events=10_000_000))
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            written += 1
            try:
                session.append_nowait(written)
            except replaylog.Backlogged:
                session.append(written)

    writer = threading.Thread(target=write)
    writer.start()
    got: list[int] = []
    cursor = None
    try:
        for _ in range(60):
            with session.follow(cursor, timeout_s=20) as events:
                for _ in range(rng.randrange(1, 200)):
                    event = next(events)
                    assert event.payload == event.id, f"seed {seed}"
                    got.append(event.id)
                cursor = events.cursor
            if rng.random() < 0.3:
                time.sleep(0.005)
    finally:
        stop.set()
        writer.join(30)
    assert got == list(range(1, len(got) + 1)), f"seed {seed}"
    session.append("the last one")
    with session.follow(cursor, timeout_s=20, until=written + 1) as events:
        got += [event.id for event in events]
    assert got == list(range(1, written + 2)), f"seed {seed}"


# --- watch ---


def test_watch_tells_heads_that_moved_and_only_of_the_prefix(log: Any) -> None:
    log.create("job-1")
    log.create("other")
    seen: dict[str, int] = {}
    done = threading.Event()

    def read(heads: Any) -> None:
        for name, head in heads:
            assert head >= seen.get(name, 0)
            seen[name] = head
            if seen.get("job-1") == 3 and seen.get("job-2") == 2:
                done.set()
                return

    heads = log.watch("job-")
    reader = threading.Thread(target=read, args=(heads,))
    reader.start()
    try:
        log.session("other").append("x")
        for _ in range(3):
            log.session("job-1").append("x")
        log.create("job-2").extend([("x", "message")] * 2)
        assert done.wait(10), seen
    finally:
        heads.close()
        reader.join(10)
    assert set(seen) == {"job-1", "job-2"}
