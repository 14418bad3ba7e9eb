"""Logs that older formats wrote open for ever, with every event. The archives in fixtures/ are never written again."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

import format_reader
from format_kit import open_small
from replaylog import Reason, Retention
from support import FakeClock

FIXTURES = Path(__file__).with_name("fixtures")
PLAIN = [-5, 0.5, "text", "two\nlines", "carriage\rreturn", b"utf-8", b"\xff\x00", [1, {"a": "\u00e9"}]]
EVENTS: dict[str, list[tuple[int, str, Any]]] = {
    "again": [(1, "message", "second life")],
    "empty": [],
    "late": [(1, "x", "a"), (2, "y", b"b"), (3, "result", {"ok": True})],
    "narrow": [(7, "message", {"n": 6}), (8, "message", {"n": 7}), (9, "message", {"n": 8})],
    "plain": [
        *((n, "message", payload) for n, payload in enumerate(PLAIN, 3)),
        (11, "progress", {"pct": 10}),
        (12, "progress", {"pct": 20}),
    ],
    "\u00e9\u00df-name": [(1, "\N{SNOWMAN}", "named")],
}
METAS = {"plain": {"user": "u1", "n": [1, None, True]}, "late": "only in the journal"}


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    """A copy of the log that format 1 wrote."""
    with tarfile.open(FIXTURES / "v1.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "v1").chmod(0o700)
    return tmp_path / "v1"


def compare(log: Any) -> None:
    infos = {info.name: info for info in log.sessions()}
    assert infos.keys() == EVENTS.keys()
    for name, events in EVENTS.items():
        session = log.session(name)
        got = list(session.resume(session.floor - 1))
        assert [(event.id, event.kind, event.payload) for event in got] == events
        assert [type(event.payload) for event in got] == [type(payload) for _, _, payload in events]
        assert session.meta == METAS.get(name)
        assert session.head == (events[-1][0] if events else 0)
        for event in got:
            assert log.check(name, event.cursor).proof == "chain"
    ended = log.check("late", 3)
    assert (ended.ended, ended.state, log.check("plain").ended) == (True, "ended", False)
    assert (log.session("plain").floor, log.session("narrow").floor) == (3, 7)
    assert [log.check(name).reason for name in ("reaped", "never")] == [Reason.REAPED, Reason.UNKNOWN]


def settings(**more: Any) -> dict[str, Any]:
    return {"retention": Retention(events=40), "clock": FakeClock(), **more}


def test_a_log_of_format_1_can_be_read(v1: Path) -> None:
    with open_small(v1, mode="r", **settings()) as log:
        compare(log)


def test_a_log_of_format_1_can_be_written_on(v1: Path) -> None:
    with open_small(v1, **settings()) as log:
        compare(log)
        assert log.verify() == []
        assert log.session("plain").append({"pct": 10}, kind="progress", key="key-1") == 11
        assert log.session("plain").append({"pct": 20}, kind="progress", key="key-2") == 12
    with open_small(v1, **settings()) as log:
        compare(log)
        assert log.session("plain").append("next") == 13
        assert log.session("plain").resume(12).verdict.ok
        assert log.verify() == []


def test_the_second_reader_reads_format_1(v1: Path) -> None:
    sessions = format_reader.read_log(v1)
    assert {name: s.state for name, s in sessions.items() if s.state != "open"} == {"late": "ended", "reaped": "reaped"}
    for name, events in EVENTS.items():
        assert [(event.id, event.kind, event.payload) for event in sessions[name].events] == events


def test_the_fixture_has_rows_segments_keys_tombstones_generations_and_a_journal(v1: Path) -> None:
    """What it is kept for is in it."""
    from format_kit import tables

    stored = tables(v1)
    assert all(stored.values()), {name: len(table) for name, table in stored.items()}
    assert set(stored["meta"]) == {b"format", b"uuid", b"next", b"time", b"tombstones", b"limits", b"slot-0"}
    assert b"late" not in stored["sessions"]
    [extent] = (v1 / "journal").iterdir()
    assert any(extent.read_bytes()[512:])
