"""EXAMPLES.md is a test: its application is served as it stands, read, dropped, restarted and read again."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

import replaylog.asgi
from replaylog.client import Backoff, ClientReason, StreamResumptionError, connect
from web import ask, free_port

PAGE = (Path(replaylog.__file__).parent / "EXAMPLES.md").read_text()
EXAMPLE = re.search(r"```python\n# tokens\.py.*?\n(.*?)```", PAGE, re.DOTALL)
SOON = Backoff(initial_s=0.01, max_s=0.1)


class Example:
    """`uvicorn tokens:app` in a directory of its own."""

    def __init__(self, work: Path, port: int) -> None:
        assert EXAMPLE is not None
        (work / "tokens.py").write_text(EXAMPLE[1])
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "uvicorn", "tokens:app", "--port", str(port), "--log-level", "error"]
        path = os.pathsep.join(filter(None, (str(work), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(command, cwd=work, env={**os.environ, "PYTHONPATH": path})
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            try:
                urllib.request.urlopen(self.url + "/openapi.json", timeout=5).close()
            except OSError:
                assert self.process.poll() is None, "the example does not start"
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the example does not answer")

    def ask(self, name: str, prompt: str) -> int:
        request = urllib.request.Request(f"{self.url}/chats/{name}?prompt={prompt}", method="POST")
        with urllib.request.urlopen(request, timeout=5) as answer:
            status: int = answer.status
            return status

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Example:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    pytest.importorskip("fastapi")
    return tmp_path


def test_the_example_is_under_30_lines() -> None:
    assert EXAMPLE is not None
    assert len([line for line in EXAMPLE[1].splitlines() if line.strip()]) < 30


def test_the_examples_tokens_survive_a_closed_tab_and_a_killed_server(work: Path) -> None:
    port = free_port()
    words = ["You", "said:", *(f"w{n}" for n in range(1, 9))]
    with Example(work, port) as example:
        address = f"{example.url}/chats/c1/events"
        assert example.ask("c1", "+".join(words[2:])) == 202
        with connect(address, backoff=SOON) as tab:
            first = [tab.receive(10) for _ in range(3)]
            cursor = tab.cursor
        # The tab is closed, the producer goes on; two others come.
        with connect(address, cursor=cursor, backoff=SOON) as back, connect(address, backoff=SOON) as other:
            rest, whole = list(back), list(other)
        assert [event.id for event in first + rest] == list(range(1, len(words) + 1))
        assert [event.id for event in whole] == list(range(1, len(words) + 1))
        assert {event.kind for event in whole} == {"token"}

        example.ask("c2", "+".join(["word"] * 200))
        with connect(f"{example.url}/chats/c2/events", backoff=SOON, unreachable_max_s=30) as reader:
            ids = [reader.receive(10).id for _ in range(3)]
            example.kill()
            with Example(work, port):
                ids += [event.id for event in reader]  # ends: its producer is gone, and that is said
                assert ids == list(range(1, len(ids) + 1))
                with (
                    pytest.raises(StreamResumptionError) as lost,
                    connect(f"{example.url}/chats/never/events", backoff=SOON) as stream,
                ):
                    list(stream)
                assert lost.value.reason is ClientReason.UNKNOWN
                with connect(address, cursor=cursor, backoff=SOON) as again:
                    assert [event.id for event in again] == [event.id for event in rest]


def test_the_example_tells_a_name_that_is_taken(work: Path) -> None:
    with Example(work, free_port()) as example:
        example.ask("c1", "hello")
        with pytest.raises(HTTPError) as refused:
            example.ask("c1", "hello")
        refused.value.close()
        assert refused.value.code == 409
        assert refused.value.headers["content-type"] == "application/problem+json"


# --- the smaller ones, with what they take as given ------------------------------------------------


def block(holding: str) -> str:
    """The code block of the page that has this text."""
    found = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if holding in code]
    assert len(found) == 1
    return str(found[0])


def test_the_client_prints_every_event(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Example(work, free_port()) as example:
        example.ask("c1", "hello")
        exec(block("with connect(").replace("http://127.0.0.1:8000", example.url))
    shown = [line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["1", "2", "3"]


def test_quart_gets_its_streams_from_a_callable(memory_log: Any) -> None:
    pytest.importorskip("quart")
    import quart

    memory_log.create("c1").end("bye")
    names = {"app": quart.Quart("chats"), "EventStream": replaylog.asgi.EventStream, "log": memory_log}
    exec(block("inner = app.asgi_app"), names)
    call = asyncio.run(ask(names["app"], "GET", "/chats/c1/events"))
    assert [frame.event for frame in call.frames] == ["replay", "message", "replay-end"]
    assert asyncio.run(ask(names["app"], "GET", "/other")).status == 404


def test_the_guard_asks_first(memory_log: Any) -> None:
    memory_log.create("c1")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    names: dict[str, Any] = {"app": app, "ResumeGuard": replaylog.asgi.ResumeGuard, "log": memory_log}
    exec(block("app = ResumeGuard("), names)
    assert asyncio.run(ask(names["app"], "GET", "/chats/c1/events")).status == 299
    refused = ask(names["app"], "GET", "/chats/c1/events", [("Last-Event-ID", "41")])
    assert asyncio.run(refused).status == 409


def test_django_streams_from_a_view(memory_log: Any) -> None:
    pytest.importorskip("django")
    from django.conf import settings
    from django.http import StreamingHttpResponse
    from django.test import RequestFactory

    import replaylog.wsgi

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"])
    memory_log.create("c1").end("bye")
    names: dict[str, Any] = {
        "replaylog": replaylog,
        "StreamingHttpResponse": StreamingHttpResponse,
        "log": memory_log,
    }
    exec(block("def events(request, name)"), names)
    answer = names["events"](RequestFactory().get("/chats/c1/events"), "c1")
    assert b"data: bye" in b"".join(answer.streaming_content)
