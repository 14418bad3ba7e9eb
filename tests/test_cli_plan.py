"""`replaylog plan`: the judgement of `replaylog._plan`, as an exit code, JSON and sentences."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from replaylog.cli._app import app


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
