"""`replaylog plan`: the judgement of `replaylog._plan`, as an exit code, JSON and sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from replaylog import Retention
from replaylog.cli._app import app
from support import FakeClock


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def document(*arguments: object) -> Any:
    return json.loads(run("--json", *arguments).stdout)


def test_the_incident_was_not_covered() -> None:
    """One event a second, 89 seconds away: 64 are too few, 256 are not."""
    result = run("--events", 64, "--interval", 1, "--outage", 89)
    assert result.exit_code == 1
    assert "retain 90 events or more" in result.stdout
    assert run("--events", 256, "--interval", 1, "--outage", 89).exit_code == 0


def test_the_depth_that_it_asks_for_is_the_least_that_will_do() -> None:
    needed = document("--events", 1, "--rate", 3, "--outage", 100)["depth_needed"]
    assert document("--events", needed, "--rate", 3, "--outage", 100)["ok"]
    assert not document("--events", needed - 1, "--rate", 3, "--outage", 100)["ok"]


def test_an_idle_timeout_must_exceed_keepalive_and_stall() -> None:
    assert run("--keepalive", 15, "--stall", 30, "--idle-timeout", 45).exit_code == 1
    both = document(
        "--keepalive", 15, "--stall", 30, "--idle-timeout", 46, "--events", 9, "--rate", 1, "--outage", 10
    )
    assert {row["name"]: row["holds"] for row in both["conditions"]} == {
        "window": False,
        "idle timeout": True,
    }


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        ((), "--events"),
        (("--events", 64), "--interval"),
        (("--events", 64, "--outage", 10), "--interval"),
        (("--events", -1, "--rate", 1, "--outage", 10), "--events"),
        (("--events", 64, "--rate", 0, "--outage", 10), "--rate"),
        (("--events", 64, "--rate", 1, "--interval", 1, "--outage", 10), "--interval"),
    ],
)
def test_what_cannot_be_judged_is_a_usage_error_that_names_the_flag(arguments: Any, flag: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert flag in result.stderr


def test_a_live_session_is_asked_at_its_own_rate(opener: Any, clock: FakeClock, tmp_path: Path) -> None:
    log = opener("sync", clock=clock)
    session = log.create("s", retention=Retention(events=64))
    for n in range(100):
        session.append(f"event {n}")
        clock.advance(0.05)
    log.close()
    result = run(tmp_path / "log", "s", "--outage", 90)
    assert result.exit_code == 1
    assert "64 events at one per 0.05 s cover 3.2 s" in result.stdout
    assert document(tmp_path / "log", "s", "--outage", 90)["covers_s"] == pytest.approx(3.2)
    assert run(tmp_path / "log", "s", "--outage", 3).exit_code == 0
    assert run(tmp_path / "log", "s", "--outage", 90, "--events", 2000).exit_code == 0
    assert run(tmp_path / "log", "s").exit_code == 2
    assert run(tmp_path / "log", "s", "--outage", 3, "--rate", 5).exit_code == 2
    assert run(tmp_path / "log", "never", "--outage", 3).exit_code == 1
    assert run(tmp_path / "nowhere", "s", "--outage", 3).exit_code == 3
