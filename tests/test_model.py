"""The oracle itself, checked against values that others computed and sums done by hand."""

from __future__ import annotations

import pytest

import model
import ssespec
from support import FakeClock

# RFC 3720, appendix B.4, and the check value of the CRC catalogue.
CRC32C_KNOWN = [
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (b"", 0),
]


@pytest.mark.parametrize(("data", "expected"), CRC32C_KNOWN)
def test_crc32c_agrees_with_published_values(data: bytes, expected: int) -> None:
    assert model.crc32c(data) == expected


def test_crc32c_continues() -> None:
    assert model.crc32c(b"6789", model.crc32c(b"12345")) == model.crc32c(b"123456789")


def a_log(count: int, **limits: float) -> model.Log:
    log = model.Log(FakeClock(), model.Limits(**limits))
    log.create("s", epoch=0x0123456789ABCDEF)
    for n in range(1, count + 1):
        log.append("s", f"event {n}")
    return log


def test_the_incident_is_refused_with_the_lost_range_counted() -> None:
    verdict = a_log(130, events=64).check("s", 41)
    assert verdict == model.Verdict("below-floor", 67, 130, missing=89, lost=25)


def test_an_aged_out_session_still_knows_floor_and_head() -> None:
    log = a_log(10, age_s=60)
    log.clock.advance(60)
    assert log.check("s", 10) == model.Verdict("at-head", 11, 10, 0, 0)
    assert log.check("s", 9) == model.Verdict("below-floor", 11, 10, 1, 1)


def test_retention_by_bytes_counts_frames() -> None:
    log = a_log(0, bytes=3 * 100)
    size = len(model.frame_of(log.sessions["s"].token(0), "message", "x" * 10))
    log.limits = model.Limits(bytes=3 * size)
    for _ in range(5):
        log.append("s", "x" * 10)
    assert log.check("s", 2).ok
    assert log.check("s", 1).lost == 1


def test_a_token_tells_two_histories_apart() -> None:
    log, other = a_log(5), a_log(4)
    other.append("s", "something else")
    token = other.sessions["s"].token(5)
    assert log.check("s", token).reason == "forked"
    assert log.check("s", other.sessions["s"].token(4)).reason == "resumable"


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [("message", "YHOO\n+2\n10", "")]),
        (b": test\n\ndata: first\nid: 1\n\ndata:second\nid\n\ndata:  third\n\n",
         [("message", "first", "1"), ("message", "second", ""), ("message", " third", "")]),
        (b"data\n\ndata\ndata\n\ndata:", [("message", "", ""), ("message", "\n", "")]),
        (b"\xef\xbb\xbfevent: a\r\ndata: b\r\n\r\n", [("a", "b", "")]),
        (b"id: 7\0\ndata: x\n\n", [("message", "x", "")]),
        (b"event: lost\n\ndata: kept\n\n", [("message", "kept", "")]),
    ],
)  # fmt: skip
def test_the_sse_parser_agrees_with_the_examples_of_the_standard(
    stream: bytes, events: list[tuple[str, str, str]]
) -> None:
    assert ssespec.parse(stream) == events
