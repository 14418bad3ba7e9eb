"""The verdict over HTTP: status, headers and problem stand before any stream, on every answer.

Claims of the events resource that need no open stream; the streams are in test_asgi_stream.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

import replaylog
from replaylog import Reason, Retention
from replaylog._verdict import PROBLEM_BASE, wire_of
from replaylog.asgi import App
from web import Call, ask, frames

ALWAYS = {
    "replay-verdict",
    "replay-proof",
    "session-durable",
    "replay-keepalive",
    "cache-control",
    "x-accel-buffering",
}
WINDOW = {"replay-floor", "replay-head", "replay-epoch", "replay-state"}


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(scenario)


@pytest.fixture
def log(memory_log: Any) -> Any:
    """Sessions in each state: `windowed` retains 3..5, `done` has ended, `gone` was reaped."""
    for name in ("open", "windowed", "done", "gone", "empty"):
        memory_log.create(name)
    for name in ("open", "windowed", "done", "gone"):
        memory_log.session(name).extend([(f"event {n}", "message") for n in range(1, 6)])
    memory_log.session("windowed").trim(3)
    memory_log.session("done").end(reason="complete")
    memory_log.reap("gone", reason="idle")
    return memory_log


def token(log: Any, name: str, id: int) -> str:
    with log.resume(name, id) as replay:
        return replay.verdict.from_token


def refused(log: Any, path: str, headers: list[tuple[str, str]] | None = None, method: str = "GET") -> Call:
    return run(_ask(log, method, path, headers))


async def _ask(log: Any, method: str, path: str, headers: Any = None) -> Call:
    return await ask(App(log), method, path, headers)


def cursor(value: str) -> list[tuple[str, str]]:
    return [("Last-Event-ID", value)]


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("/sessions/windowed/events", "1", Reason.BELOW_FLOOR),
        ("/sessions/windowed/events", "6", Reason.FORKED),
        ("/sessions/open/events", "0123456789abcdef.2.00000000", Reason.FORKED),
        ("/sessions/gone/events", "3", Reason.REAPED),
        ("/sessions/never/events", "3", Reason.UNKNOWN),
        ("/sessions/open/events", "three", Reason.MALFORMED),
    ],
)
def test_each_refusal_has_its_status_type_and_numbers(
    log: Any, path: str, value: str, reason: Reason
) -> None:
    answer = refused(log, path, cursor(value))
    wire = wire_of(reason)
    assert answer.status == wire.status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["replay-verdict"] == reason.value
    problem = answer.document
    assert problem["type"] == PROBLEM_BASE + wire.problem
    assert problem["status"] == wire.status
    assert problem["verdict"] == reason.value
    for member in ("title", "detail", "cursor", "floor", "head", "epoch", "lost", "restart_from"):
        assert member in problem
    assert problem["detail"]


def test_the_lost_range_and_the_way_back_are_in_the_problem(log: Any) -> None:
    problem = refused(log, "/sessions/windowed/events", cursor("1")).document
    assert (problem["cursor"], problem["floor"], problem["head"], problem["lost"]) == (1, 3, 5, 1)
    assert problem["epoch"] == f"{log.session('windowed').epoch:016x}"
    again = run(_ask(log, "HEAD", "/sessions/windowed/events", cursor(problem["restart_from"])))
    assert (again.status, again.headers["replay-verdict"]) == (200, "resumable")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("windowed", "1", True),
        ("open", "6", True),
        ("gone", "3", True),
        ("open", "x", True),
        ("never", "3", False),
        ("never", "x", False),
        ("done", "END", True),
    ],
)
def test_every_answer_carries_the_headers(log: Any, method: str, name: str, value: str, known: bool) -> None:
    if value == "END":
        value = token(log, "done", 5) + ".end"
    answer = refused(log, f"/sessions/{name}/events", cursor(value), method)
    assert set(answer.headers) >= ALWAYS
    assert (set(answer.headers) >= WINDOW) == known
    assert answer.headers["cache-control"] == "no-store, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["replay-keepalive"] == "15"
    assert "replay-stall-max" not in answer.headers, "nobody enforces it here"


def test_a_reaped_session_is_gone_and_says_where_it_stood(log: Any) -> None:
    answer = refused(log, "/sessions/gone/events", cursor("3"))
    assert answer.status == 410
    assert answer.headers["replay-state"] == "reaped"
    assert answer.headers["replay-head"] == "5"
    assert answer.headers["replay-floor"] == "6"


@pytest.mark.parametrize("name", ["open", "windowed", "done", "empty"])
def test_head_gives_the_verdict_alone(log: Any, name: str) -> None:
    head = log.session(name).head
    for value in (str(head), token(log, name, head)):
        answer = refused(log, f"/sessions/{name}/events", cursor(value), "HEAD")
        assert answer.status == 200
        assert answer.body == b""
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["replay-verdict"] == "at-head"
        assert answer.headers["replay-head"] == str(head)


def test_the_proof_is_chain_for_a_token_and_window_for_an_integer(log: Any) -> None:
    by_token = refused(log, "/sessions/open/events", cursor(token(log, "open", 2)), "HEAD")
    by_integer = refused(log, "/sessions/open/events", cursor("2"), "HEAD")
    assert by_token.headers["replay-proof"] == "chain"
    assert by_token.headers["session-durable"] == "?1"
    assert by_integer.headers["replay-proof"] == "window"
    assert by_integer.headers["session-durable"] == "?0", "memory mode, and no epoch was compared"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_at_the_head_of_an_ended_session_the_end_mark_is_204(log: Any, method: str) -> None:
    answer = refused(log, "/sessions/done/events", cursor(token(log, "done", 5) + ".end"), method)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["replay-verdict"] == "at-head"
    assert answer.headers["replay-state"] == "ended"


@pytest.mark.parametrize(
    "value",
    [
        "041",
        "+1",
        "-1",
        " ",
        "1_0",
        "٤١",
        "0x1",
        "1.0",
        ".41.",
        "41.",
        "1e3",
        "9223372036854775808",
        "1;",
        "a" * 5000,
    ],
)
def test_what_is_not_a_cursor_is_malformed_and_never_a_stream(log: Any, value: str) -> None:
    assert refused(log, "/sessions/open/events", cursor(value)).status == 400


def test_a_repeated_header_is_malformed(log: Any) -> None:
    twice = [*cursor("1"), *cursor("1")]
    assert refused(log, "/sessions/open/events", twice).status == 400
    assert refused(log, "/sessions/open/events?last_event_id=1&last_event_id=1").status == 400


def test_an_unknown_origin_of_the_reader_is_malformed(log: Any) -> None:
    for query in ("?from=begin", "?from=", "?from=start&from=head"):
        assert refused(log, f"/sessions/open/events{query}").status == 400


def test_the_header_wins_over_the_query_and_an_empty_one_counts_as_absent(log: Any) -> None:
    path = "/sessions/windowed/events?last_event_id=1&from=head"
    assert refused(log, path, cursor("4"), "HEAD").headers["replay-verdict"] == "resumable"
    assert refused(log, path, cursor(""), "HEAD").status == 409
    assert (
        refused(log, "/sessions/windowed/events?last_event_id=&from=head", cursor(""), "HEAD").status == 200
    )


def test_start_is_judged_and_floor_and_head_are_where_they_are(log: Any) -> None:
    path = "/sessions/windowed/events"
    assert refused(log, path).status == refused(log, f"{path}?from=start").status == 409
    assert refused(log, f"{path}?from=floor", method="HEAD").headers["replay-verdict"] == "resumable"
    assert refused(log, f"{path}?from=head", method="HEAD").headers["replay-verdict"] == "at-head"


# --- a browser sees neither status nor headers ----------------------------------------------------


@pytest.mark.parametrize(("name", "value"), [("windowed", "1"), ("never", "1"), ("gone", "1"), ("open", "?")])
def test_a_refusal_can_come_as_an_event(log: Any, name: str, value: str) -> None:
    plain = refused(log, f"/sessions/{name}/events", cursor(value))
    in_band = refused(log, f"/sessions/{name}/events?refuse=event", cursor(value))
    assert in_band.status == 200
    assert in_band.headers["content-type"] == "text/event-stream"
    assert in_band.headers["replay-verdict"] == plain.headers["replay-verdict"]
    (frame,) = in_band.frames
    assert (frame.event, frame.id) == ("replay-refused", "refused")
    assert frame.document == plain.document


def test_a_refused_browser_that_comes_back_is_told_to_stop(log: Any) -> None:
    path = "/sessions/windowed/events"
    assert refused(log, f"{path}?refuse=event", cursor("refused")).status == 204
    assert refused(log, path, cursor("refused")).status == 400


def test_the_refuse_header_overrides_the_query(log: Any) -> None:
    path = "/sessions/windowed/events"
    assert refused(log, path, [*cursor("1"), ("Replay-Refuse", "event")]).status == 200
    assert refused(log, f"{path}?refuse=event", [*cursor("1"), ("Replay-Refuse", "status")]).status == 409


# --- no read creates anything ---------------------------------------------------------------------


HOSTILE = ["never", "%00", "%ff", "%0a", "..%2f..%2fetc", "a" * 3000, "%F0%9F%92%A9", "x%2Fevents", "'%22%3C"]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_read_creates_a_session(log: Any, name: str) -> None:
    before = log.sessions()
    for method in ("GET", "HEAD"):
        for value in ("0", "41", "x", "0123456789abcdef.41.00000000", "\xff\xfe", ""):
            answer = refused(log, f"/sessions/{name}/events", cursor(value), method)
            assert answer.status in (400, 404)
        assert refused(log, f"/sessions/{name}", method=method).status in (400, 404)
    assert log.sessions() == before


def test_a_session_that_was_reaped_or_recreated_never_serves_its_old_cursors(log: Any) -> None:
    old = token(log, "open", 5)
    log.reap("open")
    assert refused(log, "/sessions/open/events", cursor(old)).status == 410
    session = log.create("open")
    for _ in range(7):
        session.append("other")
        answer = refused(log, "/sessions/open/events", cursor(old))
        assert (answer.status, answer.headers["replay-verdict"]) == (409, "forked")


def test_everything_aged_out_is_still_at_head_for_who_has_seen_all(log: Any) -> None:
    log.session("windowed").trim(6)
    assert refused(log, "/sessions/windowed/events", cursor("5"), "HEAD").headers["replay-floor"] == "6"
    below = refused(log, "/sessions/windowed/events", cursor("4"))
    assert (below.status, below.document["lost"]) == (409, 1)


def test_ended_sessions_replay_and_say_why_they_ended(log: Any) -> None:
    answer = refused(log, "/sessions/done/events", cursor(token(log, "done", 3)))
    assert [frame.event for frame in answer.frames] == ["replay", "message", "message", "replay-end"]
    assert answer.frames[-1].id == token(log, "done", 5) + ".end"
    assert answer.frames[-1].document == {"head": 5, "reason": "complete"}
    at_head = refused(log, "/sessions/done/events", cursor(token(log, "done", 5)))
    assert [frame.event for frame in at_head.frames] == ["replay", "replay-end"]
    assert at_head.complete


def test_the_problem_of_a_malformed_cursor_names_the_window(log: Any) -> None:
    problem = refused(log, "/sessions/windowed/events", cursor("x")).document
    assert (problem["cursor"], problem["floor"], problem["head"]) == (None, 3, 5)


def test_payloads_go_through_sse_unharmed() -> None:
    payloads = ["a\nb", "\n", "", " leading space", "id: 99", "data: x\n\nid: 7\n\n", "\u2028", "\n" * 2048]
    with replaylog.open(None, durability="memory", retention=Retention(events=100)) as log:
        session = log.create("s")
        for payload in payloads:
            session.append(payload)
        session.append(b"\xff\r\n", kind="raw")
        session.end()
        answer = run(_ask(log, "GET", "/sessions/s/events"))
    got = [frame for frame in frames(answer.body) if not frame.event.startswith("replay")]
    assert [frame.data for frame in got[:-1]] == payloads
    assert [frame.number for frame in got] == list(range(1, len(payloads) + 2))
    assert (got[-1].event, got[-1].data) == ("raw;base64", "/w0K")


def test_problem_documents_are_json_whatever_the_request_held(log: Any) -> None:
    for value in ('"', "\\", "\u00e9", "<script>"):
        json.loads(refused(log, "/sessions/open/events", cursor(value)).body)
