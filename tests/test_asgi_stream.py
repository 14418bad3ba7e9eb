"""Open streams: what comes in which order, how silence looks, and every way that a stream ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

import replaylog
from replaylog import Retention
from replaylog.asgi import App
from web import Call, frames

PATH = "/sessions/s/events"


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(scenario)


@pytest.fixture
def session(memory_log: Any) -> Any:
    return memory_log.create("s")


def fill(session: Any, count: int) -> None:
    session.extend([(f"event {n}", "message") for n in range(session.head + 1, session.head + count + 1)])


def names(call: Call) -> list[str]:
    return ["comment" if frame.comment else frame.event for frame in call.frames]


def test_the_order_is_replay_backlog_caught_up_live(memory_log: Any, session: Any) -> None:
    fill(session, 3)

    async def scenario() -> None:
        call = Call(App(memory_log), "GET", PATH, [("Last-Event-ID", "1")])
        await call.until("replay-caught-up")
        session.append("live", kind="progress")
        await call.until("live")
        call.leave()
        await call.done()
        assert call.headers["content-type"] == "text/event-stream"
        assert names(call) == ["replay", "message", "message", "replay-caught-up", "progress"]
        first, second, third, caught, live = call.frames
        assert first.document == {
            "verdict": "resumable",
            "from": 1,
            "floor": 1,
            "head": 3,
            "epoch": f"{session.epoch:016x}",
            "proof": "window",
        }
        assert [frame.number for frame in call.frames] == [1, 2, 3, 3, 4]
        assert caught.id == third.id
        assert caught.document == {"head": 3}
        assert (second.data, live.data) == ("event 2", "live")

    run(scenario())


def test_an_integer_cursor_is_upgraded_by_the_first_frame(memory_log: Any, session: Any) -> None:
    fill(session, 5)

    async def scenario() -> None:
        call = Call(App(memory_log), "GET", PATH, [("Last-Event-ID", "5")])
        await call.until("replay-caught-up")
        call.leave()
        await call.done()
        assert call.frames[0].id == session.cursor
        assert memory_log.check("s", call.frames[0].id).proof == "chain"

    run(scenario())


def test_a_reader_of_an_empty_session_gets_a_cursor(memory_log: Any, session: Any) -> None:
    """It drops before the first event, one is appended, it comes back: that one is next."""

    async def scenario() -> None:
        app = App(memory_log)
        call = Call(app, "GET", PATH)
        await call.until("replay-caught-up")
        call.leave()
        await call.done()
        token = call.frames[0].id
        assert token.split(".")[1] == "0"
        session.append("first")
        again = Call(app, "GET", PATH, [("Last-Event-ID", token)])
        await again.until("data: first")
        again.leave()
        await again.done()
        assert again.headers["replay-proof"] == "chain"
        assert [frame.number for frame in again.frames] == [0, 1, 1]

    run(scenario())


@pytest.mark.parametrize(("origin", "first"), [("start", 1), ("floor", 1), ("head", 6)])
def test_an_explicit_origin_is_named_by_the_first_frame(
    memory_log: Any, session: Any, origin: str, first: int
) -> None:
    fill(session, 5)

    async def scenario() -> None:
        call = Call(App(memory_log), "GET", f"{PATH}?from={origin}")
        await call.until("replay-caught-up")
        session.append("six")
        await call.until("data: six")
        call.leave()
        await call.done()
        assert call.frames[0].document["from"] == first - 1
        ids = [frame.number for frame in call.frames if frame.event == "message"]
        assert ids == list(range(first, 7))

    run(scenario())


def test_a_short_replay_is_one_write(memory_log: Any, session: Any) -> None:
    fill(session, 64)

    async def scenario() -> None:
        call = Call(App(memory_log), "GET", PATH)
        await call.until("replay")
        assert b"replay-caught-up" in call.body
        call.leave()
        await call.done()

    run(scenario())


def test_a_long_backlog_comes_whole_and_in_order(memory_log: Any, session: Any) -> None:
    for _ in range(20):
        session.extend([("x" * 200, "message")] * 1000)

    async def scenario() -> None:
        call = Call(App(memory_log, chunk_bytes=64 * 1024), "GET", PATH)
        await call.until("replay-caught-up", timeout_s=20)
        call.leave()
        await call.done()
        ids = [frame.number for frame in call.frames if frame.event == "message"]
        assert ids == list(range(1, 20_001))
        assert names(call).count("replay-caught-up") == 1

    run(scenario())


def test_silence_is_filled_with_comments_that_name_the_head(memory_log: Any, session: Any) -> None:
    fill(session, 2)

    async def scenario() -> None:
        call = Call(App(memory_log, keepalive_s=0.05), "GET", PATH)
        await call.until(": head=2\n\n: head=2")
        session.append("three")
        await call.until(": head=3")
        call.leave()
        await call.done()
        assert call.headers["replay-keepalive"] == "0.05"

    run(scenario())


def test_the_end_is_a_frame_with_the_end_mark(memory_log: Any, session: Any) -> None:
    async def scenario() -> None:
        call = Call(App(memory_log), "GET", PATH)
        await call.until("replay-caught-up")
        session.end("bye", kind="result", reason="complete")
        await call.done()
        assert call.complete
        assert names(call) == ["replay", "replay-caught-up", "result", "replay-end"]
        assert call.frames[-1].id == session.cursor + ".end"
        assert call.frames[-1].document["head"] == 1
        again = await Call(App(memory_log), "GET", PATH, [("Last-Event-ID", call.frames[-1].id)]).done()
        assert again.status == 204

    run(scenario())


def test_a_reader_that_fell_off_the_window_is_told_and_keeps_its_cursor() -> None:
    log = replaylog.open(
        None, durability="memory", retention=Retention(events=10), replay_grace_s=0.05, memory_bytes=1 << 18
    )
    session = log.create("s")
    session.extend([("a" * 100, "message")] * 5)

    async def scenario() -> None:
        call = Call(App(log), "GET", PATH)
        await call.until("replay-caught-up")
        call.writable.clear()  # a full socket: the next write blocks
        session.append("blocks")
        for _ in range(60):
            await asyncio.sleep(0.01)
            session.extend([("b" * 1000, "message")] * 10)
        call.writable.set()
        await call.done()
        last = call.frames[-1]
        assert last.event == "replay-overrun"
        problem = last.document
        assert (problem["verdict"], problem["status"]) == ("below-floor", 409)
        events = [frame.number for frame in call.frames if frame.event == "message"]
        assert events == list(range(1, len(events) + 1)), "never a skip"
        assert last.number == events[-1] == problem["cursor"]
        again = await Call(App(log), "GET", PATH, [("Last-Event-ID", last.id)]).done()
        assert again.status == 409

    run(scenario())
    log.close()


def test_a_session_reaped_under_its_reader_is_told_as_reaped(memory_log: Any, session: Any) -> None:
    fill(session, 3)

    async def scenario() -> None:
        call = Call(App(memory_log), "GET", PATH)
        await call.until("replay-caught-up")
        memory_log.reap("s", reason="idle")
        await call.done()
        assert call.frames[-1].event == "replay-overrun"
        assert call.frames[-1].document["verdict"] == "reaped"
        assert call.complete

    run(scenario())


def test_a_reader_that_leaves_ends_its_stream_at_once(memory_log: Any, session: Any) -> None:
    async def scenario() -> None:
        app = App(memory_log, keepalive_s=60)
        calls = [Call(app, "GET", PATH) for _ in range(10)]
        for call in calls:
            await call.until("replay-caught-up")
        assert app.streams == 10
        for call in calls:
            call.leave()
            await call.done(timeout_s=1)
        assert app.streams == 0

    run(scenario())


# --- shutdown and stall ---------------------------------------------------------------------------


def test_drain_ends_every_stream_with_a_retry(memory_log: Any, session: Any) -> None:
    fill(session, 3)

    async def scenario() -> None:
        app = App(memory_log, keepalive_s=60, retry_ms=1234)
        calls = [Call(app, "GET", PATH) for _ in range(50)]
        for call in calls:
            await call.until("replay-caught-up")
        await app.drain()
        for call in calls:
            await call.done(timeout_s=1)
            assert call.complete
            assert call.frames[-1].retry == "1234"
        late = await Call(app, "GET", PATH).done()
        assert late.status == 503
        assert late.headers["retry-after"]
        assert (await Call(app, "GET", "/health").done()).status == 503

    run(scenario())


def test_a_log_closed_under_its_readers_ends_their_streams(memory_log: Any, session: Any) -> None:
    async def scenario() -> None:
        app = App(memory_log, keepalive_s=0.2)
        call = Call(app, "GET", PATH)
        await call.until("replay-caught-up")
        memory_log.close()
        await call.done()
        assert call.frames[-1].retry
        assert (await Call(app, "GET", PATH).done()).status == 503

    run(scenario())


def test_drain_does_not_wait_for_a_reader_that_does_not_read(memory_log: Any, session: Any) -> None:
    async def scenario() -> None:
        cut: list[Any] = []
        app = App(memory_log, abort=cut.append)
        call = Call(app, "GET", PATH)
        await call.until("replay-caught-up")
        call.writable.clear()
        session.append("blocks")
        await asyncio.sleep(0.05)
        async with asyncio.timeout(2):
            await app.drain(timeout_s=0.2)
        await call.done()
        assert cut == [call.scope]
        assert app.streams == 0

    run(scenario())


def test_a_write_that_stalls_too_long_ends_the_stream(memory_log: Any, session: Any) -> None:
    async def scenario() -> None:
        cut: list[Any] = []
        app = App(memory_log, abort=cut.append, stall_max_s=0.3, stall_enforced=True, keepalive_s=60)
        stalled, healthy = Call(app, "GET", PATH), Call(app, "GET", PATH)
        await stalled.until("replay-caught-up")
        await healthy.until("replay-caught-up")
        stalled.writable.clear()
        clock = asyncio.get_running_loop().time
        began = clock()
        session.append("blocks one of them")
        await stalled.done(timeout_s=2)
        assert 0.29 <= clock() - began < 1
        assert cut == [stalled.scope]
        session.append("still here")
        await healthy.until("still here")
        healthy.leave()
        await healthy.done()
        assert stalled.headers["replay-stall-max"] == "0.3"

    run(scenario())


def test_a_reader_that_reads_again_in_time_misses_nothing(memory_log: Any, session: Any) -> None:
    async def scenario() -> None:
        app = App(memory_log, stall_max_s=1, keepalive_s=60)
        call = Call(app, "GET", PATH)
        await call.until("replay-caught-up")
        for round in range(3):
            call.writable.clear()
            fill(session, 10)
            await asyncio.sleep(0.3)
            call.writable.set()
            await call.until(f"event {10 * (round + 1)}\n")
        call.leave()
        await call.done()
        ids = [frame.number for frame in call.frames if frame.event == "message"]
        assert ids == list(range(1, 31))

    run(scenario())


def test_the_number_of_streams_is_bounded(memory_log: Any, session: Any) -> None:
    async def scenario() -> None:
        app = App(memory_log, streams_max=2)
        calls = [Call(app, "GET", PATH) for _ in range(2)]
        for call in calls:
            await call.until("replay-caught-up")
        third = await Call(app, "GET", PATH).done()
        assert (third.status, third.headers["retry-after"]) == (503, "1")
        assert third.headers["cache-control"] == "no-store, no-transform"
        assert third.headers["replay-verdict"] == "at-head"
        browser = await Call(app, "GET", f"{PATH}?refuse=event").done()
        assert (browser.status, browser.body) == (200, b"retry: 1000\n\n"), "503 would end it for good"
        calls[0].leave()
        await calls[0].done()
        fourth = Call(app, "GET", PATH)
        await fourth.until("replay-caught-up")
        for call in (calls[1], fourth):
            call.leave()
            await call.done()

    run(scenario())


def test_a_follower_under_a_writer_that_never_pauses_loses_nothing_over_60_drops(
    memory_log: Any, session: Any
) -> None:
    """The seam between history and live, crossed 60 times at 60 different places."""

    async def scenario() -> None:
        app = App(memory_log)
        writing = True

        async def write() -> None:
            while writing:
                fill(session, 7)
                await asyncio.sleep(0)

        writer = asyncio.create_task(write())
        got: list[int] = []
        cursor = "0"
        for drop in range(60):
            call = Call(app, "GET", PATH, [("Last-Event-ID", cursor)])
            while len([n for n in _ids(call) if n]) < 5 + drop:
                await asyncio.sleep(0)
            call.leave()
            await call.done()
            ids = _ids(call)
            got += ids
            cursor = call.frames[-1].id
            assert int(cursor.split(".")[1]) == got[-1]
        writing = False
        await writer
        assert got == list(range(1, len(got) + 1))

    run(scenario())


def _ids(call: Call) -> list[int]:
    text = call.body[: call.body.rfind(b"\n\n") + 2]
    return [frame.number for frame in frames(text) if frame.event == "message" and frame.id]


def test_the_app_takes_an_async_log_too(memory_log: Any, session: Any) -> None:
    from replaylog import aio

    async def scenario() -> None:
        call = Call(App(aio.Log(memory_log)), "GET", PATH)
        await call.until("replay-caught-up")
        call.leave()
        await call.done()

    run(scenario())


# --- a server that says when a send would be done at once ------------------------------------------


def test_written_at_once_or_by_the_task_the_order_is_the_same(memory_log: Any, session: Any) -> None:
    """The feed writes for who is parked; a socket that fills up and empties again hands over both ways."""

    async def scenario() -> None:
        open_now = {"": True}
        app = App(memory_log, writable=lambda send: open_now[""], keepalive_s=0.02)
        call = Call(app, "GET", PATH)
        await call.until("replay-caught-up")
        for round in range(200):
            open_now[""] = round % 3 != 0
            if round % 7 == 0:
                open_now[""] = False
                call.writable.clear()
            fill(session, 1 + round % 4)
            await asyncio.sleep(0.001 * (round % 3))
            call.writable.set()
        session.end()
        await call.done()
        assert _ids(call) == list(range(1, session.head + 1))
        assert call.frames[-1].event == "replay-end"

    run(scenario())


def test_a_connection_that_blocks_or_fails_stops_itself_and_no_other(memory_log: Any, session: Any) -> None:
    async def scenario() -> None:
        cut: list[Any] = []
        app = App(memory_log, writable=lambda send: True, abort=cut.append, keepalive_s=60)
        blocks, fails, healthy = (Call(app, "GET", PATH) for _ in range(3))
        for call in (blocks, fails, healthy):
            await call.until("replay-caught-up")
        blocks.writable.clear()

        async def broken() -> bool:
            raise OSError("gone")

        fails.writable.wait = broken  # type: ignore[method-assign,assignment]
        session.append("one")
        await healthy.until("data: one")
        await blocks.done()
        await fails.done()
        assert cut == [blocks.scope]
        session.append("two")
        await healthy.until("data: two")
        assert app.streams == 1
        healthy.leave()
        await healthy.done()

    run(scenario())
