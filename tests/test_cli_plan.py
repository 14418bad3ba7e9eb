"""`replaylog plan`: the arithmetic of depth against outage, and that it agrees with the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import replaylog
from replaylog import Retention
from replaylog.cli._app import app


def plan(*arguments: object) -> tuple[int, Any]:
    result = CliRunner().invoke(app, ["plan", "--json", *map(str, arguments)])
    return result.exit_code, json.loads(result.stdout)


def test_the_incident_was_not_covered() -> None:
    """89 events came while the client was away, and 64 were kept."""
    code, document = plan("--rate", 1, "--outage", 88, "--events", 64)
    (events,) = document["limits"]
    assert (code, document["ok"]) == (1, False)
    assert (events["has"], events["needs"]) == (64, 89)
    assert plan("--rate", 1, "--outage", 88, "--events", 256)[0] == 0


@pytest.mark.parametrize(
    ("rate", "outage_s", "burst"), [(1, 10, 0), (3, 7, 0), (0.5, 9, 2), (0, 5, 4), (2, 0, 0)]
)
def test_the_depth_that_it_asks_for_is_the_depth_that_it_takes(
    rate: float, outage_s: float, burst: int
) -> None:
    """Depth `needs` resumes after the outage; one less does not."""
    _, document = plan("--rate", rate, "--outage", outage_s, "--burst", burst, "--events", 1)
    needs = document["limits"][0]["needs"]
    for depth, ok in ((needs, True), (needs - 1, False)):
        if depth == 0:
            continue
        with replaylog.open(None, durability="memory", retention=Retention(events=depth)) as log:
            session = log.create("s")
            session.extend([("before", "message")] * 10)
            cursor = session.head
            # The worst closed interval of this length: one event at its very beginning, burst on top.
            session.extend([("missed", "message")] * (int(rate * outage_s) + 1 + burst))
            assert log.check("s", cursor).ok == ok
        assert (plan("--rate", rate, "--outage", outage_s, "--burst", burst, "--events", depth)[0] == 0) == ok


def test_every_limit_is_judged_on_its_own() -> None:
    code, document = plan(
        "--rate", 2, "--outage", 60, "--events", 200, "--bytes", 100_000, "--event-bytes", 1000, "--age", 60
    )
    assert code == 1
    assert {row["limit"]: row["ok"] for row in document["limits"]} == {
        "events": True,
        "bytes": False,
        "age": False,
    }


def test_an_idle_timeout_must_exceed_keepalive_and_stall() -> None:
    base = ("--rate", 1, "--outage", 1, "--events", 10, "--keepalive", 15, "--stall", 30)
    assert plan(*base, "--idle-timeout", 45)[0] == 1
    assert plan(*base, "--idle-timeout", 45.1)[0] == 0
    assert plan(*base)[1]["idle_timeout"]["needs_more_than_s"] == 45


def test_it_says_so_in_words() -> None:
    result = CliRunner().invoke(app, ["plan", "--rate", "1", "--outage", "88", "--events", "64"])
    assert "events: 64, the outage needs 89; covers 63 s: too little" in result.stdout
    assert result.stdout.endswith("not covered\n")
    assert CliRunner().invoke(app, ["plan", "--outage", "88"]).exit_code == 2
