"""`replaylog demo`: it says what was seen, and is not content with less."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

from replaylog.cli import demo
from replaylog.cli._demo import Seen


def test_the_demo_sees_the_incident_caught_three_times() -> None:
    began = time.monotonic()
    command = [sys.executable, "-m", "replaylog.cli", "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 15
    report = json.loads(done.stdout)
    assert report["ok"]
    refused, replayed, restarted = report["acts"]
    assert (refused["status"], refused["floor"], refused["lost"]) == (409, 67, 25)
    assert (refused["replayed"], refused["live"]) == ([], [])
    assert (replayed["status"], replayed["proof"]) == (200, "chain")
    assert replayed["replayed"] == restarted["replayed"] == list(range(42, 131))
    assert restarted["killed"]
    assert restarted["live"] == list(range(131, 136))


def test_it_draws_a_timeline() -> None:
    command = [sys.executable, "-m", "replaylog.cli", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    for words in (
        "409 below-floor",
        "42..66 (25) are gone",
        "replayed 42..130",
        "SIGKILL at 130",
        "live 131..135",
    ):
        assert words in done.stdout


def test_each_act_holds_only_for_what_its_title_says() -> None:
    whole = list(range(42, 131))
    seen = {
        "refused": Seen(64, False, 409, "below-floor", "chain", 67, 130, 25),
        "replayed": Seen(256, False, 200, "resumable", "chain", 1, 130, None, whole),
        "restarted": Seen(256, True, 200, "resumable", "chain", 1, 130, None, whole, list(range(131, 136))),
    }
    refused, replayed, restarted = (act.holds for act in demo.ACTS)
    assert refused(seen["refused"])
    assert replayed(seen["replayed"])
    assert restarted(seen["restarted"])
    for wrong in (
        replace(seen["refused"], status=200),
        replace(seen["refused"], lost=24),
        replace(seen["refused"], floor=66),
        replace(seen["refused"], verdict="forked"),
        seen["replayed"],
    ):
        assert not refused(wrong)
    for wrong in (
        replace(seen["restarted"], replayed=whole[1:]),
        replace(seen["restarted"], replayed=[*whole[:5], *whole[4:]]),
        replace(seen["restarted"], proof="window"),
        replace(seen["restarted"], live=[131, 133]),
        seen["replayed"],
        seen["refused"],
    ):
        assert not restarted(wrong)
    assert not replayed(replace(seen["replayed"], replayed=[*whole, 131]))
