"""The async face of connect(): the same stream, and a loop that may stand still."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from fake_sse import Exchange, FakeServer, event, serving
from replaylog.client import Backoff, ClientReason, Stream, StreamResumptionError, connect


def reading(server: FakeServer, **settings: Any) -> Stream:
    backoff = Backoff(initial_s=0.005, max_s=0.02)
    return connect(server.url, cursor=41, **{"backoff": backoff, "idle_timeout_s": 5.0, **settings})


def three(exchange: Exchange) -> None:
    exchange.stream()
    exchange.events(42, 44)


def gone(exchange: Exchange) -> None:
    exchange.answer(204)


def idle(exchange: Exchange) -> None:
    exchange.stream(replay_floor=1, replay_head=41)
    exchange.wait_for_close()


async def drain(stream: Stream) -> list[int | None]:
    return [event.id async for event in stream]


def test_events_come_through_drops_to_the_end() -> None:
    async def main(server: FakeServer) -> None:
        async with reading(server) as stream:
            assert await drain(stream) == [42, 43, 44]
            assert stream.cursor == "44"
            with pytest.raises(EOFError):
                await stream.areceive()

    with serving(three, gone) as server:
        asyncio.run(main(server))
    assert server.cursors == ["41", "44"]


def test_a_gap_is_raised() -> None:
    def skipping(exchange: Exchange) -> None:
        exchange.stream()
        exchange.events(130, 131)

    async def main(server: FakeServer) -> None:
        async with reading(server) as stream:
            with pytest.raises(StreamResumptionError) as refused:
                await drain(stream)
            assert refused.value.reason is ClientReason.GAP

    with serving(skipping) as server:
        asyncio.run(main(server))


def test_a_loop_that_sleeps_for_three_idle_timeouts_is_not_a_silent_server() -> None:
    idle_timeout_s, sent_s = 0.5, []

    def lively(exchange: Exchange) -> None:
        exchange.stream(replay_floor=1, replay_head=1000)
        for n in range(42, 142):
            before_s = time.monotonic()
            exchange.send(event(n, "x" * 20_000))
            sent_s.append(time.monotonic() - before_s)
            time.sleep(0.015)
        exchange.wait_for_close()

    async def main(server: FakeServer) -> None:
        async with reading(server, idle_timeout_s=idle_timeout_s) as stream:
            assert (await anext(stream)).id == 42
            time.sleep(3 * idle_timeout_s)
            got = [(await anext(stream)).id for _ in range(99)]
            assert got == list(range(43, 142))

    with serving(lively, gone) as server:
        asyncio.run(main(server))
    assert len(server.requests) == 1
    assert max(sent_s) < idle_timeout_s


def test_cancelling_an_await_loses_nothing() -> None:
    def slow(exchange: Exchange) -> None:
        exchange.stream(replay_floor=1, replay_head=1000)
        for n in range(42, 62):
            exchange.send(event(n))
            time.sleep(0.01)

    async def main(server: FakeServer) -> None:
        got: list[int | None] = []
        async with reading(server) as stream:
            while len(got) < 20:
                try:
                    async with asyncio.timeout(0.003):
                        got.append((await stream.areceive()).id)
                except TimeoutError:
                    continue
        assert got == list(range(42, 62))

    with serving(slow, gone) as server:
        asyncio.run(main(server))


def test_cancelling_the_reading_task_closes_the_connection_promptly() -> None:
    async def main(server: FakeServer) -> None:
        async def read() -> None:
            async with reading(server, idle_timeout_s=60.0) as stream:
                await drain(stream)

        task = asyncio.create_task(read())
        await asyncio.sleep(0.1)
        began_s = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - began_s < 1.5

    with serving(idle) as server:
        asyncio.run(main(server))


def test_aclose_ends_another_tasks_iteration() -> None:
    async def main(server: FakeServer) -> None:
        stream = reading(server)
        task = asyncio.create_task(drain(stream))
        await asyncio.sleep(0.05)
        await stream.aclose()
        assert await asyncio.wait_for(task, 5) == []

    with serving(idle) as server:
        asyncio.run(main(server))
