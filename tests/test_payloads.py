"""What goes in comes out: equal, as the same type, by every way of reading; what cannot is refused.

A payload that is refused leaves nothing behind.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import model
import replaylog
from payloads import BYTES, KINDS_BAD, KINDS_GOOD, SURROGATES_BAD, TEXTS, TYPES_BAD, same
from support import shown

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)
kinds = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0;"), max_size=60).filter(
    lambda kind: kind != "replay" and not kind.startswith("replay-")
)


def read_back(log: Any, session: Any, id: int) -> Any:
    """The event with that id, read in three ways that must agree."""
    with log.resume(session.name, id - 1) as replay:
        event = next(iter(replay))
    with session.follow(id - 1, until=id) as events:
        followed = next(events)
    assert (event.id, event.cursor) == (followed.id, followed.cursor)
    assert same(event.payload, followed.payload)
    return event


@given(payload=st.one_of(values, texts, st.binary()), kind=kinds)
def test_any_payload_comes_back_equal_and_as_the_same_type(memory_log: Any, payload: Any, kind: str) -> None:
    session = memory_log.create("s", exist_ok=True)
    before = session.cursor
    id = session.append(payload, kind=kind)
    event = read_back(memory_log, session, id)
    assert same(event.payload, payload)
    assert event.kind == kind
    tag = model.tag_after(int(before.split(".")[2], 16), id, kind, payload)
    assert event.cursor == model.token_of(session.epoch, id, tag) == session.cursor
    assert event.frame == model.frame_of(event.cursor, kind, payload)


EVERY_TYPE: list[Any] = [
    *TEXTS, *BYTES, None, True, False, 0, -1, 2**63 - 1, -(2**63), 0.0, -0.0, 1.0, 1e16, 1e300, 5e-324, 0.1,
    [], {}, [None], {"": ""}, {"b": 1, "a": 2}, [1, 1.0, True, "1"], {"k": ["\r\n\0\u2028\u00e9"]},
    [[[[]]]], '{"a":1}', "null",
]  # fmt: skip


def test_every_type_survives_memory_disk_and_restart(opener: Any, durability: str) -> None:
    log = opener(durability)
    session = log.create("s")
    ids = [session.append_nowait(payload).wait(30) for payload in EVERY_TYPE]

    def compare(log: Any) -> None:
        with log.resume("s") as replay:
            events = list(replay)
        assert [event.id for event in events] == ids
        for event, payload in zip(events, EVERY_TYPE, strict=True):
            assert same(event.payload, payload), payload

    compare(log)
    if durability != "memory":
        log.close()
        log = opener(durability)
        compare(log)
        assert log.verify() == []


def test_bytes_and_str_and_a_json_string_are_three_payloads(log: Any) -> None:
    """The type is under the tag: the same letters as another type are another history."""
    tags = set()
    for n, payload in enumerate([b"1", "1", 1]):
        session = log.create(f"s{n}")
        session.append(payload)
        tag = model.tag_after(model.tag_at_start(session.epoch), 1, "message", payload)
        assert session.cursor == model.token_of(session.epoch, 1, tag)
        tags.add(model.tag_after(0, 1, "message", payload))
    assert len(tags) == 3


@pytest.mark.parametrize("payload", TYPES_BAD, ids=shown)
def test_a_payload_that_cannot_come_back_is_a_type_error(log: Any, payload: Any) -> None:
    refuse(log, payload, "message", TypeError)


@pytest.mark.parametrize("payload", SURROGATES_BAD, ids=shown)
def test_a_lone_surrogate_is_a_value_error(log: Any, payload: Any) -> None:
    refuse(log, payload, "message", ValueError)


@pytest.mark.parametrize("kind", KINDS_BAD, ids=lambda kind: ascii(kind[:20]))
def test_a_kind_that_would_break_the_frame_or_is_ours_is_a_value_error(log: Any, kind: str) -> None:
    refuse(log, "x", kind, ValueError)


@pytest.mark.parametrize("kind", [1, None, ["x"], True])
def test_a_kind_of_another_type_is_a_type_error(memory_log: Any, kind: Any) -> None:
    refuse(memory_log, "x", kind, TypeError)


def refuse(log: Any, payload: Any, kind: Any, error: type[Exception]) -> None:
    """By every way of appending; and nothing is appended, not even what was good."""
    session = log.create("s")
    session.append("good")
    cursor = session.cursor
    for append in (
        lambda: session.append(payload, kind=kind),
        lambda: session.append_nowait(payload, kind=kind),
        lambda: session.append(payload, kind=kind, key="k"),
        lambda: session.extend([("good", "message"), (payload, kind)]),
        lambda: session.extend([(payload, kind), ("good", "message")]),
    ):
        with pytest.raises(error):
            append()
        assert (session.head, session.cursor, session.state) == (1, cursor, "open")
    if payload is not None:
        with pytest.raises(error):
            session.end(payload, kind=kind)
    assert (session.head, session.cursor, session.state) == (1, cursor, "open")
    assert session.append("next", key="k") == 2


@pytest.mark.parametrize("kind", KINDS_GOOD, ids=lambda kind: ascii(kind[:20]))
def test_a_kind_comes_back(log: Any, kind: str) -> None:
    session = log.create("s")
    id = session.append("x", kind=kind)
    assert read_back(log, session, id).kind == kind


def test_the_default_kind_is_message(memory_log: Any) -> None:
    session = memory_log.create("s")
    session.append("x")
    assert read_back(memory_log, session, 1).kind == "message"


def test_the_payload_is_copied_when_it_is_appended(memory_log: Any) -> None:
    session = memory_log.create("s")
    payload = {"list": [1]}
    session.append(payload)
    payload["list"].append(2)
    event = read_back(memory_log, session, 1)
    assert event.payload == {"list": [1]}


DEEP = """
import replaylog
log = replaylog.open(None, durability="memory")
session = log.create("s")
deep, cycle = [], []
for _ in range(200_000):
    deep = [deep]
cycle.append(cycle)
for payload in (deep, cycle, {"k": cycle}):
    try:
        session.append(payload)
    except (TypeError, ValueError, RecursionError):
        pass
    else:
        raise SystemExit("accepted")
assert session.head == 0
print("alive")
import os
os._exit(0)  # freeing the deep list is CPython's own matter
"""


def test_a_bottomless_payload_is_an_error_and_not_a_crash() -> None:
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, timeout=60)
    assert done.stdout == "alive\n" or not done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def test_event_bytes_max_is_a_bound_for_one_event_and_for_one_call(opener: Any, durability: str) -> None:
    log = opener(durability, event_bytes_max=10_000)
    session = log.create("s")
    assert session.append(b"x" * 9_000) == 1
    for append in (
        lambda: session.append(b"x" * 10_001),
        lambda: session.append("x" * 10_001),
        lambda: session.append(["x" * 10_001]),
        lambda: session.append_nowait(b"x" * 10_001),
        lambda: session.extend([(b"x", "message"), (b"x" * 10_001, "message")]),
        lambda: session.end(b"x" * 10_001),
    ):
        with pytest.raises(replaylog.EventTooLarge) as caught:
            append()
        assert caught.value.size > caught.value.limit == 10_000
        assert caught.value.bound == "event_bytes_max"
        assert (session.head, session.state) == (1, "open")
    assert session.append(b"y") == 2
    assert log.event_bytes_max == 10_000


def test_a_large_event_crosses_no_boundary_badly(opener: Any, durability: str) -> None:
    """Around every power of two up to the extent and past it."""
    log = opener(durability)
    session = log.create("s")
    sizes = [n + d for n in (512, 4096, 65536, 1 << 19) for d in (-130, -64, -1, 0, 1)]
    for size in sizes:
        session.append(b"\xff" * size)
        session.append("y" * size)
    with log.resume("s") as replay:
        found = [len(event.payload) for event in replay]
    assert found == [size for size in sizes for _ in range(2)]
