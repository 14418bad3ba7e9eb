"""A real browser: headless Chromium with its own EventSource, which sees neither status nor headers.

One page per server runs four EventSources at once, because a browser waits three seconds before it comes
back. Needs Debian's `chromium`; where it is not installed these tests are skipped, and say so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from proxy import Asked, Proxy
from web import Serving, free_port

CHROMIUM = os.environ.get("REPLAYLOG_CHROMIUM") or shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_S = 40.0
COMES_BACK_S = 3.0  # Chromium's own reconnection time

pytestmark = pytest.mark.skipif(
    not CHROMIUM,
    reason="NO BROWSER: install Debian's chromium, EventSource is untested without it",
)

PAGE = """<!doctype html><title>EventSource</title><script>
let number = 0, sending = Promise.resolve();
function say(source, what) {
  const body = JSON.stringify({number: number++, source, ...what});
  sending = sending.then(() => fetch("/report", {method: "POST", body}));
}
function listen(source, path) {
  const stream = new EventSource(path);
  for (const type of ["message", "progress", "replay", "replay-caught-up", "replay-end",
                      "replay-refused", "replay-overrun"])
    stream.addEventListener(type, e => say(source, {type, id: e.lastEventId, data: e.data}));
  stream.onerror = () => say(source, {type: "error", state: stream.readyState});
}
for (const [source, path] of Object.entries(PATHS)) listen(source, path);
</script>"""


class Said(NamedTuple):
    """What the page reported: an event, or an error with the state that the EventSource is in."""

    source: str
    type: str
    id: str = ""
    data: str = ""
    state: int | None = None


class Stage(Proxy):
    """The page, its reports, and between the page and the server a proxy: one origin, no CORS."""

    def __init__(self, port: int, paths: dict[str, str]) -> None:
        self.said: list[Said] = []
        self._page = PAGE.replace("PATHS", json.dumps(paths)).encode()
        self._paths = paths
        super().__init__(port)

    def own(self, asked: Asked, body: bytes) -> bytes | None:
        if asked.target == "/":
            return _ok(b"text/html", self._page)
        if asked.target == "/report":
            document = json.loads(body)
            document.pop("number")
            self.said.append(Said(**document))
            return _ok(b"text/plain", b"")
        return None if "/events" in asked.target else _ok(b"text/plain", b"")

    def of(self, source: str) -> list[Said]:
        return [said for said in self.said if said.source == source]

    def requests(self, source: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.target == self._paths[source]]


def _ok(media: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
        % (media, len(body))
        + body
    )


def until(happened: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline_s, f"it did not happen: {what}"
        time.sleep(0.02)


FASTAPI = """
import json, sys, threading
import fastapi, uvicorn
import replaylog
from replaylog.asgi import App, EventStream

log = replaylog.open(None, durability="memory")
app = fastapi.FastAPI()

@app.get("/chats/{name}/events")
async def events(name: str) -> EventStream:
    return EventStream(name, log=log)

app.mount("/", App(log))  # what fills it
config = uvicorn.Config(app, port=PORT, log_level="error")

class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(json.dumps({"url": "http://127.0.0.1:PORT"}), flush=True)

Server(config).run()
"""


class FastApi(Serving):
    """An application of somebody else's, with `EventStream` as a response."""

    def __init__(self, program: Path) -> None:
        program.write_text(FASTAPI.replace("PORT", str(free_port())))
        self._launch([sys.executable, str(program)], {})


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Stage]]:
    """Both servers' plays, side by side: most of their time is the browser's waiting."""
    pytest.importorskip("fastapi")
    work = tmp_path_factory.mktemp("browser")
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        serve = stack.enter_context(Serving(None, "--events", "64"))
        fastapi = stack.enter_context(FastApi(work / "program.py"))
        plays = {
            "serve": pool.submit(on_stage, stack, serve, "/sessions/{}/events", work / "serve"),
            "fastapi": pool.submit(on_stage, stack, fastapi, "/chats/{}/events", work / "fastapi"),
        }
        yield {name: play.result() for name, play in plays.items()}


@pytest.fixture(params=["serve", "fastapi"])
def played(both: dict[str, Stage], request: pytest.FixtureRequest) -> Stage:
    """Everything that the four EventSources saw, and what they asked for."""
    return both[request.param]


def on_stage(stack: contextlib.ExitStack, server: Serving, events: str, work: Path) -> Stage:
    work.mkdir()
    server.ask("PUT", "/sessions/drop", b'{"retention": {"events": 64}}')
    server.ask("PUT", "/sessions/old", b'{"retention": {"events": 64}}')
    server.ask("PUT", "/sessions/end")
    server.post("drop", ["one", "two\nlines", "three"])
    server.post("end", ["one"])
    server.extend("old", [(f"event {n}", "message") for n in range(1, 131)])
    paths = {
        "drop": events.format("drop") + "?refuse=event",
        "end": events.format("end") + "?refuse=event",
        "refused": events.format("old") + "?last_event_id=41&refuse=event",
        "status": events.format("old") + "?last_event_id=41",
    }
    stage = stack.enter_context(Stage(server.port, paths))
    stack.enter_context(browser(f"{stage.url}/", work))
    play(stage, server)
    return stage


class browser:
    def __init__(self, address: str, work: Path) -> None:
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={work / 'profile'}", address]
        self._log = (work / "chromium.log").open("wb")
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def __enter__(self) -> browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def play(stage: Stage, server: Serving) -> None:
    def seen(source: str, type: str) -> Callable[[], bool]:
        return lambda: any(said.type == type for said in stage.of(source))

    def closed(source: str) -> Callable[[], bool]:
        return lambda: any(said.state == 2 for said in stage.of(source))

    until(seen("drop", "replay-caught-up"), "the page is open")
    until(seen("end", "replay-caught-up"), "both streams are")
    stage.drop()
    server.post("drop", ["four", "five"], kind="progress")
    server.ask("POST", "/sessions/end/end?kind=result", b"bye")
    until(lambda: len(stage.requests("drop")) == 2, "it comes back by itself")
    until(seen("drop", "progress"), "it gets what it missed")
    until(closed("end"), "it stops after the end")
    until(closed("refused"), "it stops after the refusal")
    until(closed("status"), "it gives up on a status")
    time.sleep(COMES_BACK_S + 1)  # a loop would show by now


def test_after_a_drop_it_resumes_from_its_last_id_without_loss_or_repeat(played: Stage) -> None:
    said = played.of("drop")
    events = [(s.type, s.data) for s in said if s.type in ("message", "progress")]
    assert events == [
        ("message", "one"),
        ("message", "two\nlines"),
        ("message", "three"),
        ("progress", "four"),
        ("progress", "five"),
    ]
    first, second = played.requests("drop")
    caught_up = next(s for s in said if s.type == "replay-caught-up")
    assert first.cursor is None
    assert second.cursor == caught_up.id
    replays = [json.loads(s.data) for s in said if s.type == "replay"]
    assert [(r["verdict"], r["from"], r["proof"]) for r in replays] == [
        ("resumable", 0, "window"),
        ("resumable", 3, "chain"),
    ]


def test_a_refusal_is_an_event_and_no_reconnect_loop_follows(played: Stage) -> None:
    said = played.of("refused")
    problem = json.loads(said[0].data)
    assert [s.type for s in said if s.type != "error"] == ["replay-refused"]
    assert (problem["verdict"], problem["floor"], problem["lost"]) == ("below-floor", 67, 25)
    assert [asked.cursor for asked in played.requests("refused")] == [None, "refused"], (
        "then 204, and silence"
    )
    assert said[-1].state == 2


def test_without_the_flag_a_refusal_is_the_end_of_the_eventsource(played: Stage) -> None:
    assert [(s.type, s.state) for s in played.of("status")] == [("error", 2)]
    assert len(played.requests("status")) == 1


def test_the_end_of_the_session_ends_the_eventsource(played: Stage) -> None:
    said = played.of("end")
    ends = [s for s in said if s.type == "replay-end"]
    assert len(ends) == 1
    assert ends[0].id.endswith(".end")
    asked = played.requests("end")
    assert asked[-1].cursor == ends[0].id, "answered with 204: it stops for good"
    assert said[-1].state == 2
