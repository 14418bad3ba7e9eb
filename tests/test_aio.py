"""replaylog.aio: the same names, awaited. It waits; it decides nothing.

Cancelling an await loses and consumes nothing.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import replaylog
import replaylog.aio
from replaylog import Reason, Retention
from support import EXTENT_BYTES


@pytest.fixture
def run(durability: str, tmp_path: Path) -> Callable[..., Any]:
    """Run `body(log)` in an event loop of its own, in each durability."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[Any]:
        if durability == "memory":
            log = await replaylog.aio.open(None, durability="memory", **settings)
        else:
            settings.setdefault("journal_extent_bytes", EXTENT_BYTES)
            log = await replaylog.aio.open(tmp_path / "log", durability=durability, **settings)
        try:
            yield log
        finally:
            await log.close()

    def go(body: Callable[[Any], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
        async def main() -> Any:
            async with opened(**settings) as log:
                return await asyncio.wait_for(body(log), 60)

        return asyncio.run(main())

    return go


async def ids_of(follow: Any, count: int) -> list[int]:
    ids = []
    async for event in follow:
        ids.append(event.id)
        if len(ids) == count:
            break
    return ids


# --- the same names ---


def test_the_contract_awaited(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("agent-7", meta={"user": "u1"})
        with pytest.raises(replaylog.SessionExists):
            await log.create("agent-7")
        with pytest.raises(replaylog.SessionUnknown):
            await log.session("never")
        assert await session.append({"pct": 10}, kind="progress") == 1
        assert await session.extend([(b"a", "message"), ("b", "x")]) == range(2, 4)
        assert (session.name, session.head, session.floor, session.state) == ("agent-7", 3, 1, "open")
        assert session.meta == {"user": "u1"}
        assert await session.append_nowait("c").wait() == 4
        again = await log.session("agent-7")
        assert (again.epoch, again.head, again.cursor) == (session.epoch, 4, session.cursor)

        verdict = await log.check("agent-7", 1)
        assert (verdict.reason, verdict.missing) == (Reason.RESUMABLE, 3)
        assert verdict == await session.check(1)
        assert verdict == log.sync.check("agent-7", 1)

        await session.trim(3)
        assert (await log.check("agent-7", 1)).reason is Reason.BELOW_FLOOR
        await session.end(b"done", kind="result")
        assert session.state == "ended"
        with pytest.raises(replaylog.SessionEnded):
            await session.append("late")
        assert [info.name for info in await log.sessions()] == ["agent-7"]
        await log.flush()
        assert isinstance(await log.stats(), dict)
        await log.reap("agent-7", reason="idle")
        with pytest.raises(replaylog.SessionReaped):
            await log.session("agent-7")
        assert (await log.check("agent-7", 1)).reason is Reason.REAPED

    run(body)


def test_errors_of_the_programmer_are_the_same(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        for call, error in [
            (lambda: log.check("s", True), TypeError),
            (lambda: session.check(1.0), TypeError),
            (lambda: session.append((1, 2)), TypeError),
            (lambda: session.append("\ud800"), ValueError),
            (lambda: session.append("x", kind="a;b"), ValueError),
            (lambda: session.append("x", expect_head=5), replaylog.HeadMoved),
            (lambda: log.create(""), ValueError),
        ]:
            with pytest.raises(error):
                await call()
        assert session.head == 0

    run(body)


def test_resume_awaited(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        await session.extend([(f"event {n}", "message") for n in range(1, 101)])
        async with await log.resume("s", 90) as replay:
            assert replay.verdict.missing == 10
            assert [event.id async for event in replay] == list(range(91, 101))
        with pytest.raises(replaylog.NotResumable) as caught:
            await log.resume("s", 500)
        assert caught.value.verdict.reason is Reason.FORKED

    run(body)


def test_follow_gives_history_and_then_what_comes(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        await session.extend([("old", "message")] * 3)
        async with session.follow(1) as events:
            assert events.verdict.missing == 2
            assert await ids_of(events, 2) == [2, 3]
            assert events.cursor == session.cursor
            reader = asyncio.create_task(ids_of(events, 3))
            for _ in range(3):
                await session.append("live")
            assert await reader == [4, 5, 6]
            await session.end("bye")
            assert [event.payload async for event in events] == ["bye"]
            assert events.ended

    run(body)


def test_follow_refuses_before_the_first_event(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        with pytest.raises(replaylog.NotResumable) as caught:
            async with session.follow(41):
                pytest.fail("entered")
        assert caught.value.verdict.reason is Reason.FORKED

    run(body)


def test_an_append_from_another_thread_wakes_the_loop(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        async with session.follow(0) as events:
            thread = threading.Timer(0.1, lambda: log.sync.session("s").append("from a thread"))
            thread.start()
            assert await ids_of(events, 1) == [1]
            thread.join()

    run(body)


def test_take_waits_for_events_an_end_or_the_timeout(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        async with session.follow(0) as events:
            started = time.monotonic()
            assert await events.take(timeout_s=0.05) == b""
            assert 0.04 < time.monotonic() - started < 5
            assert not events.ended
            waiting = asyncio.create_task(events.take(timeout_s=20))
            await asyncio.sleep(0.02)
            await session.append("x")
            assert (await waiting).startswith(f"id: {session.cursor}\n".encode())
            waiting = asyncio.create_task(events.take(timeout_s=20))
            await asyncio.sleep(0.02)
            await session.end()
            assert await waiting == b""
            assert events.ended

    run(body)


def test_close_wakes_a_waiting_reader(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        async with session.follow(0) as events:
            reader = asyncio.create_task(ids_of(events, 1))
            await asyncio.sleep(0.05)
            events.close()
            assert await asyncio.wait_for(reader, 5) == []
        async with session.follow(0) as events:
            reader = asyncio.create_task(ids_of(events, 1))
            await asyncio.sleep(0.05)
            thread = threading.Thread(target=events.close)
            thread.start()
            assert await asyncio.wait_for(reader, 5) == []
            thread.join()

    run(body)


def test_overrun_is_raised_and_nothing_skipped(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        await session.extend([("x", "message")] * 10)
        async with session.follow(0) as events:
            assert await ids_of(events, 1) == [1]
            await session.extend([("x", "message")] * 20)
            with pytest.raises(replaylog.Overrun) as caught:
                await ids_of(events, 1)
            assert caught.value.verdict.lost == 19

    run(body, retention=Retention(events=10), replay_grace_s=0)


def test_an_existing_log_can_be_wrapped(memory_log: Any) -> None:
    async def body() -> None:
        log = replaylog.aio.Log(memory_log)
        assert log.sync is memory_log
        session = await log.create("s")
        await session.append("x")

    asyncio.run(body())
    assert memory_log.session("s").head == 1
    assert not memory_log.closed


def test_one_log_serves_two_loops_in_two_threads(memory_log: Any) -> None:
    memory_log.create("s")

    async def read() -> list[int]:
        session = await replaylog.aio.Log(memory_log).session("s")
        async with session.follow(0) as events:
            return await asyncio.wait_for(ids_of(events, 50), 20)

    got: list[list[int]] = []
    threads = [threading.Thread(target=lambda: got.append(asyncio.run(read()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(50):
        memory_log.session("s").append(n)
    for thread in threads:
        thread.join(20)
    assert got == [list(range(1, 51))] * 2


# --- check_nowait ---


def test_check_nowait_answers_from_memory_or_not_at_all(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        await session.append("x")
        for cursor in (0, 1, 2, ".41.", session.cursor, None):
            verdict = log.check_nowait("s", cursor)
            assert verdict is None or verdict == await log.check("s", cursor)
        assert log.check_nowait("s", 0) is not None, "a session just written to is in memory"
        for name in ("never", ""):
            verdict = log.check_nowait(name, 0)
            assert verdict is None or verdict.reason is Reason.UNKNOWN
        with pytest.raises(TypeError):
            log.check_nowait("s", True)
        assert [info.name for info in await log.sessions()] == ["s"]

    run(body)


# --- cancelling ---


async def cancelled(awaitable: Awaitable[Any], after_s: float) -> bool:
    """Start it, cancel it, and say whether it was cancelled before it had finished."""
    task = asyncio.ensure_future(awaitable)
    await asyncio.sleep(after_s)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


def test_a_cancelled_read_consumes_nothing(run: Any) -> None:
    """Cancel between the wake-up and the hand-over, at every moment that the loop allows."""

    async def body(log: Any) -> None:
        session = await log.create("s")
        async with session.follow(0) as events:
            got: list[int] = []
            for turn in range(150):
                task = asyncio.ensure_future(anext(events))
                for _ in range(turn % 4):
                    await asyncio.sleep(0)
                ticket = session.append_nowait(turn)
                if turn % 2:
                    await ticket.wait()
                for _ in range(turn % 5):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    got.append((await task).id)
                except asyncio.CancelledError:
                    pass
            await session.append("last")
            got += await ids_of(events, session.head - len(got))
            assert got == list(range(1, 152))

    run(body)


def test_a_cancelled_take_consumes_nothing(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        async with session.follow(0) as events:
            text = b""
            for turn in range(60):
                task = asyncio.ensure_future(events.take(timeout_s=5))
                for _ in range(turn % 4):
                    await asyncio.sleep(0)
                ticket = session.append_nowait(turn)
                for _ in range(turn % 3):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    text += await task
                except asyncio.CancelledError:
                    pass
                await ticket.wait()
            while chunk := await events.take(timeout_s=0.05):
                text += chunk
        async with await log.resume("s", 0) as replay:
            assert text == b"".join([event.frame async for event in replay])

    run(body)


def test_wait_for_leaves_a_follow_usable(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        async with session.follow(0) as events:
            for n in range(1, 5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(events), 0.02)
                await session.append("x")
                assert (await anext(events)).id == n

    run(body)


def test_a_cancelled_append_cancels_nobody_else_and_is_whole_or_absent(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        tasks = [asyncio.create_task(session.append(n)) for n in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        ids = {outcome: n for n, outcome in enumerate(outcomes) if isinstance(outcome, int)}
        assert all(isinstance(o, (int, asyncio.CancelledError)) for o in outcomes)
        assert len(ids) >= 66
        await log.flush()
        async with await log.resume("s", 0) as replay:
            content = {event.id: event.payload async for event in replay}
        assert list(content) == list(range(1, len(content) + 1))
        assert {id: content[id] for id in ids} == ids
        assert len(set(content.values())) == len(content)

    run(body)


def test_a_cancelled_resume_check_or_create_leaves_the_log_usable(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        await session.append("x")
        for turn in range(20):
            await cancelled(log.resume("s", 0), 0)
            await cancelled(log.check("s", 0), 0)
            await cancelled(log.create(f"t{turn}"), 0)
            await cancelled(log.session("s"), 0)
        await log.create("after")
        assert await session.append("y") == 2
        for info in await log.sessions():
            assert (await log.session(info.name)).epoch == info.epoch

    run(body)


def test_closing_the_log_fails_what_waits(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        async with session.follow(0) as events:
            reader = asyncio.create_task(ids_of(events, 1))
            await asyncio.sleep(0.05)
            await log.close()
            with pytest.raises(replaylog.LogClosed):
                await asyncio.wait_for(reader, 5)
        with pytest.raises(replaylog.LogClosed):
            await session.append("late")

    run(body)


# --- many at once ---


def test_a_thousand_appends_at_once_are_contiguous_and_in_order(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        ids = await asyncio.gather(*(session.append(n) for n in range(1000)))
        assert sorted(ids) == list(range(1, 1001))
        async with await log.resume("s", 0) as replay:
            content = {event.id: event.payload async for event in replay}
        assert [content[id] for id in ids] == list(range(1000))

    run(body)


def test_waiting_does_not_hold_the_loop(run: Any) -> None:
    async def body(log: Any) -> None:
        session = await log.create("s")
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticker = asyncio.create_task(tick())
        async with session.follow(0) as events:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.3)
        ticker.cancel()
        assert ticks > 50

    run(body)


def test_sixty_drops_under_a_writer_that_never_pauses_lose_and_repeat_nothing(run: Any) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)

    async def body(log: Any) -> None:
        session = await log.create("s", retention=Retention(events=10_000_000))
        stop = False
        written = 0

        async def write() -> None:
            nonlocal written
            while not stop:
                tickets = []
                for _ in range(rng.randrange(1, 20)):
                    written += 1
                    tickets.append(session.append_nowait(written))
                await tickets[-1].wait()
                await asyncio.sleep(0)

        writer = asyncio.create_task(write())
        got: list[int] = []
        cursor = None
        for _ in range(60):
            async with session.follow(cursor) as events:
                wanted = rng.randrange(1, 100)
                async for event in events:
                    assert event.payload == event.id, f"seed {seed}"
                    got.append(event.id)
                    wanted -= 1
                    if not wanted:
                        break
                cursor = events.cursor
        stop = True
        await writer
        async with await log.resume("s", cursor) as replay:
            got += [event.id async for event in replay]
        assert got == list(range(1, written + 1)), f"seed {seed}"

    run(body)
