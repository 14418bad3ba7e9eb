"""Clients that other people wrote: httpx-sse, curl, and two npm packages, against `replaylog serve`.

They know nothing of this library. What they must find: every event once and in order over a drop, a
refusal that they can tell from a stream, and an end. The npm packages are installed by `npm ci` in
tests/foreign; where something is missing its tests are skipped, and say so.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy import Proxy
from web import Serving, frames

FOREIGN = Path(__file__).parent / "foreign"
SEED = 42

needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="NO CURL: install Debian's curl")
needs_node = pytest.mark.skipif(
    not (shutil.which("node") and (FOREIGN / "node_modules" / "eventsource").exists()),
    reason="NO NODE CLIENTS: run `npm ci` in tests/foreign",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with Serving(None, "--events", "1000") as serving:
        serving.ask("PUT", "/sessions/old", b'{"retention": {"events": 64}}')
        serving.extend("old", [(f"event {n}", "message") for n in range(1, 131)])
        serving.ask("PUT", "/sessions/ended")
        serving.extend("ended", [(f"event {n}", "progress") for n in range(1, 101)])
        serving.ask("POST", "/sessions/ended/end?kind=message", b"bye", {"Content-Type": "text/plain"})
        yield serving


@pytest.fixture
def live(server: Serving, request: pytest.FixtureRequest) -> str:
    """A session of this test's own, with three events."""
    name = request.node.name.partition("[")[0]
    server.ask("PUT", f"/sessions/{name}")
    server.post(name, ["one", "two\nlines", "three"])
    return name


# --- httpx-sse --------------------------------------------------------------------------------------


def test_httpx_sse_resumes_and_meets_the_end(server: Serving, live: str) -> None:
    httpx_sse = pytest.importorskip("httpx_sse")
    import httpx

    address, last, got = f"{server.url}/sessions/{live}/events", "", []
    with httpx.Client() as client:
        for stop in ("three", "four", None):
            headers = {"Last-Event-ID": last} if last else {}
            with httpx_sse.connect_sse(client, "GET", address, headers=headers) as source:
                for event in source.iter_sse():
                    last = event.id or last
                    if event.event == "message":
                        got.append(event.data)
                    if stop and event.data == stop:
                        break
            if stop == "three":
                server.post(live, ["four"])
            elif stop == "four":
                server.ask("POST", f"/sessions/{live}/end", b"five", {"Content-Type": "text/plain"})
        assert got == ["one", "two\nlines", "three", "four", "five"]
        assert client.get(address, headers={"Last-Event-ID": last}).status_code == 204
        with httpx_sse.connect_sse(
            client, "GET", f"{server.url}/sessions/old/events", headers={"Last-Event-ID": "41"}
        ) as source:
            assert source.response.status_code == 409
            with pytest.raises(httpx_sse.SSEError):
                next(source.iter_sse())


# --- curl -------------------------------------------------------------------------------------------


def curl(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["curl", "-sN", *arguments], capture_output=True, timeout=20, check=False)


@needs_curl
def test_curl_shows_events_as_they_come_and_exits_at_the_end(server: Serving, live: str) -> None:
    address = f"{server.url}/sessions/{live}/events"
    command = ["curl", "-sN", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        shown = b""
        while b"replay-caught-up" not in shown:
            shown += process.stdout.readline()
        server.post(live, ["four"])
        while b"data: four" not in shown:
            shown += process.stdout.readline()
        server.ask("POST", f"/sessions/{live}/end")
        shown += process.stdout.read()
        assert process.wait(10) == 0
    shapes = [frame.event for frame in frames(shown)]
    assert shapes == ["replay", *["message"] * 3, "replay-caught-up", "message", "replay-end"]
    again = curl("-w", "%{http_code}", "-H", f"Last-Event-ID: {frames(shown)[-1].id}", address)
    assert again.stdout == b"204"


@needs_curl
def test_curl_fails_on_a_cursor_that_cannot_be_served(server: Serving) -> None:
    address = f"{server.url}/sessions/old/events"
    refused = curl("--fail-with-body", "-H", "Last-Event-ID: 41", address)
    assert refused.returncode == 22
    assert json.loads(refused.stdout)["detail"].startswith("cursor 41 is below floor 67")
    head = curl("-I", "-H", "Last-Event-ID: 41", address).stdout.decode().lower()
    assert "replay-verdict: below-floor" in head
    assert "replay-floor: 67" in head


@needs_curl
def test_curl_gets_the_backlog_alone_with_until_head(server: Serving, live: str) -> None:
    address = f"{server.url}/sessions/{live}/events?until=head"
    both = curl(address, address)
    assert both.returncode == 0
    assert [frame.data for frame in frames(both.stdout) if frame.event == "message"] == [
        "one",
        "two\nlines",
        "three",
    ] * 2


# --- node -------------------------------------------------------------------------------------------


def said_by(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def node(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["node", str(FOREIGN / program), *arguments], stdout=subprocess.PIPE, text=True, cwd=FOREIGN
    )


@needs_node
def test_npm_eventsource_resumes_after_a_drop_and_stops_at_the_end(server: Serving, live: str) -> None:
    with (
        Proxy(server.port) as proxy,
        node("eventsource.mjs", f"{proxy.url}/sessions/{live}/events?refuse=event") as process,
    ):
        said: list[dict[str, Any]] = []
        for event in said_by(process):
            said.append(event)
            if event["type"] == "replay-caught-up" and len(proxy.asked) == 1:
                proxy.drop()
                server.post(live, ["four"])
            elif event["type"] == "replay-caught-up":
                server.ask("POST", f"/sessions/{live}/end")
        assert process.wait(30) == 0
        assert [s["data"] for s in said if s["type"] == "message"] == ["one", "two\nlines", "three", "four"]
        ends = [s["id"] for s in said if s["type"] == "replay-end"]
        assert len(ends) == 1
        assert [asked.cursor for asked in proxy.asked][-1] == ends[0]
        assert said[-1] == {"type": "error", "code": 204, "state": 2}


@needs_node
def test_npm_eventsource_is_refused_in_band_without_a_loop(server: Serving) -> None:
    with (
        Proxy(server.port) as proxy,
        node("eventsource.mjs", f"{proxy.url}/sessions/old/events?last_event_id=41&refuse=event") as process,
    ):
        said = list(said_by(process))
        assert process.wait(30) == 0
        assert said[0]["type"] == "replay-refused"
        assert json.loads(said[0]["data"])["lost"] == 25
        assert [asked.cursor for asked in proxy.asked] == [None, "refused"]


@needs_node
def test_npm_eventsource_parser_over_a_network_that_cuts(server: Serving) -> None:
    rng = random.Random(SEED)

    def cut_after() -> int | None:
        return rng.randrange(1, 4000) if proxy.cuts < 25 else None

    with (
        Proxy(server.port, cut_after) as proxy,
        node("parser.mjs", f"{proxy.url}/sessions/ended/events", "100") as process,
    ):
        said = list(said_by(process))
        assert process.wait(30) == 0
    events = [s["data"] for s in said if s["type"] in ("progress", "message")]
    assert events == [f"event {n}" for n in range(1, 101)] + ["bye"], f"seed {SEED}"
    assert said[-1] == {"type": "status", "status": 204}


@needs_node
@pytest.mark.parametrize(
    ("cursor", "status"), [("41", 409), ("0000000000000001.5.00000000", 409), ("x", 400)]
)
def test_npm_eventsource_parser_is_told_by_status(server: Serving, cursor: str, status: int) -> None:
    with node("parser.mjs", f"{server.url}/sessions/old/events", "3", cursor) as process:
        assert list(said_by(process)) == [{"type": "status", "status": status}]
