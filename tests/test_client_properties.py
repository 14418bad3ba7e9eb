"""Properties of the verifier: no sequence of inputs ever yields an event out of order, twice, or
past a hole; a verdict is final; and an honest server's events all come through, however it is cut.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replaylog.client import ClientState, Frame, SseParser, Verifier, checks

EPOCHS = ("00000000000000ab", "00000000000000cd")

ids = st.integers(0, 12)
tokens = st.builds(
    lambda epoch, id, tag, end: f"{epoch}.{id}.{tag:08x}{end}",
    st.sampled_from(EPOCHS),
    ids,
    st.integers(0, 1),
    st.sampled_from(["", "", "", ".end"]),
)
names = st.one_of(ids.map(str), tokens, st.sampled_from(["", "opaque", "007", "-1", "refused"]))
kinds = st.sampled_from(
    [
        "message",
        "k",
        "replay",
        "replay-caught-up",
        "replay-end",
        "replay-overrun",
        "replay-refused",
        "replay-x",
    ]
)
datas = st.one_of(
    st.none(),
    st.sampled_from(["", "x", "{", "[]"]),
    st.fixed_dictionaries({}, optional={"floor": ids, "head": ids, "verdict": st.just("forked")}).map(
        json.dumps
    ),
)
frames = st.builds(Frame, kinds, datas, names, st.booleans())
headers = st.fixed_dictionaries(
    {},
    optional={
        "Replay-Floor": ids.map(str),
        "Replay-Head": ids.map(str),
        "Replay-Epoch": st.sampled_from(EPOCHS),
        "Replay-Verdict": st.sampled_from(["resumable", "at-head", "below-floor"]),
        "Session-Durable": st.sampled_from(["?0", "?1"]),
    },
)
statuses = st.sampled_from([200] * 12 + [204, 302, 400, 404, 409, 410, 429, 503])
steps = st.one_of(
    st.tuples(st.just("on_response"), statuses, headers),
    st.tuples(st.just("on_event"), frames),
    # Mostly what an honest server would send next, or else no run gets beyond its first event.
    st.tuples(st.just("next"), st.integers(1, 2)),
    st.tuples(
        st.sampled_from(["next"] * 6 + ["on_close", "on_idle", "on_bytes", "on_unreachable"]), st.just(1)
    ),
)
cursors = st.one_of(st.none(), ids, tokens)


def apply(verifier: Verifier, step: tuple[Any, ...], now_s: float) -> Any:
    name, *args = step
    if name == "next":
        following = Frame("message", "x", str((verifier.id or 0) + args[0]), has_id=True)
        return verifier.on_event(following, now_s=now_s)
    if name in ("on_close", "on_idle", "on_bytes", "on_unreachable"):
        args = []
    return getattr(verifier, name)(*args, now_s=now_s)


@settings(max_examples=300)
@given(cursors, st.booleans(), st.lists(steps, max_size=40))
def test_no_input_yields_an_event_out_of_order_twice_or_past_a_hole(
    cursor: Any, require_proof: bool, inputs: list[tuple[Any, ...]]
) -> None:
    verifier = Verifier(cursor, require_proof=require_proof)
    verifier.on_response(200, {}, now_s=0.0)
    position, final = verifier.id, None
    for now_s, step in enumerate(inputs):
        got = apply(verifier, step, float(now_s))
        if final is not None:
            assert verifier.reason is final
            assert got is None or got is verifier.state
        if hasattr(got, "payload") and got.id is not None:
            assert position is None or got.id == position + 1
            assert verifier.last_event_id == got.cursor
        # The position itself never jumps either: what is sent with the next request is proven.
        if verifier.id is not None:
            assert position is None or position <= verifier.id <= position + 1
            position = verifier.id
        final = verifier.reason if verifier.state is not ClientState.DELAYED else None


def test_the_property_above_has_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "check_successor", lambda held, event: None)
    with pytest.raises((AssertionError, ExceptionGroup)):
        test_no_input_yields_an_event_out_of_order_twice_or_past_a_hole()


@settings(max_examples=300)
@given(cursors, st.lists(steps, max_size=40))
def test_the_verifier_is_always_in_one_state_with_its_sentence(
    cursor: Any, inputs: list[tuple[Any, ...]]
) -> None:
    verifier = Verifier(cursor)
    for now_s, step in enumerate(inputs):
        apply(verifier, step, float(now_s))
        assert verifier.state in ClientState
        assert verifier.explanation
        assert "cursor" in verifier.numbers
        assert (verifier.error is not None) == (
            verifier.state in (ClientState.RESUMPTION_FAILED, ClientState.SESSION_LOST)
        )


def served(history: int, cursor: str | None, declares: bool) -> tuple[dict[str, str], bytes]:
    """What an honest server sends to a reader at `cursor`: everything after it."""
    at = int(cursor.split(".")[1] if "." in cursor else cursor) if cursor else 0
    epoch = EPOCHS[0]
    body = [f"event: replay\nid: {epoch}.{at}.00000000\ndata: {{}}\n\n"] if declares else []
    body += [f"id: {epoch}.{n}.00000000\ndata: {n}\n\n: k\n\n" for n in range(at + 1, history + 1)]
    window = {"Replay-Floor": "1", "Replay-Head": str(history)} if declares else {}
    return window, "".join(body).encode()


@settings(max_examples=100)
@given(st.lists(st.integers(0, 600), max_size=20), st.booleans(), st.integers(0, 5), st.integers(1, 12))
def test_an_honest_server_that_is_cut_anywhere_delivers_everything_once(
    cuts: list[int], declares: bool, cursor: int, more: int
) -> None:
    history = cursor + more
    verifier = Verifier(cursor, empty_reconnects_max=10**6, proven_reconnects_max=10**6)
    got: list[int | None] = []
    while verifier.id != history:
        window, body = served(history, verifier.last_event_id, declares)
        verifier.on_response(200, window, now_s=0.0)
        parser = SseParser()
        for frame in parser.feed(body[: cuts.pop()] if cuts else body):
            event = verifier.on_event(frame, now_s=0.0)
            got += [event.id] if event is not None else []
        verifier.on_close(now_s=0.0)
        assert verifier.state is ClientState.DELAYED, verifier.explanation
    assert got == list(range(cursor + 1, history + 1))


@given(st.integers(0, 10**6), st.integers(-5, 10**6))
def test_a_200_that_begins_anywhere_but_after_the_cursor_is_never_a_resumption(
    cursor: int, shift: int
) -> None:
    first = max(0, cursor + 1 + shift)
    verifier = Verifier(cursor)
    verifier.on_response(200, {}, now_s=0.0)
    event = verifier.on_event(Frame("message", "x", str(first), has_id=True), now_s=0.0)
    assert (event is not None) == (first == cursor + 1)
    assert (verifier.state is ClientState.DELAYED) == (first == cursor + 1)
