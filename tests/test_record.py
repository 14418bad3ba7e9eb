"""record(): the producer outlives every connection, and no session is left open without one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import pytest

import replaylog
from replaylog import aio
from replaylog.asgi import EventStream, Result, end_orphans, record
from web import Call

PATH = "/any"


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(scenario)


def content(log: Any, name: str = "s") -> list[tuple[str, Any]]:
    with log.resume(name) as replay:
        return [(event.kind, event.payload) for event in replay]


async def tokens(count: int, gate: asyncio.Event | None = None) -> AsyncIterator[Any]:
    for n in range(count):
        if n == count // 2 and gate is not None:
            await gate.wait()
        yield f"token {n}"
        await asyncio.sleep(0)


async def with_result() -> AsyncIterator[Any]:
    yield {"pct": 50}, "progress"
    yield Result({"answer": 42})
    raise AssertionError("nothing is asked for after the result")


async def failing() -> AsyncIterator[Any]:
    yield "partial"
    raise RuntimeError("the password is hunter2")


def stepwise() -> Iterator[Any]:
    time.sleep(0.01)  # in a thread: the loop goes on
    yield "one"
    yield "two", "progress"
    return {"rows": 2}


async def coroutine() -> str:
    await asyncio.sleep(0)
    return "done"


@pytest.mark.parametrize(
    ("make", "expected", "reason"),
    [
        (lambda: tokens(2), [("message", "token 0"), ("message", "token 1")], "complete"),
        (with_result, [("progress", {"pct": 50}), ("result", {"answer": 42})], "complete"),
        (stepwise, [("message", "one"), ("progress", "two"), ("result", {"rows": 2})], "complete"),
        (coroutine, [("result", "done")], "complete"),
        (lambda: [], [], "complete"),
        (failing, [("message", "partial"), ("failed", {"error": "RuntimeError"})], "failed"),
    ],
    ids=["async generator", "result", "generator in a thread", "awaitable", "nothing", "error"],
)
def test_what_it_yields_is_appended_and_its_end_ends_the_session(
    log: Any, make: Any, expected: list[Any], reason: str
) -> None:
    async def scenario() -> None:
        session = log.create("s")
        recording = record(session, make())
        if reason == "failed":
            with pytest.raises(RuntimeError):
                await recording
        else:
            assert await recording == len(expected)
        assert recording.done
        assert session.state == "ended"
        assert content(log) == expected
        assert log.check("s", session.cursor).last_reason == reason

    run(scenario())


def test_closing_the_tab_does_not_stop_the_tool_and_any_number_may_come_back(memory_log: Any) -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        record(await aio.Log(memory_log).create("s"), tokens(40, gate))
        first = Call(EventStream("s", log=memory_log), "GET", PATH)
        await first.until("token 19")
        first.leave()
        await first.done()
        cursor = first.frames[-1].id
        gate.set()
        await asyncio.sleep(0.05)
        back = [
            Call(EventStream("s", log=memory_log), "GET", PATH, [("Last-Event-ID", cursor)]) for _ in range(5)
        ]
        for call in back:
            await call.done()
            shown = [frame.data for frame in call.frames if frame.event == "message"]
            assert shown == [f"token {n}" for n in range(20, 40)]
            assert call.frames[-1].event == "replay-end"

    run(scenario())


def test_who_awaits_it_may_be_cancelled_without_stopping_it(memory_log: Any) -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        recording = record(memory_log.create("s"), tokens(4, gate))
        waiting = asyncio.ensure_future(recording)  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        waiting.cancel()
        gate.set()
        assert await recording == 4

    run(scenario())


def test_cancel_ends_the_session_and_closes_the_producer(memory_log: Any) -> None:
    closed: list[bool] = []

    async def producer() -> AsyncIterator[Any]:
        try:
            yield "one"
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    async def scenario() -> None:
        session = memory_log.create("s")
        recording = record(session, producer())
        reader = Call(EventStream(session), "GET", PATH)
        await reader.until("one")
        recording.cancel()
        await reader.done()
        assert reader.frames[-1].event == "replay-end"
        assert reader.frames[-1].document["reason"] == "cancelled"
        assert closed == [True]

    run(scenario())


def test_a_loop_that_closes_ends_what_it_ran(log: Any) -> None:
    """Shutdown: asyncio.run cancels the tasks; no reader of the next process waits for this producer."""

    async def scenario() -> None:
        record(log.create("s"), tokens(10, asyncio.Event()))
        await asyncio.sleep(0.05)

    run(scenario())
    log.flush()
    assert log.session("s").state == "ended"
    assert log.check("s", log.session("s").cursor).last_reason == "cancelled"


def test_a_session_that_ends_under_it_stops_the_producer(memory_log: Any) -> None:
    async def scenario() -> None:
        session = memory_log.create("s")
        gate = asyncio.Event()
        recording = record(session, tokens(10, gate))
        await asyncio.sleep(0.05)
        session.end("by another")
        gate.set()
        with pytest.raises(replaylog.SessionEnded):
            await recording
        assert content(memory_log)[-1] == ("message", "by another")

    run(scenario())


def test_what_is_no_payload_ends_the_session_as_failed(memory_log: Any) -> None:
    async def scenario() -> None:
        session = memory_log.create("s")
        with pytest.raises(TypeError):
            await record(session, iter([object()]))
        assert content(memory_log) == [("failed", {"error": "TypeError"})]

    run(scenario())


def test_describe_decides_what_readers_see_of_an_error(memory_log: Any) -> None:
    async def scenario() -> None:
        session = memory_log.create("s")
        with pytest.raises(RuntimeError):
            await record(session, failing(), describe=lambda error: f"sorry: {type(error).__name__}")
        assert content(memory_log)[-1] == ("failed", "sorry: RuntimeError")

    run(scenario())


def test_after_a_kill_the_next_start_ends_the_orphans(opener: Any) -> None:
    log = opener("sync")
    log.create("tool/1").append("half")
    log.create("tool/2").end("whole")
    log.create("chat/1")
    log.close()
    log = opener("sync")

    async def scenario() -> None:
        assert await end_orphans(log, "tool/") == ["tool/1"]
        reader = await Call(EventStream("tool/1", log=log), "GET", PATH).done()
        assert [frame.event for frame in reader.frames] == ["replay", "message", "replay-end"]
        assert reader.frames[-1].document["reason"] == "producer-lost"

    run(scenario())
    assert log.session("chat/1").state == "open"
