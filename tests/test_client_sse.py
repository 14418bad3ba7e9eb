"""The parser: WHATWG's rules, and the same frames however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ssespec
from replaylog.client import Frame, FrameTooLarge, SseParser


def parse(*chunks: bytes) -> list[Frame]:
    parser = SseParser()
    return [frame for chunk in chunks for frame in parser.feed(chunk)]


def bytewise(data: bytes) -> list[Frame]:
    return parse(*(data[i : i + 1] for i in range(len(data))))


CASES: list[tuple[bytes, list[Frame]]] = [
    (b"data: a\n\n", [Frame(data="a")]),
    (b"data:a\n\n", [Frame(data="a")]),
    (b"data:  a\n\n", [Frame(data=" a")]),
    (b"data\n\n", [Frame(data="")]),
    (b"data\ndata\n\n", [Frame(data="\n")]),
    (b"data: a\ndata: b\n\n", [Frame(data="a\nb")]),
    (b"data: a\r\rdata: b\r\r", [Frame(data="a"), Frame(data="b")]),
    (b"data: a\r\n\r\ndata: b\r\n\r\n", [Frame(data="a"), Frame(data="b")]),
    (b"data: a\r\n\ndata: b\n\r\n", [Frame(data="a"), Frame(data="b")]),
    (b"\xef\xbb\xbfdata: a\n\n", [Frame(data="a")]),
    (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
    (b"data: \xef\xbb\xbf\n\n", [Frame(data="\ufeff")]),
    (b"data: a\n", []),
    (b"data: a", []),
    (b": comment\n\n", []),
    (b"event: x\n\n", []),
    (b"event: x\n\ndata: a\n\n", [Frame(data="a")]),
    (b"event: x\ndata: a\n\ndata: b\n\n", [Frame("x", "a"), Frame(data="b")]),
    (b"event:\ndata: a\n\n", [Frame(data="a")]),
    (b"id: 1\ndata: a\n\n", [Frame(data="a", id="1", has_id=True)]),
    (b"id: 1\ndata: a\n\ndata: b\n\n", [Frame(data="a", id="1", has_id=True), Frame(data="b", id="1")]),
    (b"id: 1\n\n", [Frame(id="1", has_id=True)]),
    (b"id: 1\n\nid\ndata: a\n\n", [Frame(id="1", has_id=True), Frame(data="a", id="", has_id=True)]),
    (b"id: 1\0\ndata: a\n\n", [Frame(data="a")]),
    (b"id: 1\nid: 2\0\ndata: a\n\n", [Frame(data="a", id="1", has_id=True)]),
    (b"ID: 1\nData: a\n\n", []),
    (b" id: 1\ndata: a\n\n", [Frame(data="a")]),
    (b"unknown: 1\ndata: a\n\n", [Frame(data="a")]),
    (b"data: a\0b\n\n", [Frame(data="a\0b")]),
    (b"data: \xff\n\n", [Frame(data="\ufffd")]),
    ("data: \u2028\u0085\x0b\x0c\n\n".encode(), [Frame(data="\u2028\u0085\x0b\x0c")]),
]


@pytest.mark.parametrize(("data", "frames"), CASES)
def test_frames(data: bytes, frames: list[Frame]) -> None:
    assert parse(data) == frames
    assert bytewise(data) == frames


@pytest.mark.parametrize(
    ("data", "retry_ms"),
    [
        (b"retry: 250\n", 250),
        (b"retry:250\r", 250),
        (b"retry: 1\nretry: x\n", 1),
        (b"retry: -1\n", None),
        (b"retry: 1.5\n", None),
        ("retry: ١\n".encode(), None),
        (b"retry:\n", None),
        (b"retry: 250", None),
        (b"retry: 99999999999999999999\n", 3_600_000),
        (b"retry: " + b"9" * 5000 + b"\n", None),
    ],
)
def test_retry_takes_ascii_digits_only(data: bytes, retry_ms: int | None) -> None:
    parser = SseParser()
    assert list(parser.feed(data)) == []
    assert parser.retry_ms == retry_ms


def test_a_blank_line_that_ends_in_cr_dispatches_without_waiting_for_the_lf() -> None:
    parser = SseParser()
    assert list(parser.feed(b"data: a\r\n\r")) == [Frame(data="a")]
    assert list(parser.feed(b"\n")) == []
    assert list(parser.feed(b"data: b\r\n\r\n")) == [Frame(data="b")]


LINE_ENDS = [b"\r", b"\n", b"\r\n", b"\n\n"]
WORDS = [b"data", b"id", b"event", b"retry", b":", b" ", b"7", b"data: a\n", b"id: 41\n", b"event: k\n"]
ODDITIES = [b"\0", b"\xef\xbb\xbf", b"\xc3", b"\xa9"]
PIECES = st.sampled_from([*LINE_ENDS, *WORDS, *ODDITIES])


@given(st.lists(PIECES, max_size=40).map(b"".join), st.lists(st.integers(0, 200), max_size=10))
def test_frames_do_not_depend_on_the_cuts(data: bytes, cuts: list[int]) -> None:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[a:b] for a, b in pairwise(ends)]
    assert parse(data) == bytewise(data) == parse(*pieces)


@given(st.lists(PIECES, max_size=40).map(b"".join))
def test_frames_with_data_are_what_a_browser_dispatches(data: bytes) -> None:
    ours = [(f.event, f.data, f.id) for f in parse(data) if f.data is not None]
    assert ours == [tuple(event) for event in ssespec.parse(data)]


def test_a_line_and_an_event_are_bounded_and_what_came_before_is_given() -> None:
    parser = SseParser(line_bytes_max=100)
    frames = parser.feed(b"data: a\n\ndata: " + b"x" * 200)
    assert next(frames) == Frame(data="a")
    with pytest.raises(FrameTooLarge, match="line_bytes_max=100"):
        next(frames)
    parser = SseParser(event_bytes_max=100)
    with pytest.raises(FrameTooLarge, match="event_bytes_max=100"):
        list(parser.feed(b"data: xxxxxxxxx\n" * 20))


def test_a_long_line_byte_by_byte_is_linear() -> None:
    size = 300_000
    assert bytewise(b"data: " + b"x" * size + b"\n\n") == [Frame(data="x" * size)]
