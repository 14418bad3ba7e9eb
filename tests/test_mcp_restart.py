"""MCP sessions outlive the process that began them: SIGKILL, the same session id, the same owner."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp.server.streamable_http", reason="NO MCP SDK INSTALLED: the MCP adapter is not tested here")

import httpx

import mcp_kit as kit

SERVER = Path(__file__).parent / "mcp_restart_server.py"


class Process:
    """A server in a process of its own, on one directory and one port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        command = [sys.executable, str(SERVER), str(self._directory), str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self._port = httpx.URL(self.url).port or 0
        kit.until(self._listens, 30)

    def _listens(self) -> bool:
        try:
            return httpx.get(self.url, timeout=5).status_code > 0
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self.start()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    running = Process(tmp_path / "log")
    running.start()
    yield running
    running.kill()


def text_of(answer: Any) -> str:
    return str(answer["result"]["content"][0]["text"])


@pytest.mark.parametrize("revision", [kit.REVISION, kit.OLD_REVISION])
def test_a_killed_server_comes_back_with_session_events_and_the_fate_of_the_running_call(
    process: Process, revision: str
) -> None:
    raw = kit.Raw(process.url, revision).initialize()
    with raw.call(1, "count", to=5) as events:
        finished = list(events)
    with raw.call(2, "count", to=1000, every_s=0.01) as events:
        running = [next(iter(events)) for _ in range(8)]
        process.restart()
    # the same session id takes a new call, without another initialize
    assert text_of(raw.result(3, "count", to=3)) == "counted to 3"
    # what was stored replays
    with raw.get(finished[0]["id"]) as events:
        assert events.response.headers["session-durable"] == "?1"
        assert list(events) == finished[1:]
    # the call that was running has an end, and it is its stream's last event
    with raw.get(running[-1]["id"]) as events:
        rest = list(events)
    seen = kit.progress_of(running + rest)
    assert seen == list(range(1, len(seen) + 1))
    error = rest[-1]["json"]
    assert error["id"] == 2
    assert "ended while this call was running" in error["error"]["message"]
    # and again
    process.restart()
    with raw.get(running[-1]["id"]) as events:
        assert list(events) == rest
    assert text_of(raw.result(4, "count", to=3)) == "counted to 3"


def test_the_sdks_own_client_learns_the_fate_of_its_call(process: Process) -> None:
    async def run(proxy: kit.Proxy) -> str:
        async with kit.client(proxy.url) as session:
            before = kit.text_of(await session.call_tool("count", {"to": 2}))
            threading.Timer(0.5, restart_behind, (process, proxy)).start()
            failure = "never"
            try:
                async with asyncio.timeout(30):
                    await session.call_tool("count", {"to": 9000, "every_s": 0.01}, progress_callback=_ignore)
            except Exception as error:  # noqa: BLE001 - the SDK's own error type has a name per version
                failure = str(error)
            after = kit.text_of(await session.call_tool("count", {"to": 4}))
            return f"{before}; {failure}; {after}"

    with kit.Proxy(process.url) as proxy:
        told = asyncio.run(run(proxy))
    assert told == (
        "counted to 2; the server process ended while this call was running: it has no result; call again; counted to 4"
    )


def restart_behind(process: Process, proxy: kit.Proxy) -> None:
    """The client finds nobody to refuse it: it waits until the server is there again."""
    proxy.hold()
    process.restart()
    proxy.release()


async def _ignore(done: float, total: float | None, message: str | None) -> None:
    pass


def test_a_deleted_session_is_gone_for_good(process: Process) -> None:
    raw = kit.Raw(process.url).initialize()
    with raw.call(1, "count", to=5) as events:
        seen = list(events)
    process.restart()
    assert raw.delete().status_code == 200
    for _ in range(2):
        with raw.get(seen[0]["id"]) as events:
            assert events.response.status_code == 404
        assert raw.post({"jsonrpc": "2.0", "id": 2, "method": "ping"}).status_code == 404
        process.restart()


def test_a_session_stays_bound_to_its_owner(process: Process) -> None:
    ann = kit.Raw(process.url, headers={"authorization": "Bearer ann"}).initialize()
    with ann.call(1, "count", to=5) as events:
        seen = list(events)
    for _ in range(2):
        for thief in ({"authorization": "Bearer bob"}, {}):
            other = kit.Raw(process.url, headers=thief)
            other.session_id = ann.session_id
            with other.get(seen[0]["id"]) as events:
                assert events.response.status_code == 404
                assert "replay-verdict" not in events.response.headers
            assert other.post({"jsonrpc": "2.0", "id": 2, "method": "ping"}).status_code == 404
            assert other.delete().status_code == 404
        with ann.get(seen[0]["id"]) as events:
            assert list(events) == seen[1:]
        process.restart()


def test_the_get_stream_goes_on_after_a_restart(process: Process) -> None:
    raw = kit.Raw(process.url).initialize()
    raw.result(1, "announce", times=2)
    with raw.get() as events:
        seen = [next(iter(events)) for _ in range(2)]
    raw.result(2, "announce", times=2)
    process.restart()
    with raw.get(seen[-1]["id"]) as events:
        stored = [next(iter(events)) for _ in range(2)]
        again = kit.Raw(process.url)
        again.session_id = raw.session_id
        again.result(3, "announce")
        live = next(iter(events))
    ids = [int(event["id"].split(".")[1]) for event in (*seen, *stored, live)]
    assert ids == [1, 2, 3, 4, 5]


def test_many_requests_at_once_bring_a_session_back_once(process: Process) -> None:
    raw = kit.Raw(process.url).initialize()
    raw.result(1, "count", to=1)
    process.restart()
    answers: list[str] = []

    def ask(n: int) -> None:
        one = kit.Raw(process.url)
        one.session_id = raw.session_id
        answers.append(text_of(one.result(100 + n, "count", to=n)))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(answers) == [f"counted to {n}" for n in range(1, 9)]


def test_an_answer_to_a_process_that_is_gone_is_refused(process: Process) -> None:
    raw = kit.Raw(process.url).initialize({"roots": {}})
    question = Asked(raw, 1).question
    process.restart()
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}}
    assert raw.post(answer).status_code == 409
    assert "no one waits for the answer" in raw.post(answer).json()["error"]["message"]
    # a question of the new process has another id, and its answer arrives
    asked = Asked(raw, 2)
    assert asked.question["id"] != question["id"]
    assert raw.post({"jsonrpc": "2.0", "id": asked.question["id"], "result": {"roots": []}}).status_code == 202
    assert text_of(kit.until(asked.answer)) == "0 roots"


class Asked:
    """A call whose tool asks its client something, on this stream or on the GET stream."""

    def __init__(self, raw: kit.Raw, id: int) -> None:
        self._seen: list[Any] = []
        for run in (self._get, lambda one: self._call(one, id)):
            one = kit.Raw(raw.url)
            one.session_id = raw.session_id
            threading.Thread(target=run, args=(one,), daemon=True).start()
        found = kit.until(lambda: [m for m in self._seen if m.get("method") == "roots/list"])
        self.question = found[0]

    def _get(self, one: kit.Raw) -> None:
        with one.get() as events:
            self._keep(events)

    def _call(self, one: kit.Raw, id: int) -> None:
        with one.call(id, "ask") as events:
            self._keep(events)

    def _keep(self, events: kit.Sse) -> None:
        try:
            self._seen += (event["json"] for event in events if "json" in event)
        except httpx.TransportError:
            pass  # the server was killed

    def answer(self) -> Any:
        return next((m for m in self._seen if "result" in m), None)
