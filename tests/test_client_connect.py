"""connect() against servers on real sockets, most of them broken."""

from __future__ import annotations

import json
import socket
import threading
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import httpx
import pytest

from fake_sse import Exchange, FakeServer, Script, event, serving
from replaylog.client import (
    FLOOR,
    Backoff,
    ClientReason,
    ClientState,
    IdleTimeoutWarning,
    Stream,
    StreamEvent,
    StreamResumptionError,
    connect,
)

R = ClientReason
EPOCH = "00000000000000ab"
SOON = Backoff(initial_s=0.005, max_s=0.02)


def reading(server: FakeServer, cursor: Any = 41, **settings: Any) -> Stream:
    return connect(server.url, cursor=cursor, **{"backoff": SOON, "idle_timeout_s": 5.0, **settings})


def drain(stream: Stream) -> tuple[list[int | None], ClientReason | None]:
    """Every id that comes, and why no more do."""
    ids: list[int | None] = []
    try:
        ids.extend(event.id for event in stream)
    except StreamResumptionError as error:
        return ids, error.reason
    return ids, None


def until(happened: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.005)


def token(id: int, end: str = "") -> str:
    return f"{EPOCH}.{id}.00000000{end}"


def frame(id: int, event: str = "message", data: str = "{}", end: str = "") -> bytes:
    return f"event: {event}\nid: {token(id, end)}\ndata: {data}\n\n".encode()


def skipping(exchange: Exchange) -> None:
    exchange.stream()
    exchange.events(130, 135)


def empty(exchange: Exchange) -> None:
    exchange.stream()


def gone(exchange: Exchange) -> None:
    exchange.answer(204)


def status(code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Script:
    return lambda exchange: exchange.answer(code, headers, body)


def run_of(first: int, last: int) -> Script:
    def script(exchange: Exchange) -> None:
        exchange.stream()
        exchange.events(first, last)

    return script


# --- servers that cannot resume ------------------------------------------------------------------


def test_a_200_that_skips_is_refused() -> None:
    with serving(skipping) as server, reading(server) as stream:
        with pytest.raises(StreamResumptionError, match=r"silent skip of 88 event\(s\)"):
            next(stream)
        with pytest.raises(StreamResumptionError):
            next(stream)
        assert stream.cursor == "41"
        assert stream.status.state is ClientState.RESUMPTION_FAILED
    assert server.cursors == ["41"]


def test_an_empty_200_for_ever_is_bounded() -> None:
    with serving(empty) as server, reading(server, empty_reconnects_max=3) as stream:
        assert drain(stream) == ([], R.EMPTY)
    assert server.cursors == ["41"] * 4


def test_keepalives_alone_do_not_prove_a_thing() -> None:
    def idle(exchange: Exchange) -> None:
        exchange.stream()
        exchange.keepalives(10.0)

    with serving(idle) as server, reading(server, proof_max_s=0.3) as stream:
        assert drain(stream) == ([], R.EMPTY)
    assert len(server.requests) == 1


def test_the_cursor_is_carried_through_a_second_drop() -> None:
    with serving(empty, empty, run_of(42, 44), gone) as server, reading(server) as stream:
        assert drain(stream) == ([42, 43, 44], None)
    assert server.cursors == ["41", "41", "41", "44"]


def test_events_before_a_refusal_are_delivered_first() -> None:
    with serving(run_of(42, 50), status(404)) as server, reading(server) as stream:
        until(lambda: stream.status.state is ClientState.SESSION_LOST)
        assert drain(stream) == (list(range(42, 51)), R.UNKNOWN)
        assert stream.cursor == "50"


PROBLEM = {"verdict": "below-floor", "cursor": 41, "floor": 67, "head": 130, "restart_from": token(66)}


def test_a_refusal_tells_its_numbers() -> None:
    refusal = status(409, {"Replay-Verdict": "below-floor"}, json.dumps(PROBLEM).encode())
    with serving(refusal) as server, reading(server) as stream:
        with pytest.raises(StreamResumptionError, match=r"events 42\.\.66 are lost") as refused:
            next(stream)
    assert refused.value.numbers["restart_from"] == token(66)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (status(400), R.BAD_REQUEST),
        (status(401), R.UNAUTHORIZED),
        (status(403), R.FORBIDDEN),
        (status(409), R.STATUS),
        (status(410), R.REAPED),
        (status(404, {"Content-Length": "1000"}, b"cut"), R.UNKNOWN),
        (status(307, {"Location": "http://127.0.0.1:9/elsewhere"}), R.REDIRECTED),
        (status(200, {"Content-Type": "text/html"}, b"<html>"), R.NOT_A_STREAM),
    ],
)
def test_an_answer_that_is_no_stream_is_not_tried_again(answer: Script, reason: ClientReason) -> None:
    with serving(answer) as server, reading(server) as stream:
        assert drain(stream) == ([], reason)
    assert len(server.requests) == 1


def test_a_redirect_inside_the_origin_is_followed_with_the_cursor_and_a_loop_is_not() -> None:
    there = status(307, {"Location": "/there"})
    with serving(there, run_of(42, 43), gone) as server, reading(server) as stream:
        assert drain(stream) == ([42, 43], None)
    assert [r.path for r in server.requests] == ["/sessions/s/events", "/there", "/sessions/s/events"]
    assert server.cursors == ["41", "41", "43"]
    hops = [status(307, {"Location": f"/{n}"}) for n in range(20)]
    with serving(*hops) as server, reading(server) as stream:
        assert drain(stream) == ([], R.REDIRECTED)


def test_an_event_larger_than_the_bound_is_refused_not_fetched_for_ever() -> None:
    def large(exchange: Exchange) -> None:
        exchange.stream()
        exchange.send(event(42) + event(43, "x" * 100_000))

    with serving(large) as server, reading(server, event_bytes_max=10_000) as stream:
        assert drain(stream) == ([42], R.TOO_LARGE)
    assert len(server.requests) == 1


# --- servers that are not there, or break --------------------------------------------------------


def onward(exchange: Exchange) -> None:
    at = int(exchange.cursor or 0)
    exchange.stream()
    exchange.events(at + 1, min(at + 2, 46))


def reset(exchange: Exchange) -> None:
    """A reset may overtake the events sent before it, so what follows goes by the cursor."""
    onward(exchange)
    exchange.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def nothing(exchange: Exchange) -> None:
    """The connection is accepted, the request read, and no answer ever begins."""


def test_a_reset_connection_is_resumed() -> None:
    def to_the_end(exchange: Exchange) -> None:
        (gone if exchange.cursor == "46" else onward)(exchange)

    with serving(reset, reset, to_the_end) as server, reading(server) as stream:
        assert drain(stream) == ([42, 43, 44, 45, 46], None)


def test_no_answer_is_no_verdict_and_is_tried_again() -> None:
    with (
        serving(nothing, status(503), status(429), run_of(42, 42), gone) as server,
        reading(server) as stream,
    ):
        assert drain(stream) == ([42], None)
    assert server.cursors == ["41", "41", "41", "41", "42"]


def test_a_server_that_stays_away_is_unreachable_after_the_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    began_s = time.monotonic()
    with connect(f"http://127.0.0.1:{port}/", cursor=41, backoff=SOON, unreachable_max_s=0.3) as stream:
        assert drain(stream) == ([], R.UNREACHABLE)
        assert stream.cursor == "41"
    assert 0.3 <= time.monotonic() - began_s < 10


def test_retry_after_is_waited_for_as_a_number_and_as_a_date() -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    busy = [status(503, {"Retry-After": "1"}), status(503, {"Retry-After": date})]
    wall_s = 1445412479.0  # one second before that date
    times: list[float] = []

    def arrival(exchange: Exchange) -> None:
        times.append(time.monotonic())
        busy[len(times) - 1](exchange) if len(times) <= 2 else gone(exchange)

    with serving(arrival) as server, reading(server, wall=lambda: wall_s) as stream:
        assert drain(stream) == ([], None)
    assert all(0.95 <= later - earlier < 5 for earlier, later in pairwise(times))


def test_retry_after_does_not_outlast_the_bound() -> None:
    with serving(status(503, {"Retry-After": "3600"})) as server:
        with reading(server, unreachable_max_s=0.2) as stream:
            assert drain(stream) == ([], R.UNREACHABLE)
    assert len(server.requests) == 2  # the last try is at the bound


def test_the_streams_own_retry_is_a_least_wait() -> None:
    def closing(exchange: Exchange) -> None:
        exchange.stream()
        exchange.send(b"retry: 300\n\n" + event(42))

    began_s = time.monotonic()
    with serving(closing, gone) as server, reading(server) as stream:
        assert drain(stream) == ([42], None)
    assert time.monotonic() - began_s >= 0.3


def test_silence_longer_than_the_idle_timeout_reconnects_and_loses_nothing() -> None:
    def silent(exchange: Exchange) -> None:
        exchange.stream()
        exchange.events(42, 43)
        exchange.wait_for_close()

    with serving(silent, run_of(44, 45), gone) as server, reading(server, idle_timeout_s=0.3) as stream:
        assert drain(stream) == ([42, 43, 44, 45], None)
    assert server.cursors == ["41", "43", "45"]


def test_200_cuts_at_any_byte_lose_and_repeat_nothing() -> None:
    last, cuts = 400, iter(range(200))

    def cut(exchange: Exchange) -> None:
        assert exchange.cursor is not None
        at = int(exchange.cursor.split(".")[1]) if "." in exchange.cursor else int(exchange.cursor)
        body = frame(at, "replay") + b"".join(frame(n, data=f"{n}") for n in range(at + 1, last + 1))
        if at == last:
            body += frame(last, "replay-end", end=".end")
        n = next(cuts, None)
        exchange.stream(replay_floor=1, replay_head=last)
        exchange.send(body if n is None else body[: 7 + n * 37 % 500])

    soonest = Backoff(initial_s=0.001, max_s=0.001)
    with serving(cut) as server, reading(server, cursor=0, backoff=soonest) as stream:
        assert drain(stream) == (list(range(1, last + 1)), None)
        assert stream.cursor == token(last, ".end")
    assert len(server.requests) > 100


# --- the stream's own words ----------------------------------------------------------------------


def test_a_session_is_read_to_its_end_and_the_cursor_bears_the_mark() -> None:
    def whole(exchange: Exchange) -> None:
        exchange.stream(replay_floor=1, replay_head=2, replay_epoch=EPOCH)
        exchange.send(frame(0, "replay") + frame(1) + frame(2, "k;base64", "YQ0K/w=="))
        exchange.send(frame(2, "replay-caught-up") + frame(2, "replay-end", end=".end"))

    with serving(whole) as server, reading(server, cursor=None) as stream:
        events = list(stream)
        assert events == [
            StreamEvent(1, "message", "{}", token(1)),
            StreamEvent(2, "k", b"a\r\n\xff", token(2)),
        ]
        assert stream.cursor == token(2, ".end")
        with pytest.raises(EOFError):
            stream.receive()


def test_a_reader_of_an_empty_session_holds_a_token_before_any_event() -> None:
    def waiting(exchange: Exchange) -> None:
        exchange.stream(replay_floor=1, replay_head=0)
        exchange.send(frame(0, "replay"))

    with serving(waiting, gone) as server, reading(server, cursor=None) as stream:
        assert drain(stream) == ([], None)
        assert stream.cursor == token(0)
    assert server.cursors == [None, token(0)]


def test_an_overrun_is_told() -> None:
    def overrun(exchange: Exchange) -> None:
        exchange.stream(replay_floor=1, replay_head=90)
        exchange.send(frame(42) + frame(42, "replay-overrun", json.dumps({"floor": 67, "head": 130})))

    with serving(overrun) as server, reading(server) as stream:
        assert drain(stream) == ([42], R.OVERRUN)


def test_a_server_that_may_be_silent_for_too_long_is_reported_once() -> None:
    def slow(exchange: Exchange) -> None:
        exchange.stream(replay_floor=1, replay_keepalive=60, replay_stall_max=45)
        exchange.events(int(exchange.cursor or 0) + 1, int(exchange.cursor or 0) + 1)

    with serving(slow, slow, gone) as server, reading(server) as stream:
        with pytest.warns(IdleTimeoutWarning, match="set idle_timeout_s above 105") as told:
            assert drain(stream) == ([42, 43], None)
    assert len(told) == 1


def test_the_request_asks_for_raw_bytes_and_carries_the_callers_headers() -> None:
    with (
        serving(gone) as server,
        reading(server, cursor=FLOOR, headers={"Authorization": "Bearer t"}) as stream,
    ):
        assert drain(stream) == ([], None)
    (request,) = server.requests
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["accept"] == "text/event-stream"
    assert request.headers["authorization"] == "Bearer t"
    assert request.path.endswith("?from=floor")


# --- applications --------------------------------------------------------------------------------


def test_a_busy_application_neither_trips_the_idle_timer_nor_stalls_the_server() -> None:
    sent_s: list[float] = []

    def lively(exchange: Exchange) -> None:
        exchange.stream(replay_floor=1, replay_head=1000)
        for n in range(42, 142):
            before_s = time.monotonic()
            exchange.send(event(n, "x" * 20_000))
            sent_s.append(time.monotonic() - before_s)
            time.sleep(0.015)
        exchange.wait_for_close()

    with serving(lively, gone) as server, reading(server, idle_timeout_s=0.5) as stream:
        assert next(stream).id == 42
        time.sleep(1.5)
        assert [next(stream).id for _ in range(99)] == list(range(43, 142))
        assert len(server.requests) == 1
    assert max(sent_s) < 0.5


def test_a_full_buffer_is_backpressure_and_not_loss() -> None:
    def much(exchange: Exchange) -> None:
        exchange.stream(replay_floor=1, replay_head=1000)
        exchange.events(42, 141)
        exchange.keepalives(10.0)

    with serving(much) as server, reading(server, idle_timeout_s=0.3, buffer_events_max=8) as stream:
        until(lambda: stream.status.backpressure)
        time.sleep(0.9)  # three idle timeouts without a read of the socket
        told = stream.status
        assert (told.state, told.reason) == (ClientState.DELAYED, R.BACKPRESSURE)
        assert "8 event(s)" in told.explanation
        assert told.delivered == "41"
        assert [next(stream).id for _ in range(100)] == list(range(42, 142))
        assert not stream.status.backpressure
        assert len(server.requests) == 1


def test_a_buffer_bounded_in_bytes_lets_one_larger_event_through() -> None:
    def large(exchange: Exchange) -> None:
        exchange.stream()
        exchange.send(event(42, "x" * 5000) + event(43, "x" * 5000))

    with serving(large, gone) as server, reading(server, buffer_bytes_max=100) as stream:
        until(lambda: stream.status.backpressure)
        assert stream.status.buffered_events == 1
        assert drain(stream) == ([42, 43], None)


def idle(exchange: Exchange) -> None:
    exchange.stream(replay_floor=1, replay_head=41)
    exchange.wait_for_close()


def test_a_timeout_leaves_the_stream_usable() -> None:
    late = threading.Event()

    def waiting(exchange: Exchange) -> None:
        exchange.stream(replay_floor=1, replay_head=41)
        late.wait(10)
        exchange.events(42, 42)

    with serving(waiting, gone) as server, reading(server) as stream:
        with pytest.raises(TimeoutError):
            stream.receive(timeout_s=0.05)
        late.set()
        assert stream.receive(timeout_s=10).id == 42


def test_close_from_another_thread_ends_the_iteration_and_the_connection() -> None:
    with serving(idle) as server:
        stream = reading(server, idle_timeout_s=60.0)
        threading.Timer(0.1, stream.close).start()
        began_s = time.monotonic()
        assert drain(stream) == ([], None)
        until(lambda: not alive())
        assert time.monotonic() - began_s < 5
        stream.close()
        assert drain(stream) == ([], None)


def alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "replaylog-reader"]


def test_close_with_a_full_buffer_and_a_forgotten_stream_leave_no_thread_behind() -> None:
    with serving(run_of(42, 500)) as server:
        with reading(server, buffer_events_max=1) as stream:
            until(lambda: stream.status.backpressure)
        assert not alive()
        forgotten = reading(server)
        next(forgotten)
        del forgotten
        until(lambda: not alive())


def test_a_callers_client_is_used_and_left_open() -> None:
    with httpx.Client(headers={"X-Mine": "1"}, follow_redirects=True) as client:
        with serving(status(307, {"Location": "/there"}), run_of(42, 42), gone) as server:
            with reading(server, client=client) as stream:
                assert drain(stream) == ([42], None)
        assert {r.headers["x-mine"] for r in server.requests} == {"1"}
        assert not client.is_closed


def test_a_client_of_a_library_with_the_same_names_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As httpx2 would be: other classes, other exceptions, the same names."""
    import sys
    import types

    other = types.ModuleType("httpx_other")
    for name in ("TransportError", "UnsupportedProtocol", "LocalProtocolError", "ReadTimeout"):
        setattr(other, name, type(name, (Exception,), {}))
    calls: list[str] = []

    class Client:
        __module__ = "httpx_other.client"

        def __init__(self) -> None:
            self.inner = httpx.Client()

        def build_request(self, *args: Any, **kwargs: Any) -> httpx.Request:
            return self.inner.build_request(*args, **kwargs)

        def send(self, request: httpx.Request, **kwargs: Any) -> httpx.Response:
            calls.append(request.headers["last-event-id"])
            if len(calls) == 1:
                raise other.TransportError("not now")
            return self.inner.send(request, **kwargs)

    monkeypatch.setitem(sys.modules, "httpx_other", other)
    client = Client()
    with client.inner, serving(run_of(42, 42), gone) as server, reading(server, client=client) as stream:
        assert drain(stream) == ([42], None)
    assert calls == ["41", "41", "42"]


def test_what_connect_cannot_work_with_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="pass a sync one"):
        connect("http://127.0.0.1/", client=httpx.AsyncClient())
    with pytest.raises(TypeError, match="not a client of httpx"):
        connect("http://127.0.0.1/", client=object())
    with pytest.raises(ValueError, match="not an http"):
        connect("ftp://127.0.0.1/")
    with pytest.raises(TypeError, match="cursor is a float"):
        connect("http://127.0.0.1/", cursor=41.0)  # type: ignore[arg-type]


def test_a_request_that_cannot_be_sent_is_raised_and_not_tried_for_minutes() -> None:
    with serving(gone) as server, reading(server, headers={"X-Bad": "a\nb"}) as stream:
        with pytest.raises(httpx.LocalProtocolError):
            stream.receive(timeout_s=10)


def test_no_warning_and_no_log_where_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with serving(run_of(42, 43), gone) as server, reading(server) as stream:
            assert drain(stream) == ([42, 43], None)
    assert caplog.records == []
