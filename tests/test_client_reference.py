"""The reference's semantics: which check comes first, what each one says."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replaylog._errors import ReplayLogError
from replaylog.client import (
    ClientReason,
    ClientState,
    Event,
    ReconnectResult,
    StreamResumptionError,
    drain_with_continuity,
    verify_resumption,
)


def at(id: int) -> Event:
    return Event(id, "message", {})


def result(
    status: int = 200, floor: int | None = None, first: int | None = 42, durable: bool = True
) -> ReconnectResult:
    return ReconnectResult(status, floor, None if first is None else at(first), durable)


R = ClientReason
EVERYTHING_WRONG = {"floor": 67, "durable": False, "first": None}

# Each row is wrong in everything that comes after its own check, so the order is tested too.
REFUSED = [
    (result(404, **EVERYTHING_WRONG), R.UNKNOWN, "session lost: status=404; re-initialize required"),
    (result(410, **EVERYTHING_WRONG), R.REAPED, "session lost: status=410; re-initialize required"),
    (result(409, **EVERYTHING_WRONG), R.STATUS, "unexpected reconnect status=409"),
    (result(204, **EVERYTHING_WRONG), R.STATUS, "unexpected reconnect status=204"),
    (
        result(**EVERYTHING_WRONG),
        R.BELOW_FLOOR,
        "cursor 41 below replay floor 67; events 42..66 are lost",
    ),
    (
        result(first=None, durable=False),
        R.NOT_DURABLE,
        "session not durable across reconnect; implicit re-creation cannot honor Last-Event-ID",
    ),
    (result(first=None), R.EMPTY, "reconnect returned an empty stream; cannot prove continuity"),
    (
        result(first=130),
        R.GAP,
        "replay gap: expected event id 42, got 130; silent skip of 88 event(s)",
    ),
    (
        result(first=41),
        R.DUPLICATE,
        "duplicate: expected event id 42, got 41, which cursor 41 is already past",
    ),
    (result(first=7), R.DUPLICATE, "duplicate: expected event id 42, got 7, which cursor 41 is already past"),
]


@pytest.mark.parametrize(("reconnect", "reason", "message"), REFUSED)
def test_the_first_check_that_fails_is_named(
    reconnect: ReconnectResult, reason: ClientReason, message: str
) -> None:
    with pytest.raises(StreamResumptionError) as refused:
        verify_resumption(41, reconnect)
    assert str(refused.value) == message
    assert refused.value.reason is reason


def test_lost_sessions_are_told_from_failed_resumptions() -> None:
    states = {}
    for status in (404, 410, 409, 500):
        with pytest.raises(StreamResumptionError) as refused:
            verify_resumption(41, result(status))
        states[status] = refused.value.state
    lost, failed = ClientState.SESSION_LOST, ClientState.RESUMPTION_FAILED
    assert states == {404: lost, 410: lost, 409: failed, 500: failed}


@pytest.mark.parametrize("floor", [None, 1, 42])
def test_the_successor_of_the_cursor_is_returned(floor: int | None) -> None:
    assert verify_resumption(41, result(floor=floor)) == at(42)


def test_the_retained_floor_counts_only_where_none_was_declared() -> None:
    assert verify_resumption(41, result(floor=42), retained_floor=67) == at(42)
    with pytest.raises(StreamResumptionError, match=r"below replay floor 67; events 42\.\.66"):
        verify_resumption(41, result(), retained_floor=67)


def test_drain_returns_all_events() -> None:
    assert drain_with_continuity(41, [at(43), at(44)], result()) == [at(42), at(43), at(44)]


@pytest.mark.parametrize(("ids", "expected", "got"), [([43, 45], 44, 45), ([42], 43, 42), ([43, 43], 44, 43)])
def test_drain_refuses_the_first_id_that_does_not_follow(ids: list[int], expected: int, got: int) -> None:
    with pytest.raises(
        StreamResumptionError, match=f"^non-contiguous stream: expected {expected}, got {got}$"
    ):
        drain_with_continuity(41, map(at, ids), result())


@given(st.integers(0, 50), st.lists(st.integers(0, 60), max_size=20))
def test_drain_returns_a_contiguous_run_or_raises(cursor: int, ids: list[int]) -> None:
    whole = ids == list(range(cursor + 1, cursor + 1 + len(ids))) and bool(ids)
    reconnect = result(first=ids[0] if ids else None)
    try:
        drained = drain_with_continuity(cursor, map(at, ids[1:]), reconnect)
    except StreamResumptionError:
        assert not whole
    else:
        assert whole
        assert [event.id for event in drained] == ids


def test_the_error_is_a_runtime_error_and_ours_and_survives_pickling() -> None:
    error = StreamResumptionError.because(R.GAP, cursor=41, expected=42, got=130, skipped=88)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, RuntimeError)
    assert isinstance(again, ReplayLogError)
    assert (str(again), again.reason, again.numbers) == (str(error), R.GAP, error.numbers)
    assert str(StreamResumptionError("as it is")) == "as it is"
