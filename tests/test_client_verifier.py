"""The verifier's table: each answer, each frame and each end of a connection, one claim per row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replaylog._cursor import FLOOR, HEAD, START, Cursor
from replaylog.client import ClientReason, ClientState, Frame, StreamEvent, Verifier
from replaylog.client.outcome import STATE_OF, TRANSITIONS, explain

R = ClientReason
EPOCH, OTHER = "00000000000000ab", "00000000000000cd"
DELAYED = ClientState.DELAYED


def token(id: int, epoch: str = EPOCH, tag: int = 0, end: str = "") -> str:
    return f"{epoch}.{id}.{tag:08x}{end}"


def numbered(id: object, data: str | None = "x", event: str = "message") -> Frame:
    return Frame(event, data, str(id), has_id=True)


def control(event: str, id: str = "", **data: Any) -> Frame:
    return Frame(event, json.dumps(data), id, has_id=bool(id))


def opened(
    cursor: Any = 41, status: int = 200, settings: dict[str, Any] | None = None, **headers: Any
) -> Verifier:
    """A verifier after its first answer; `replay_floor=1` is the header Replay-Floor: 1."""
    verifier = Verifier(cursor, **(settings or {}))
    named = {name.replace("_", "-").title(): str(value) for name, value in headers.items()}
    verifier.on_response(status, named, now_s=0.0)
    return verifier


def feed(verifier: Verifier, *frames: Frame) -> list[StreamEvent]:
    events = (verifier.on_event(frame, now_s=0.0) for frame in frames)
    return [event for event in events if event is not None]


# --- tables --------------------------------------------------------------------------------------


def test_every_reason_has_one_state_and_a_sentence_and_only_delayed_is_left() -> None:
    assert set(STATE_OF) == set(ClientReason)
    assert all(explain(reason, {}) for reason in ClientReason)
    assert {state for state, after in TRANSITIONS.items() if after} == {DELAYED}


# --- answers -------------------------------------------------------------------------------------

ANSWERS: list[tuple[Any, int, dict[str, Any], ClientReason]] = [
    # the reference's order, on a stream that is wrong in all that comes after
    (41, 404, {"replay_floor": 67}, R.UNKNOWN),
    (41, 410, {"replay_floor": 67}, R.REAPED),
    (41, 409, {}, R.STATUS),
    (41, 200, {"replay_floor": 67, "session_durable": "?0"}, R.BELOW_FLOOR),
    (41, 200, {"replay_floor": 1, "session_durable": "?0"}, R.NOT_DURABLE),
    # declared windows: floor - 1 <= cursor <= head
    (41, 200, {"replay_floor": 42, "replay_head": 130}, R.PROVEN),
    (41, 200, {"replay_floor": 43, "replay_head": 130}, R.BELOW_FLOOR),
    (41, 200, {"replay_floor": 42, "replay_head": 41}, R.AT_HEAD),
    (41, 200, {"replay_floor": 1, "replay_head": 40}, R.FORKED),
    (41, 200, {"replay_floor": 42}, R.PROVEN),
    (41, 200, {"replay_head": 41}, R.AT_HEAD),
    (41, 200, {"replay_head": 130}, R.UNPROVEN),
    (41, 200, {"replay_verdict": "resumable"}, R.PROVEN),
    (41, 200, {}, R.UNPROVEN),
    # what cannot be read is not declared
    (41, 200, {"replay_floor": "+42"}, R.UNPROVEN),
    (41, 200, {"replay_floor": "42, 42"}, R.UNPROVEN),
    (41, 200, {"replay_floor": "٤٢"}, R.UNPROVEN),
    # nothing is at stake
    (None, 200, {}, R.UNPROVEN),
    (None, 200, {"session_durable": "?0"}, R.UNPROVEN),
    (0, 200, {"session_durable": "?0"}, R.UNPROVEN),
    (0, 200, {"replay_floor": 2, "replay_head": 5}, R.BELOW_FLOOR),
    # epochs
    (token(41), 200, {"replay_floor": 1, "replay_head": 50, "replay_epoch": EPOCH}, R.PROVEN),
    (token(41), 200, {"replay_floor": 1, "replay_head": 50, "replay_epoch": OTHER}, R.EPOCH_CHANGED),
    (41, 200, {"replay_floor": 1, "replay_head": 50, "replay_epoch": OTHER}, R.PROVEN),
    # refusals by name
    (41, 409, {"replay_verdict": "below-floor", "replay_floor": 67}, R.BELOW_FLOOR),
    (41, 409, {"replay_verdict": "forked"}, R.FORKED),
    (41, 400, {"replay_verdict": "malformed"}, R.MALFORMED),
    (41, 404, {"replay_verdict": "unknown"}, R.UNKNOWN),
    (41, 410, {"replay_verdict": "reaped"}, R.REAPED),
    (41, 404, {"replay_verdict": "below-floor"}, R.UNKNOWN),
    (41, 200, {"replay_verdict": "below-floor", "replay_floor": 67}, R.BELOW_FLOOR),
    (41, 200, {"replay_verdict": "reaped"}, R.REAPED),
    # refusals by status
    (41, 400, {}, R.BAD_REQUEST),
    (41, 401, {}, R.UNAUTHORIZED),
    (41, 403, {}, R.FORBIDDEN),
    (41, 418, {}, R.STATUS),
    (41, 206, {}, R.STATUS),
    (41, 307, {"location": "https://elsewhere.example/"}, R.REDIRECTED),
    (41, 304, {}, R.STATUS),
    # no verdict
    (41, 408, {}, R.CONNECTING),
    (41, 429, {}, R.CONNECTING),
    (41, 500, {}, R.CONNECTING),
    (41, 503, {"replay_floor": 67}, R.CONNECTING),
    # the end
    (41, 204, {}, R.ENDED),
    (41, 204, {"replay_head": 41}, R.ENDED),
    (41, 204, {"replay_head": 130}, R.SKIPPED),
    (41, 204, {"replay_head": 7}, R.REWOUND),
    (None, 204, {"replay_head": 130}, R.ENDED),
    # not a stream
    (41, 200, {"content_type": "text/html"}, R.NOT_A_STREAM),
    (41, 200, {"content_encoding": "gzip"}, R.NOT_A_STREAM),
    (41, 200, {"content_type": "text/event-stream; charset=utf-8"}, R.UNPROVEN),
    # opaque ids
    ("stream_a7", 200, {}, R.NO_PROOF),
    ("stream_a7", 200, {"replay_floor": 1, "replay_head": 9}, R.PROVEN),
]


@pytest.mark.parametrize(("cursor", "status", "headers", "reason"), ANSWERS)
def test_answer(cursor: Any, status: int, headers: dict[str, Any], reason: ClientReason) -> None:
    verifier = opened(cursor, status, **headers)
    assert verifier.reason is reason
    assert verifier.state is STATE_OF[reason]
    assert (verifier.error is None) == (verifier.state in (DELAYED, ClientState.FINISHED))


def test_a_refusal_has_its_numbers_from_the_headers_or_from_the_problem() -> None:
    problem = json.dumps({"verdict": "below-floor", "floor": 67, "head": 130, "restart_from": token(66)})
    verifier = Verifier(41)
    verifier.on_response(409, {}, now_s=0.0, problem=problem)
    assert verifier.numbers == {
        "cursor": 41,
        "status": 409,
        "floor": 67,
        "head": 130,
        "lost": 25,
        "lost_first": 42,
        "lost_last": 66,
        "restart_from": token(66),
    }
    assert verifier.explanation == "cursor 41 below replay floor 67; events 42..66 are lost"


def test_a_reader_without_a_cursor_is_told_what_is_lost_from_the_start() -> None:
    verifier = opened(None, 409, replay_verdict="below-floor", replay_floor=67)
    assert verifier.explanation == "cursor 0 below replay floor 67; events 1..66 are lost"


@pytest.mark.parametrize(
    "problem", ["", "[", "[]", "null", '{"verdict": []}', '{"floor": true}', "[" * 100_000]
)
def test_a_problem_that_says_nothing_is_not_needed(problem: str) -> None:
    verifier = Verifier(41)
    verifier.on_response(404, {}, now_s=0.0, problem=problem)
    assert verifier.reason is R.UNKNOWN


@pytest.mark.parametrize(
    ("keepalive", "stall", "conflicts"),
    [("15", "30", False), ("60", "29.5", False), ("60", "30", True), ("90", None, True), (None, "90", False)],
)
def test_a_server_that_may_be_silent_for_longer_than_the_idle_timeout_is_reported(
    keepalive: str | None, stall: str | None, conflicts: bool
) -> None:
    declared = {"replay_keepalive": keepalive, "replay_stall_max": stall}
    verifier = opened(41, replay_floor=1, **{k: v for k, v in declared.items() if v is not None})
    assert (verifier.timeout_conflict is not None) == conflicts
    assert verifier.state is DELAYED
    if conflicts:
        assert "set idle_timeout_s above 90" in str(verifier.timeout_conflict)


# --- events --------------------------------------------------------------------------------------

FRAMES: list[tuple[Any, list[Frame], list[int | None], ClientReason]] = [
    (41, [numbered(42), numbered(43)], [42, 43], R.PROVEN),
    (41, [numbered(130)], [], R.GAP),
    (41, [numbered(42), numbered(44)], [42], R.GAP),
    (41, [numbered(41)], [], R.DUPLICATE),
    (41, [numbered(42), numbered(42)], [42], R.DUPLICATE),
    (41, [numbered(42), numbered(7), numbered(43)], [42], R.DUPLICATE),
    (None, [numbered(130), numbered(131)], [130, 131], R.PROVEN),
    (None, [numbered(130), numbered(132)], [130], R.GAP),
    (0, [numbered(1)], [1], R.PROVEN),
    (0, [numbered(2)], [], R.GAP),
    (START, [numbered(2)], [], R.GAP),
    (FLOOR, [numbered(67)], [67], R.PROVEN),
    (HEAD, [numbered(130)], [130], R.PROVEN),
    # epochs and tags
    (token(41), [numbered(token(42))], [42], R.PROVEN),
    (token(41), [numbered(token(42, OTHER))], [], R.EPOCH_CHANGED),
    (token(41), [numbered(42)], [], R.EPOCH_CHANGED),
    (41, [numbered(token(42)), numbered(token(43, OTHER))], [42], R.EPOCH_CHANGED),
    # events without an id field are not counted; with a cursor at stake they wait for the proof
    (41, [numbered(42), Frame(data="ping", id="42"), numbered(43)], [42, None, 43], R.PROVEN),
    (41, [Frame(data="ping", id="41"), numbered(42)], [42], R.PROVEN),
    (None, [Frame(data="ping")], [None], R.UNPROVEN),
    (41, [Frame(data="reset", id="", has_id=True), numbered(42)], [42], R.PROVEN),
    # an id alone moves the position, or restates it
    (41, [numbered(42, data=None), numbered(43)], [43], R.PROVEN),
    (41, [numbered(41, data=None), numbered(42)], [42], R.PROVEN),
    (41, [numbered(43, data=None)], [], R.GAP),
    # opaque ids
    (None, [numbered("a"), numbered("b")], [None, None], R.PROVEN),
    (None, [numbered("a"), numbered("a")], [None], R.DUPLICATE),
    (41, [numbered("a")], [], R.NO_PROOF),
    # control frames
    (token(41), [control("replay", token(41), floor=1, head=42), numbered(token(42))], [42], R.AT_HEAD),
    (token(41), [control("replay", token(41), floor=1, head=41)], [], R.AT_HEAD),
    (token(41), [control("replay", token(41, tag=7))], [], R.TAG_CHANGED),
    (token(41), [control("replay", token(41, OTHER))], [], R.EPOCH_CHANGED),
    (token(41), [control("replay", token(129))], [], R.SKIPPED),
    (token(41), [control("replay", token(7))], [], R.REWOUND),
    (token(41), [control("replay", token(41), floor=67, head=130)], [], R.BELOW_FLOOR),
    (41, [control("replay", "41"), numbered(42)], [42], R.PROVEN),
    (41, [control("replay", "nonsense"), numbered(43)], [], R.GAP),
    (41, [control("replay", token(41)), numbered(token(42))], [42], R.PROVEN),
    (41, [control("replay", token(41)), numbered(42)], [], R.EPOCH_CHANGED),
    (0, [control("replay", token(0), floor=1, head=0)], [], R.AT_HEAD),
    (0, [control("replay", token(66), floor=67, head=130)], [], R.SKIPPED),
    (None, [control("replay", token(66)), numbered(token(67))], [67], R.PROVEN),
    (None, [control("replay", token(66)), numbered(token(68))], [], R.GAP),
    (41, [control("replay-caught-up", token(41))], [], R.AT_HEAD),
    (41, [numbered(42), control("replay-caught-up", token(130))], [42], R.SKIPPED),
    (41, [control("replay-caught-up")], [], R.UNPROVEN),
    (41, [control("replay-from-the-future", token(99)), numbered(42)], [42], R.PROVEN),
    (41, [numbered(42), control("replay-overrun", token(42), floor=67)], [42], R.OVERRUN),
    (41, [control("replay-refused", "refused", verdict="forked")], [], R.FORKED),
    (41, [control("replay-refused", "refused", verdict="reaped")], [], R.REAPED),
    (41, [control("replay-refused", "refused")], [], R.STATUS),
    (41, [numbered(42), control("replay-end", token(42, end=".end"))], [42], R.ENDED),
    (41, [control("replay-end", token(42, end=".end"))], [], R.SKIPPED),
    (41, [control("replay-end")], [], R.UNPROVEN),
    (41, [control("replay-end", token(41, end=".end")), numbered(42)], [], R.ENDED),
]


@pytest.mark.parametrize(("cursor", "frames", "ids", "reason"), FRAMES)
def test_frames(cursor: Any, frames: list[Frame], ids: list[int | None], reason: ClientReason) -> None:
    verifier = opened(cursor)
    assert [event.id for event in feed(verifier, *frames)] == ids
    assert verifier.reason is reason


def test_the_incident_ring_evicted_events_and_the_server_streams_from_its_head() -> None:
    verifier = opened(41)
    assert feed(verifier, numbered(130)) == []
    assert verifier.explanation == "replay gap: expected event id 42, got 130; silent skip of 88 event(s)"
    assert verifier.numbers == {"cursor": 41, "expected": 42, "got": 130, "skipped": 88}
    assert verifier.last_event_id == "41"


def test_the_third_variant_an_idle_stream_of_a_session_created_anew_is_not_healthy() -> None:
    verifier = opened(41)
    for second in range(89):
        assert verifier.on_bytes(now_s=float(second)) is DELAYED
    assert verifier.on_bytes(now_s=90.0) is ClientState.RESUMPTION_FAILED
    assert verifier.reason is R.EMPTY


@pytest.mark.parametrize(
    "verifier",
    [opened(41, replay_floor=1, replay_head=41), opened(41, replay_floor=1), opened(None), opened(0)],
    ids=["proven at head", "floor declared", "no cursor", "nothing seen yet"],
)
def test_time_alone_changes_nothing(verifier: Verifier) -> None:
    assert verifier.on_bytes(now_s=1e9) is DELAYED
    assert verifier.on_idle(now_s=2e9) is DELAYED
    assert verifier.reason is R.DROPPED


def test_a_floor_alone_does_not_excuse_a_gap() -> None:
    verifier = opened(41, replay_floor=1)
    assert feed(verifier, numbered(43)) == []
    assert verifier.reason is R.GAP


def test_an_integer_cursor_becomes_a_token_and_the_end_leaves_its_mark() -> None:
    verifier = opened(41)
    feed(verifier, control("replay", token(41)))
    assert verifier.last_event_id == token(41)
    feed(verifier, numbered(token(42)), control("replay-end", token(42, end=".end"), reason="done"))
    assert verifier.last_event_id == token(42, end=".end")
    assert verifier.state is ClientState.FINISHED
    assert verifier.numbers["end_reason"] == "done"


def test_events_without_an_id_before_the_proof_are_counted() -> None:
    verifier = opened(41)
    assert feed(verifier, Frame(data="ping"), Frame(data="ping")) == []
    assert verifier.withheld == 2


def test_without_proof_required_opaque_ids_and_undurable_sessions_pass_and_gaps_do_not() -> None:
    trusting = {"require_proof": False}
    assert [e.cursor for e in feed(opened("a", settings=trusting), numbered("b"), numbered("c"))] == [
        "b",
        "c",
    ]
    assert opened(41, settings=trusting, session_durable="?0").state is DELAYED
    verifier = opened(41, settings=trusting)
    assert feed(verifier, numbered(43)) == []
    assert verifier.reason is R.GAP


def test_an_id_of_reads_foreign_ids() -> None:
    settings = {"id_of": lambda text: int(text.rpartition("_")[2])}
    verifier = opened("stream_41", settings=settings)
    assert [e.cursor for e in feed(verifier, numbered("stream_42"))] == ["stream_42"]
    assert feed(verifier, numbered("stream_44")) == []
    assert verifier.reason is R.GAP
    assert opened("stream_x", settings=settings).reason is R.NO_PROOF


# --- the ends of connections ---------------------------------------------------------------------


def test_reconnects_without_progress_are_bounded_and_the_cursor_is_kept() -> None:
    verifier = Verifier(41, empty_reconnects_max=3)
    for attempt in range(4):
        assert verifier.state is DELAYED, attempt
        assert verifier.last_event_id == "41"
        verifier.on_response(200, {}, now_s=0.0)
        verifier.on_close(now_s=0.0)
    assert verifier.reason is R.EMPTY
    assert verifier.numbers["reconnects"] == 4


def test_progress_starts_the_count_again() -> None:
    verifier = Verifier(0, empty_reconnects_max=1)
    for id in range(1, 50):
        for event in ([], [numbered(id)]):
            verifier.on_response(200, {}, now_s=0.0)
            feed(verifier, *event)
            verifier.on_close(now_s=0.0)
    assert verifier.id == 49
    assert verifier.state is DELAYED


def test_a_stream_proven_at_head_may_be_cut_as_often_as_it_likes() -> None:
    verifier = Verifier(41)
    for _ in range(1000):
        verifier.on_response(200, {"Replay-Floor": "1", "Replay-Head": "41"}, now_s=0.0)
        verifier.on_close(now_s=0.0)
    assert verifier.state is DELAYED


def test_no_answer_keeps_the_state_until_the_bound_and_an_answer_resets_it() -> None:
    verifier = Verifier(41, unreachable_max_s=300.0)
    assert verifier.on_unreachable(now_s=100.0) is DELAYED
    assert verifier.unreachable_left_s(150.0) == 250.0
    assert verifier.on_response(503, {}, now_s=399.0) is DELAYED
    verifier.on_response(200, {"Replay-Floor": "1"}, now_s=399.5)
    verifier.on_close(now_s=399.6)
    assert verifier.on_unreachable(now_s=400.0) is DELAYED
    assert verifier.on_response(429, {}, now_s=699.0) is DELAYED
    assert verifier.on_unreachable(now_s=700.0) is ClientState.RESUMPTION_FAILED
    assert verifier.reason is R.UNREACHABLE
    assert verifier.numbers["unreachable_s"] == 300.0


def test_a_verdict_is_final() -> None:
    verifier = opened(41, 404)
    verifier.on_response(200, {"Replay-Floor": "1", "Replay-Head": "99"}, now_s=1.0)
    assert feed(verifier, numbered(42)) == []
    verifier.on_close(now_s=1.0)
    verifier.on_unreachable(now_s=1e9)
    assert verifier.reason is R.UNKNOWN


def test_a_frame_without_an_open_stream_yields_nothing() -> None:
    verifier = Verifier(41)
    assert feed(verifier, numbered(42)) == []
    assert verifier.reason is R.CONNECTING


# --- cursors and payloads ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cursor", "sent"),
    [
        (None, None),
        ("", None),
        (0, "0"),
        (41, "41"),
        (token(41), token(41)),
        (token(41).encode(), token(41)),
        (Cursor(41), "41"),
        (Cursor(41, 0xAB, 7, ended=True), token(41, tag=7, end=".end")),
        ("opaque", "opaque"),
        (START, "0"),
        (FLOOR, None),
    ],
)
def test_the_cursor_that_is_sent(cursor: Any, sent: str | None) -> None:
    assert Verifier(cursor).last_event_id == sent


@pytest.mark.parametrize(
    ("cursor", "error"),
    [
        (True, TypeError),
        (41.0, TypeError),
        ([], TypeError),
        (-1, ValueError),
        (2**63, ValueError),
        ("4\n1", ValueError),
    ],
)
def test_what_is_not_a_cursor(cursor: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Verifier(cursor)


@pytest.mark.parametrize(
    ("frame", "kind", "payload"),
    [
        (numbered(1, "a", "k"), "k", "a"),
        (numbered(1, "", "k"), "k", ""),
        (numbered(1, "YQ0K/w==", "k;base64"), "k", b"a\r\n\xff"),
        (numbered(1, "", "k;base64"), "k", b""),
        (numbered(1, "YQ==", "message;base64"), "message", b"a"),
        (numbered(1, "not base64", "k;base64"), "k;base64", "not base64"),
        (numbered(1, "é", "k;base64"), "k;base64", "é"),
    ],
)
def test_payloads_are_text_or_the_exact_bytes(frame: Frame, kind: str, payload: str | bytes) -> None:
    (event,) = feed(opened(0), frame)
    assert (event.kind, event.payload, event.data) == (kind, payload, payload)


def test_a_json_payload_is_read_on_demand() -> None:
    (event,) = feed(opened(0), numbered(1, '{"pct":10}'))
    assert event.json() == {"pct": 10}
