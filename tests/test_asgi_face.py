"""EventStream and ResumeGuard inside other people's applications: the protocol holds there as in `App`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

import replaylog
from replaylog import Retention, aio
from replaylog.asgi import EXPOSED_HEADERS, EventStream, ResumeGuard, Streams, streams_of
from web import Call

HEADERS = {name.lower() for name in EXPOSED_HEADERS if name != "Replay-Stall-Max"}


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(scenario)


@pytest.fixture
def log(memory_log: Any) -> Any:
    session = memory_log.create("s", retention=Retention(events=64))
    session.extend([(f"event {n}", "message") for n in range(1, 131)])
    return memory_log


# --- one application per framework, each with the events of `name` at /chats/{name}/events ---------


def plain(log: Any, streams: Streams) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        name = scope["path"].split("/")[2]
        await EventStream(name, log=log, streams=streams)(scope, receive, send)

    return app


def starlette(log: Any, streams: Streams) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import Route

    async def events(request: Request) -> EventStream:
        return EventStream(request.path_params["name"], request, log=log, streams=streams)

    return Starlette(routes=[Route("/chats/{name}/events", events)])


def fastapi(log: Any, streams: Streams) -> Any:
    module = pytest.importorskip("fastapi")
    app = module.FastAPI()

    @app.get("/chats/{name}/events")
    async def events(name: str) -> EventStream:
        return EventStream(name, log=log, streams=streams)

    @app.middleware("http")
    async def through_tasks(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        """Starlette's BaseHTTPMiddleware runs the response in a task of its own behind a queue."""
        return await call_next(request)

    return app


def litestar(log: Any, streams: Streams) -> Any:
    module = pytest.importorskip("litestar")

    async def events(name: str) -> EventStream:
        return EventStream(name, log=log, streams=streams)

    # Litestar reads the annotations, and this module's are text that only this function could resolve.
    events.__annotations__ = {"name": module.params.FromPath[str], "return": EventStream}
    handler = module.get("/chats/{name:str}/events")(events)
    return module.Litestar([handler], logging_config=None)  # its default reconfigures the root logger


def quart(log: Any, streams: Streams) -> Any:
    module = pytest.importorskip("quart")
    app = module.Quart("chats")
    inner, events = app.asgi_app, plain(log, streams)

    async def with_events(scope: Any, receive: Any, send: Any) -> None:
        here = scope["type"] == "http" and scope["path"].startswith("/chats/")
        await (events if here else inner)(scope, receive, send)

    app.asgi_app = with_events
    return app


@pytest.fixture(params=[plain, starlette, fastapi, litestar, quart], ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


async def call(app: Any, cursor: str | None, query: str = "", method: str = "GET", name: str = "s") -> Call:
    headers = [] if cursor is None else [("Last-Event-ID", cursor)]
    return Call(app, method, f"/chats/{name}/events{query}", headers)


def test_a_stream_resumes_goes_live_and_ends(log: Any, make: Any) -> None:
    async def scenario() -> None:
        streams = Streams(keepalive_s=0.1)
        app = make(log, streams)
        reading = await call(app, "127")
        await reading.until(": head=130")
        assert len(streams) == 1
        log.session("s").end("bye", kind="result", reason="complete")
        await reading.done()
        assert set(reading.headers) >= HEADERS
        shown = [frame.event for frame in reading.frames if not frame.comment]
        assert shown == [
            "replay",
            *["message"] * 3,
            "replay-caught-up",
            "result",
            "replay-end",
        ]
        assert [frame.number for frame in reading.frames if frame.event == "message" and frame.id] == [
            128,
            129,
            130,
        ]
        again = await (await call(app, reading.frames[-1].id)).done()
        assert again.status == 204
        assert len(streams) == 0

    run(scenario())


def test_the_incidents_variants_get_no_stream(log: Any, make: Any) -> None:
    async def scenario() -> None:
        app = make(log, Streams())
        for cursor, name, status, verdict in (
            ("41", "s", 409, "below-floor"),
            ("500", "s", 409, "forked"),
            ("41", "never", 404, "unknown"),
            ("+41", "s", 400, "malformed"),
        ):
            refused = await (await call(app, cursor, name=name)).done()
            assert (refused.status, refused.headers["replay-verdict"]) == (status, verdict)
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.document["verdict"] == verdict
        assert [row.name for row in log.sessions()] == ["s"], "no read creates a session"

    run(scenario())


def test_a_refusal_in_band_is_one_event_and_then_204(log: Any, make: Any) -> None:
    async def scenario() -> None:
        app = make(log, Streams())
        refused = await (await call(app, "41", "?refuse=event")).done()
        assert (refused.status, [f.event for f in refused.frames]) == (200, ["replay-refused"])
        assert refused.frames[0].document["lost"] == 25
        again = await (await call(app, refused.frames[0].id, "?refuse=event")).done()
        assert (again.status, again.body) == (204, b"")

    run(scenario())


def test_a_reader_that_leaves_ends_its_stream_only(log: Any, make: Any) -> None:
    async def scenario() -> None:
        streams = Streams()
        app = make(log, streams)
        first, second = await call(app, "129"), await call(app, "129")
        await first.until("replay-caught-up")
        await second.until("replay-caught-up")
        first.leave()
        await first.done()
        assert len(streams) == 1
        log.session("s").append("still")
        await second.until("data: still")
        await streams.drain()
        await second.done()
        assert second.frames[-1].retry

    run(scenario())


def test_until_head_ends_after_the_backlog_with_its_length(log: Any, make: Any) -> None:
    async def scenario() -> None:
        done = await (await call(make(log, Streams()), "128", "?until=head")).done()
        assert [frame.event for frame in done.frames] == ["replay", "message", "message", "replay-caught-up"]
        assert int(done.headers["content-length"]) == len(done.body)

    run(scenario())


# --- EventStream by itself -------------------------------------------------------------------------


def test_a_session_a_name_and_a_request_are_all_taken(log: Any) -> None:
    async def scenario() -> None:
        async_log = aio.Log(log)
        for stream in (
            EventStream(log.session("s")),
            EventStream(await async_log.session("s")),
            EventStream("s", log=log),
            EventStream("s", log=async_log),
        ):
            reading = Call(stream, "GET", "/anything?from=floor&until=head")
            await reading.done()
            assert reading.frames[0].document["from"] == 66

    run(scenario())
    with pytest.raises(TypeError, match="log="):
        EventStream("s")
    with pytest.raises(TypeError, match="int"):
        EventStream(3)  # type: ignore[arg-type]


def test_headers_and_cookies_of_the_response_go_along(log: Any) -> None:
    async def scenario() -> None:
        stream = EventStream("s", log=log)
        stream.headers["x-mine"] = "1"
        stream.set_cookie("c", "2")
        done = await Call(stream, "GET", "/?until=head&from=floor").done()
        assert done.headers["x-mine"] == "1"
        assert done.headers["set-cookie"].startswith("c=2")
        assert done.headers["replay-verdict"] == "resumable"

    run(scenario())


def test_a_post_may_answer_with_a_stream_and_head_never_does(log: Any) -> None:
    """As chat applications do: the question in the body, the events as its answer."""

    async def scenario() -> None:
        stream = EventStream("s", log=log)
        posted = await Call(stream, "POST", "/?until=head&from=floor", body=b"question").done()
        assert posted.frames[-1].event == "replay-caught-up"
        head = await Call(stream, "HEAD", "/?from=floor").done()
        assert (head.status, head.body) == (200, b"")
        assert head.headers["replay-verdict"] == "resumable"

    run(scenario())


def test_streams_are_one_registry_per_log_and_loop(log: Any) -> None:
    async def scenario() -> Streams:
        reading = Call(EventStream("s", log=log), "GET", "/?from=floor")
        await reading.until("replay-caught-up")
        streams = streams_of(log)
        assert streams is streams_of(aio.Log(log))
        assert len(streams) == 1
        await streams.drain()
        await reading.done()
        return streams

    assert run(scenario()) is not run(scenario()), "a loop that is gone leaves nothing behind"


# --- the guard -------------------------------------------------------------------------------------


def session_of(scope: Any) -> str | None:
    parts = scope["path"].split("/")
    return parts[2] if parts[1] == "chats" else None


def test_the_guard_calls_the_inner_application_only_for_a_cursor_that_it_can_serve(log: Any) -> None:
    called: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        follow = scope.get("replaylog")
        called.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-inner", b"1")]})
        body = b""
        if follow is not None:
            ids = [(await anext(follow)).id for _ in range(follow.verdict.missing or 0)]
            body = repr(ids).encode()
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def scenario() -> None:
        app = ResumeGuard(inner, log=log, session_of=session_of)
        good = await (await call(app, "127")).done()
        assert (good.status, good.body) == (200, b"[128, 129, 130]")
        assert good.headers["replay-verdict"] == "resumable"
        assert good.headers["x-inner"] == "1"
        assert (await (await call(app, "41")).done()).status == 409
        assert (await (await call(app, "41", name="never")).done()).status == 404
        assert (await (await call(app, "41", method="POST")).done()).status == 200, "writes are not judged"
        assert (await Call(app, "GET", "/other").done()).status == 200
        token = log.session("s").cursor
        log.session("s").end()
        assert (await (await call(app, token + ".end")).done()).status == 204
        log.reap("s")
        assert (await (await call(app, "41")).done()).status == 410
        assert called == ["/chats/s/events", "/chats/s/events", "/other"]

    run(scenario())


def test_what_the_guard_promised_is_still_there_when_retention_moves_on() -> None:
    """The inner application reads slowly; the verdict outlives the question."""
    log = replaylog.open(None, durability="memory", retention=Retention(events=10))
    session = log.create("s")
    session.extend([(f"event {n}", "message") for n in range(1, 11)])
    got: list[int] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        session.extend([("later", "message")] * 100)
        follow = scope["replaylog"]
        got.extend([(await anext(follow)).id for _ in range(10)])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = ResumeGuard(inner, log=log, session_of=session_of)
    run(_one(app))
    assert got == list(range(1, 11))
    log.close()


async def _one(app: Any) -> None:
    await (await call(app, None)).done()
