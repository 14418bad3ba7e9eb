"""conformance/reported.yaml over HTTP: the cases that broke systems which people run today, by status.

Numbers come from the data file. The engine's side of each case is in test_reported_cases.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import replaylog
from replaylog import Retention
from replaylog.asgi import App
from web import Call, ask

CASES = {
    case["id"]: case
    for case in yaml.safe_load((Path(__file__).parent / "conformance" / "reported.yaml").read_text())
}
PATH = "/sessions/s/events"

Scenario = Callable[[Any, Any], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def case(id: str) -> Callable[[Scenario], Scenario]:
    def register(scenario: Scenario) -> Scenario:
        SCENARIOS[id] = scenario
        return scenario

    return register


def fill(session: Any, first: int, last: int) -> None:
    session.extend([(f"event {n}", "message") for n in range(first, last + 1)])


async def resume(log: Any, cursor: str, method: str = "GET") -> Call:
    return await ask(App(log), method, PATH, [("Last-Event-ID", cursor)])


async def until_caught_up(log: Any, cursor: str) -> Call:
    call = Call(App(log), "GET", PATH, [("Last-Event-ID", cursor)])
    await call.until("replay-caught-up")
    call.leave()
    return await call.done()


def ids(call: Call) -> list[int]:
    return [frame.number for frame in call.frames if frame.event == "message"]


def token(log: Any, id: int) -> str:
    with log.resume("s", id) as replay:
        return replay.verdict.from_token


@case("incident-cursor-skipping-reconnect")
async def _(log: Any, expect: Any) -> None:
    fill(log.create("s", retention=Retention(events=64)), 1, 130)
    answer = await resume(log, "41")
    problem = answer.document
    assert answer.status == expect["http"]
    assert (problem["floor"], problem["head"], problem["lost"]) == (
        expect["floor"],
        expect["head"],
        expect["lost"],
    )
    assert b"data:" not in answer.body


@case("incident-implicit-recreation")
async def _(log: Any, expect: Any) -> None:
    for _ in range(3):
        assert (await resume(log, "41")).status == expect["http"]
    assert log.sessions() == []


@case("reaped-is-not-unknown")
async def _(log: Any, expect: Any) -> None:
    fill(log.create("s"), 1, 5)
    log.reap("s")
    answer = await resume(log, "3")
    assert (answer.status, answer.headers["replay-head"]) == (expect["http"], str(expect["last_id"]))


@case("floor-off-by-one")
async def _(log: Any, expect: Any) -> None:
    fill(log.create("s", retention=Retention(events=3)), 1, 5)
    at_the_edge = await until_caught_up(log, "2")
    assert ids(at_the_edge)[0] == expect[0]["first"]
    assert (await resume(log, "1")).document["lost"] == expect[1]["lost"]


@case("at-head-after-everything-aged-out")
async def _(log: Any, expect: Any) -> None:
    session = log.create("s")
    fill(session, 1, 10)
    session.trim(11)
    at_head = await resume(log, "10", "HEAD")
    assert (at_head.status, at_head.headers["replay-floor"]) == (200, str(expect[0]["floor"]))
    assert (await resume(log, "9")).document["lost"] == expect[1]["lost"]


@case("ahead-of-head-after-restart")
async def _(log: Any, expect: Any) -> None:
    log.create("s")
    answer = await resume(log, "500")
    assert (answer.status, answer.headers["replay-verdict"]) == (expect["http"], expect["reason"])


@case("recreated-session-old-cursor")
async def _(log: Any, expect: Any) -> None:
    fill(log.create("s"), 1, 2)
    old = token(log, 2)
    log.reap("s")
    session = log.create("s")
    fill(session, 1, 1)
    assert (await resume(log, old)).headers["replay-verdict"] == expect[0]["reason"]
    fill(session, 2, 3)
    assert (await resume(log, old)).headers["replay-verdict"] == expect[1]["reason"]


@case("epochless-token")
async def _(log: Any, expect: Any) -> None:
    fill(log.create("s"), 1, 50)
    log.create("other").extend([("x", "message")] * 50)
    with log.resume("other", 41) as replay:
        foreign = replay.verdict.from_token
    for cursor in (".41.", "41.", ".41", f".41.{foreign[-8:]}", f"{0:016x}.41.{0:08x}", foreign):
        answer = await resume(log, cursor)
        assert answer.status in (400, 409)
        assert answer.headers["replay-verdict"] in ("malformed", "forked")


@case("unknown-cursor-never-moves-the-reader")
async def _(log: Any, expect: Any) -> None:
    session = log.create("s")
    fill(session, 1, 50)
    for id in (0, 10, 50, 51):
        answer = await resume(log, f"{session.epoch:016x}.{id}.deadbeef")
        assert (answer.status, answer.headers["replay-verdict"]) == (409, expect["reason"])
        assert b"event " not in answer.body


@case("no-event-yet")
async def _(log: Any, expect: Any) -> None:
    session = log.create("s")
    first = (await until_caught_up(log, "")).frames[0]
    assert first.number == 0
    session.append("one")
    assert ids(await until_caught_up(log, first.id)) == [1]


@case("end-is-an-event")
async def _(log: Any, expect: Any) -> None:
    session = log.create("s")
    fill(session, 1, 3)
    session.end()
    two, three = token(log, 2), token(log, 3)
    assert [frame.event for frame in (await resume(log, two)).frames] == ["replay", "message", "replay-end"]
    assert [frame.event for frame in (await resume(log, three)).frames] == ["replay", "replay-end"]
    assert (await resume(log, f"{three}.end")).status == 204


def test_every_scenario_is_a_reported_case() -> None:
    assert set(SCENARIOS) <= set(CASES)


@pytest.mark.parametrize("id", SCENARIOS)
def test_a_reported_case_over_http(id: str) -> None:
    with replaylog.open(None, durability="memory") as log:
        asyncio.run(SCENARIOS[id](log, CASES[id]["expect"]))
