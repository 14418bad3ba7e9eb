"""The incident with the real server and the real client of the SDK that is installed: cut at event 41, the
server goes on to 130. And the seam: readers that drop and resume lose nothing and get nothing twice.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp.server.streamable_http", reason="NO MCP SDK INSTALLED: the MCP adapter is not tested here")

import mcp_kit as kit
import replaylog
import replaylog.mcp
from replaylog import Retention


async def cut_at_41(url: str, ran: kit.Ran) -> tuple[str, str, list[int], float]:
    """(outcome, text, progress seen, seconds from the cut to the outcome) of a call through the proxy."""
    seen: list[int] = []
    cut_s = 0.0

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append(int(done))

    with kit.Proxy(url) as proxy:
        async with kit.client(proxy.url) as session:
            proxy.cut_at = b'"progress":41'
            proxy.on_cut = proxy.hold

            async def released() -> None:
                nonlocal cut_s
                await asyncio.to_thread(kit.until, lambda: ran.finished, 20)
                cut_s = time.monotonic()
                proxy.release()

            waiting = asyncio.create_task(released())
            try:
                async with asyncio.timeout(20):
                    call = session.call_tool("count", {"to": 130, "every_s": 0.005}, progress_callback=progress)
                    result: Any = await call
                    outcome, text = "result", kit.text_of(result)
            except TimeoutError:
                outcome, text = "never", ""
            except Exception as error:  # noqa: BLE001 - the SDK's own error type has a name per version
                outcome, text = "error", str(error)
            await waiting
            assert proxy.cuts == 1
            return outcome, text, seen, time.monotonic() - cut_s


def run_incident(window: int) -> tuple[str, str, list[int], float]:
    log = replaylog.open(None, durability="memory")
    server, ran = kit.make_server()
    limits = replaylog.mcp.Limits(retention=Retention(events=window))
    with log, kit.serve(replaylog.mcp.resumable(server, log, limits=limits)) as url:
        return asyncio.run(cut_at_41(url, ran))


def test_a_window_that_covers_the_outage_gives_the_result_and_every_event() -> None:
    outcome, text, seen, seconds = run_incident(256)
    assert (outcome, text) == ("result", "counted to 130")
    assert seen == list(range(1, 131))
    assert seconds < 5


def test_a_window_that_does_not_fails_the_call_at_its_first_reconnect_and_names_the_loss() -> None:
    outcome, text, seen, seconds = run_incident(64)
    assert outcome == "error"
    assert "events 42..67" in text
    assert seen == list(range(1, 42))
    assert seconds < 5


def test_sixty_reconnects_at_three_hundred_events_a_second_lose_and_double_nothing(tmp_path: Path) -> None:
    log = replaylog.open(tmp_path / "log")
    server, ran = kit.make_server()
    with log, kit.serve(replaylog.mcp.resumable(server, log)) as url:
        raw = kit.Raw(url).initialize()
        reconnects, got = 0, []
        with raw.call(1, "count", to=3600, every_s=0.0028) as events:
            last = take(events, got, 0.05)
        while reconnects < 60:
            with raw.get(last) as events:
                assert events.response.status_code == 200
                last = take(events, got, 0.12) or last
            reconnects += 1
        assert not ran.finished, "the server must still be counting while readers come and go"
        with raw.get(last) as events:
            rest = list(events)
        got += kit.progress_of(rest)
        assert got == list(range(1, 3601))
        assert rest[-1]["json"]["result"]["content"][0]["text"] == "counted to 3600"


def take(events: kit.Sse, got: list[int], seconds: float) -> str:
    """Read for a while, then drop the connection; the last event id."""
    last, deadline = "", time.monotonic() + seconds
    for event in events:
        last = event.get("id", last)
        got += kit.progress_of([event])
        if time.monotonic() > deadline:
            break
    return last
