"""replaylog.wsgi: the same protocol as a sync generator, by hand, under wsgiref's rules, and in Django."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from replaylog import Retention
from replaylog.client import ClientReason, StreamResumptionError, connect
from replaylog.wsgi import EventStream, answer
from web import frames


@pytest.fixture
def log(memory_log: Any) -> Any:
    session = memory_log.create("s", retention=Retention(events=64))
    session.extend([(f"event {n}", "message") for n in range(1, 131)])
    return memory_log


def environ(cursor: str | None = None, query: str = "", method: str = "GET") -> dict[str, Any]:
    made: dict[str, Any] = {"REQUEST_METHOD": method, "QUERY_STRING": query}
    setup_testing_defaults(made)
    if cursor is not None:
        made["HTTP_LAST_EVENT_ID"] = cursor
    return made


def ask(session: Any, *args: Any, log: Any = None, **named: Any) -> tuple[int, dict[str, str], bytes]:
    made = answer(session, environ(*args, **named), log=log)
    return made.status, dict(made.headers), b"".join(made.body)


def test_replay_live_end_and_204(log: Any) -> None:
    made = answer("s", environ("127"), log=log, keepalive_s=0.05)
    body = iter(made.body)
    assert made.status == 200
    assert dict(made.headers)["replay-verdict"] == "resumable"
    shown = b""
    while b": head=130" not in shown:
        shown += next(body)
    assert [frame.event for frame in frames(shown)][:5] == [
        "replay",
        *["message"] * 3,
        "replay-caught-up",
    ]
    threading.Timer(0.1, lambda: log.session("s").end("bye", reason="complete")).start()
    rest = frames(b"".join(body))
    assert rest[-2].data == "bye"
    assert rest[-1].event == "replay-end"
    assert rest[-1].document == {"head": 131, "reason": "complete"}
    assert ask("s", rest[-1].id, log=log)[0] == 204


@pytest.mark.parametrize(
    ("cursor", "name", "status", "verdict"),
    [
        ("41", "s", 409, "below-floor"),
        ("500", "s", 409, "forked"),
        ("41", "never", 404, "unknown"),
        ("41,42", "s", 400, "malformed"),
    ],
)
def test_refusals(log: Any, cursor: str, name: str, status: int, verdict: str) -> None:
    got, headers, body = ask(name, cursor, log=log)
    assert (got, headers["replay-verdict"]) == (status, verdict)
    assert json.loads(body)["verdict"] == verdict
    got, headers, body = ask(name, cursor, "refuse=event", log=log)
    assert (got, [frame.event for frame in frames(body)]) == (200, ["replay-refused"])
    assert ask(name, "refused", "refuse=event", log=log)[0] == 204


def test_the_guard_of_wsgi_accepts_what_is_said(log: Any) -> None:
    """PEP 3333, as wsgiref checks it."""
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        started.append((status, dict(headers)))
        return lambda data: None

    app = validator(EventStream("s", log=log))
    body = app(environ("128", "until=head"), start_response)
    text = b"".join(body)
    body.close()  # type: ignore[attr-defined]
    assert started[0][0] == "200 OK"
    assert [frame.event for frame in frames(text)][-1] == "replay-caught-up"


def test_closing_the_body_ends_the_stream(log: Any) -> None:
    made = answer(log.session("s"), environ("128"))
    body: Iterator[bytes] = iter(made.body)
    next(body)
    made.body.close()  # type: ignore[attr-defined]
    assert list(body) == []


def test_a_reader_that_fell_off_is_told(log: Any) -> None:
    made = answer("s", environ("129"), log=log)
    body = iter(made.body)
    next(body)
    log.session("s").trim(131)
    log.reap("s")
    rest = frames(b"".join(body))
    assert rest[-1].event == "replay-overrun"


def test_django_streams_it(log: Any) -> None:
    pytest.importorskip("django")
    from django.conf import settings
    from django.http import HttpRequest, StreamingHttpResponse
    from django.test import RequestFactory

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"])

    def events(request: HttpRequest, name: str) -> StreamingHttpResponse:
        made = answer(name, request.META, log=log)
        return StreamingHttpResponse(made.body, status=made.status, headers=dict(made.headers))

    get = RequestFactory().get
    response = events(get("/chats/s/events?until=head", headers={"last-event-id": "128"}), "s")
    assert response["content-type"] == "text/event-stream"
    assert next(f.event for f in frames(b"".join(response.streaming_content))) == "replay"
    assert events(get("/chats/s/events", headers={"last-event-id": "41"}), "s").status_code == 409
    began = time.monotonic()
    response = events(get("/chats/s/events", headers={"last-event-id": "130"}), "s")
    next(iter(response.streaming_content))
    response.close()
    assert time.monotonic() - began < 5


class Threaded(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_the_client_reads_it_over_a_real_socket_to_the_end(log: Any) -> None:
    with make_server("127.0.0.1", 0, EventStream("s", log=log, keepalive_s=0.2), Threaded, Quiet) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        token = log.resume("s", 100).verdict.from_token
        with connect(address, cursor=token) as stream:
            ids = [stream.receive(10).id for _ in range(30)]
            log.session("s").end("bye")
            ids += [event.id for event in stream]
        assert ids == list(range(101, 132))
        with connect(address, cursor=stream.cursor) as again:
            assert list(again) == []
        with pytest.raises(StreamResumptionError) as refused, connect(address, cursor=41) as old:
            list(old)
        assert refused.value.reason is ClientReason.BELOW_FLOOR
        server.shutdown()
