"""Appending as claims: ids, ranges, tickets, expected heads, keys, the end, trimming, threads.

Ids are 1, 2, 3 ... whoever appends, from whichever thread.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

import replaylog
from replaylog import Retention
from support import in_threads


def test_append_returns_the_ids_one_by_one(log: Any) -> None:
    session = log.create("s")
    assert [session.append(f"event {n}") for n in range(1, 50)] == list(range(1, 50))
    assert session.head == 49


def test_extend_gives_one_contiguous_range(log: Any) -> None:
    session = log.create("s")
    ids = session.extend([(f"event {n}", "progress") for n in range(100)])
    assert ids == range(1, 101)
    assert isinstance(ids, range)
    assert session.extend([("x", "message")]) == range(101, 102)
    assert len(session.extend([])) == 0
    assert session.head == 101
    assert session.extend((payload, "k") for payload in ("a", b"b")) == range(102, 104)


def test_a_ticket_resolves_to_its_id(log: Any) -> None:
    session = log.create("s")
    tickets = [session.append_nowait(f"event {n}") for n in range(100)]
    assert [ticket.wait(10) for ticket in tickets] == list(range(1, 101))
    assert [ticket.id for ticket in tickets] == list(range(1, 101))
    assert all(ticket.done for ticket in tickets)
    assert tickets[0].wait() == 1
    assert session.head == 100
    session.wait_durable(100, 10)


def test_what_nobody_waits_for_is_written_too(opener: Any, disk: str) -> None:
    """The background thread must not miss a batch because it has just written the one before."""
    log = opener(disk)
    session = log.create("s", retention=Retention(events=100))
    until = time.monotonic() + 2
    while time.monotonic() < until:
        ticket = session.append_nowait("x")
        asked = time.monotonic()
        while not ticket.done:
            assert time.monotonic() < asked + 5, f"event {ticket.id} lies there and nobody writes it"


def test_wait_durable_of_an_id_that_nobody_has_does_not_wait_for_ever(log: Any) -> None:
    session = log.create("s")
    session.append("x")
    session.wait_durable(1, 5)
    started = time.monotonic()
    with pytest.raises((TimeoutError, ValueError)):
        session.wait_durable(2, 0.05)
    assert time.monotonic() - started < 5


def test_expect_head_is_compared_with_the_last_assigned_id(log: Any) -> None:
    session = log.create("s")
    assert session.append("a", expect_head=0) == 1
    for expected in (0, 2, 500):
        with pytest.raises(replaylog.HeadMoved) as caught:
            session.append("b", expect_head=expected)
        assert (caught.value.name, caught.value.expected, caught.value.head) == ("s", expected, 1)
    ticket = session.append_nowait("b", expect_head=1)
    with pytest.raises(replaylog.HeadMoved):
        session.append_nowait("c", expect_head=1)
    assert ticket.wait(10) == 2
    assert session.head == 2


def test_of_many_appends_that_expect_the_same_head_one_wins(log: Any) -> None:
    session = log.create("s")
    for head in range(10):
        outcomes = in_threads(8, lambda n, head=head: session.append(n, expect_head=head))
        assert sum(outcome == head + 1 for outcome in outcomes) == 1
        assert sum(isinstance(outcome, replaylog.HeadMoved) for outcome in outcomes) == 7


def test_under_back_pressure_expect_head_and_key_still_hold(opener: Any, disk: str) -> None:
    """Waiting for room lets others in: what was asked before must be asked again after."""
    log = opener(disk, backlog_bytes=64 << 10)
    filler = log.create("filler")
    session = log.create("s")
    big = b"x" * 30_000

    def fill(n: int) -> None:
        for _ in range(15):
            filler.append(big)

    def work(n: int) -> Any:
        if n < 4:
            return fill(n)
        if n < 8:
            return session.append(big, expect_head=0)
        return session.append(big, key="k")

    outcomes = in_threads(12, work)
    with session.resume() as replay:
        assert len(list(replay)) == session.head
    won = [outcome for outcome in outcomes[4:8] if isinstance(outcome, int)]
    assert won in ([], [1])
    assert all(isinstance(o, (int, replaylog.HeadMoved)) for o in outcomes[4:8])
    assert len(set(outcomes[8:])) == 1
    assert session.head == len(won) + 1


def test_a_key_gives_the_id_it_got_before(log: Any) -> None:
    session = log.create("s")
    assert session.append("a", key="k") == 1
    assert session.append("b") == 2
    assert session.append("a", key="k") == 1
    assert session.append_nowait("a", key="k").wait(10) == 1
    assert session.head == 2
    for payload, kind in [("b", "message"), (b"a", "message"), ("a", "other"), (["a"], "message")]:
        with pytest.raises(replaylog.KeyReused) as caught:
            session.append(payload, kind=kind, key="k")
        assert (caught.value.name, caught.value.key, caught.value.id) == ("s", "k", 1)
    assert session.head == 2


def test_a_key_belongs_to_its_session(log: Any) -> None:
    for name in ("a", "b"):
        session = log.create(name)
        session.append("first")
        assert session.append(name, key="k") == 2


def test_threads_that_retry_the_same_key_share_one_event(log: Any) -> None:
    session = log.create("s")
    for turn in range(10):
        ids = in_threads(6, lambda n, turn=turn: session.append(f"turn {turn}", key=f"key {turn}"))
        assert set(ids) == {turn + 1}
    assert session.head == 10


def test_end_appends_its_payload_and_ends_in_one_step(log: Any) -> None:
    session = log.create("s")
    session.append("x")
    session.end(b"done", kind="result")
    assert (session.state, session.head) == ("ended", 2)
    with session.resume(1) as replay:
        (event,) = replay
    assert (event.payload, event.kind) == (b"done", "result")
    for write in (
        lambda: session.append("late"),
        lambda: session.append_nowait("late"),
        lambda: session.extend([("late", "message")]),
        lambda: session.end("late"),
    ):
        with pytest.raises(replaylog.SessionEnded) as caught:
            write()
        assert (caught.value.name, caught.value.head) == ("s", 2)
    assert session.head == 2


def test_end_without_a_payload_only_ends(log: Any) -> None:
    session = log.create("s")
    session.end()
    assert (session.state, session.head, session.floor) == ("ended", 0, 1)
    assert log.check("s", 0).ended


def test_threads_on_one_session_get_contiguous_ids_and_keep_their_order(log: Any) -> None:
    session = log.create("s")
    per_thread = 60

    def work(n: int) -> list[int]:
        ids = []
        for k in range(0, per_thread, 3):
            ids.append(session.append(f"{n}.{k}"))
            ids.append(session.append_nowait(f"{n}.{k + 1}").wait(30))
            ids += session.extend([(f"{n}.{k + 2}", "message")])
        return ids

    outcomes = in_threads(8, work)
    assert sorted(itertools.chain(*outcomes)) == list(range(1, 8 * per_thread + 1))
    with session.resume() as replay:
        content = {event.id: event.payload for event in replay}
    for n, ids in enumerate(outcomes):
        assert ids == sorted(ids)
        assert [content[id] for id in ids] == [f"{n}.{k}" for k in range(per_thread)]


def test_extends_of_many_threads_do_not_interleave(log: Any) -> None:
    session = log.create("s")
    outcomes = in_threads(6, lambda n: [session.extend([((n, k)[0], "m")] * 20) for k in range(5)])
    with session.resume() as replay:
        content = {event.id: event.payload for event in replay}
    for n, ranges in enumerate(outcomes):
        for ids in ranges:
            assert {content[id] for id in ids} == {n}
            assert len(ids) == 20


# --- trimming and retention ---


def test_trim_only_raises_the_floor(log: Any) -> None:
    session = log.create("s")
    session.extend([("x", "message")] * 10)
    for floor, expected in [(4, 4), (2, 4), (1, 4), (4, 4), (11, 11), (3, 11)]:
        session.trim(floor)
        assert session.floor == expected
    assert (session.head, session.append("y")) == (10, 11)


def test_retention_by_bytes_keeps_the_newest_that_fit(log: Any) -> None:
    session = log.create("s", retention=Retention(bytes=20_000))
    for _ in range(100):
        session.append("x" * 1000)
    kept = session.head - session.floor + 1
    assert 15 <= kept <= 20


def test_retention_refuses_nonsense() -> None:
    for limits in ({"events": -1}, {"bytes": -5}, {"age_s": -0.1}, {"age_s": float("nan")}):
        with pytest.raises(ValueError):
            Retention(**limits)
    with pytest.raises(TypeError):
        Retention(depth=5)  # type: ignore[call-arg]


def test_event_times_never_decrease(opener: Any, durability: str, clock: Any) -> None:
    log = opener(durability, clock=clock)
    session = log.create("s")
    for seconds in (0, 5, -100, 1, -1, 200):
        clock.advance(seconds)
        session.append("x")
    with session.resume() as replay:
        times = [event.time_ns for event in replay]
    assert times == sorted(times)
    assert times[-1] == clock()
