"""The frames, read by a parser that only knows the WHATWG text, give the payloads back.

Nothing in a payload can end its frame, forge an id or an event type.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest

import ssespec
from payloads import BYTES, KINDS_GOOD, TEXTS, travels_verbatim

PAYLOADS: list[str | bytes] = [*TEXTS, *BYTES]


def received(dispatched: ssespec.Dispatched) -> tuple[str, bytes]:
    """Kind and payload bytes, as a client would undo `;base64`."""
    kind, mark, coding = dispatched.type.partition(";")
    if not mark:
        return kind, dispatched.data.encode()
    assert coding == "base64"
    return kind, base64.b64decode(dispatched.data, validate=True)


def as_bytes(payload: str | bytes) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload


@pytest.fixture
def filled(log: Any) -> Any:
    session = log.create("s")
    for n, payload in enumerate(PAYLOADS):
        session.append(payload, kind=("message", "progress")[n % 2])
    return log


def test_every_payload_comes_through_sse(filled: Any) -> None:
    with filled.resume("s") as replay:
        events = list(replay)
    parsed = ssespec.parse(b"".join(event.frame for event in events))
    assert len(parsed) == len(PAYLOADS)
    for dispatched, event, payload in zip(parsed, events, PAYLOADS, strict=True):
        assert dispatched.last_event_id == event.cursor
        assert received(dispatched) == (event.kind, as_bytes(payload))


def test_only_what_must_be_is_base64(filled: Any) -> None:
    with filled.resume("s") as replay:
        for event, payload in zip(replay, PAYLOADS, strict=True):
            verbatim = b";base64\n" not in event.frame.split(b"data:")[0]
            assert verbatim is travels_verbatim(as_bytes(payload))
            if verbatim:
                assert event.frame.count(b"\ndata: ") == as_bytes(payload).count(b"\n") + 1


@pytest.mark.parametrize("chunk_bytes_max", [1, 100, 4096, 262_144])
def test_frames_are_the_same_events_in_chunks(filled: Any, chunk_bytes_max: int) -> None:
    with filled.resume("s") as replay:
        whole = b"".join(event.frame for event in replay)
    with filled.resume("s") as replay:
        chunks = list(replay.frames(chunk_bytes_max))
    assert b"".join(chunks) == whole
    assert all(chunks)
    assert all(chunk.endswith(b"\n\n") for chunk in chunks)


def test_frames_start_after_the_cursor(filled: Any) -> None:
    half = len(PAYLOADS) // 2
    with filled.resume("s", half) as replay:
        whole = b"".join(replay.frames())
    with filled.resume("s") as replay:
        assert whole == b"".join(event.frame for event in list(replay)[half:])


def test_a_json_value_is_one_line_of_compact_json(log: Any) -> None:
    session = log.create("s")
    session.append({"text": "a\nb\r\u2028", "n": [1, 2.5, None, True]}, kind="progress")
    with log.resume("s") as replay:
        (event,) = replay
    (dispatched,) = ssespec.parse(event.frame)
    assert dispatched.type == "progress"
    assert dispatched.data == '{"text":"a\\nb\\r\u2028","n":[1,2.5,null,true]}'


@pytest.mark.parametrize("kind", KINDS_GOOD, ids=lambda kind: ascii(kind[:20]))
def test_a_kind_comes_through_sse(log: Any, kind: str) -> None:
    session = log.create("s")
    session.append("text", kind=kind)
    session.append(b"\xff", kind=kind)
    with log.resume("s") as replay:
        text, raw = ssespec.parse(b"".join(event.frame for event in replay))
    # To a browser an empty event field and none at all are the same: both dispatch "message".
    assert received(text) == (kind or "message", b"text")
    assert received(raw) == (kind, b"\xff")


def test_a_payload_that_imitates_a_frame_stays_a_payload(log: Any) -> None:
    session = log.create("s")
    session.append("genuine")
    with log.resume("s") as replay:
        (event,) = replay
    forged = event.frame.decode()
    session.append(forged)
    session.append(event.frame)
    session.append(forged.replace("\n", "\r"))
    with log.resume("s") as replay:
        parsed = ssespec.parse(b"".join(replay.frames()))
    assert [received(dispatched)[1] for dispatched in parsed] == [
        b"genuine", event.frame, event.frame, event.frame.replace(b"\n", b"\r"),
    ]  # fmt: skip
    assert len({dispatched.last_event_id for dispatched in parsed}) == 4
