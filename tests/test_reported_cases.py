"""conformance/reported.yaml, case by case: small inputs that broke systems which people run today.

The engine's cases run here, a function each, named after the case. Cases of the HTTP face, the
client and the adapters are listed with the file that runs them; none may be in neither place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import model
import payloads
import replaylog
import ssespec
from replaylog import Reason, Retention

HERE = Path(__file__).parent
REPORTED = {case["id"]: case for case in yaml.safe_load((HERE / "conformance" / "reported.yaml").read_text())}

ELSEWHERE = {
    "another-sessions-events": (
        "test_mcp_streams.py",
        "test_two_sessions_with_equal_request_ids_never_see_each_others_events",
    ),
    "empty-200-for-ever": ("test_client_connect.py", "test_an_empty_200_for_ever_is_bounded"),
    "cursor-forgotten-on-second-drop": (
        "test_client_connect.py",
        "test_the_cursor_is_carried_through_a_second_drop",
    ),
    "slow-reader-memory": ("test_asgi_stall.py", "test_a_reader_that_does_not_read_costs_less_than_2_mb"),
    "keepalive-behind-a-full-socket": (
        "test_asgi_stall.py",
        "test_a_stalled_reader_is_gone_within_keepalive_and_stall_and_can_resume",
    ),
}

Opener = Callable[..., Any]
RUN_HERE: dict[str, Callable[..., None]] = {}


def case(id: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(test: Callable[..., None]) -> Callable[..., None]:
        RUN_HERE[id] = test
        return test

    return register


def grow(session: Any, first: int, last: int, word: str = "event") -> None:
    """Append first..last, content a function of the id."""
    for start in range(first, last + 1, 500):
        stop = min(start + 500, last + 1)
        ids = session.extend([(f"{word} {n}", "message") for n in range(start, stop)])
        assert ids == range(start, stop)


def ids_after(log: Any, cursor: Any) -> list[int]:
    with log.resume("s", cursor) as replay:
        return [event.id for event in replay]


def token(session: Any, id: int) -> str:
    with session.follow(id - 1, until=id) as events:
        return next(events).cursor


def crash(log: Any) -> None:
    log.flush()
    log._abandon()


def expect(case_id: str) -> Any:
    """What the data file says; read here so that a changed expectation changes the test."""
    return REPORTED[case_id]["expect"]


def reason(word: str) -> Reason:
    return Reason[word.upper()]


# --- the incident ---


@case("incident-cursor-skipping-reconnect")
def test_incident_cursor_skipping_reconnect(opener: Opener, durability: str) -> None:
    expected = expect("incident-cursor-skipping-reconnect")
    log = opener(durability, retention=Retention(events=64))
    grow(log.create("s"), 1, 130)
    verdict = log.check("s", 41)
    assert verdict.reason is reason(expected["reason"])
    assert (verdict.floor, verdict.head, verdict.lost) == (
        expected["floor"], expected["head"], expected["lost"],
    )  # fmt: skip
    for refuse in (log.resume, lambda name, cursor: log.session(name).follow(cursor)):
        with pytest.raises(replaylog.NotResumable):
            refuse("s", 41)


@case("incident-implicit-recreation")
def test_incident_implicit_recreation(log: Any) -> None:
    assert log.check("s", 41).reason is reason(expect("incident-implicit-recreation")["reason"])
    with pytest.raises(replaylog.NotResumable):
        log.resume("s", 41)
    with pytest.raises(replaylog.SessionUnknown):
        log.session("s")
    assert log.sessions() == []


@case("incident-restart")
def test_incident_restart(opener: Opener, disk: str) -> None:
    expected = expect("incident-restart")
    log = opener(disk, retention=Retention(events=256))
    session = log.create("s")
    grow(session, 1, 130)
    cursor = token(session, 41)
    crash(log)
    log = opener(disk, retention=Retention(events=256))
    with log.session("s").follow(cursor, timeout_s=10, until=132) as events:
        assert events.verdict.reason is reason(expected["reason"])
        got = []
        for event in events:
            got.append((event.id, event.payload))
            if event.id in (130, 131):
                log.session("s").append(f"event {event.id + 1}")
    assert got == [(n, f"event {n}") for n in range(expected["first"], 133)]


# --- reaped, floors, heads ---


@case("reaped-is-not-unknown")
def test_reaped_is_not_unknown(opener: Opener, disk: str) -> None:
    log = opener(disk)
    grow(log.create("s"), 1, 5)
    log.reap("s", reason="idle")
    log.close()
    verdict = opener(disk).check("s", 3)
    assert verdict.reason is Reason.REAPED
    assert verdict.head == expect("reaped-is-not-unknown")["last_id"]
    assert verdict.last_reason == "idle"


@case("floor-off-by-one")
def test_floor_off_by_one(opener: Opener, durability: str) -> None:
    log = opener(durability, retention=Retention(events=3))
    grow(log.create("s"), 1, 5)
    inside, outside = expect("floor-off-by-one")
    assert log.check("s", 2).reason is reason(inside["reason"])
    assert ids_after(log, 2)[0] == inside["first"]
    verdict = log.check("s", 1)
    assert (verdict.reason, verdict.lost) == (reason(outside["reason"]), outside["lost"])


@case("at-head-after-everything-aged-out")
def test_at_head_after_everything_aged_out(opener: Opener, durability: str, clock: Any) -> None:
    log = opener(durability, retention=Retention(age_s=60), clock=clock)
    grow(log.create("s"), 1, 10)
    clock.advance(61)
    at_head, below = expect("at-head-after-everything-aged-out")
    verdict = log.check("s", 10)
    assert (verdict.reason, verdict.floor, verdict.head) == (
        reason(at_head["reason"]), at_head["floor"], at_head["head"],
    )  # fmt: skip
    verdict = log.check("s", 9)
    assert (verdict.reason, verdict.lost) == (reason(below["reason"]), below["lost"])
    assert log.session("s").append("x") == 11


@case("head-survives-an-empty-log")
def test_head_survives_an_empty_log(opener: Opener, disk: str) -> None:
    log = opener(disk)
    session = log.create("s")
    grow(session, 1, 10)
    session.trim(11)
    crash(log)
    assert opener(disk).session("s").append("x") == expect("head-survives-an-empty-log")["id"]


@case("ahead-of-head-after-restart")
def test_ahead_of_head_after_restart(opener: Opener, durability: str) -> None:
    log = opener(durability)
    log.create("s")
    assert log.check("s", 500).reason is reason(expect("ahead-of-head-after-restart")["reason"])


# --- other histories ---


@case("recreated-session-old-cursor")
def test_recreated_session_old_cursor(log: Any) -> None:
    session = log.create("s")
    grow(session, 1, 2)
    old = session.cursor
    log.reap("s")
    session = log.create("s")
    verdicts = []
    grow(session, 1, 1)
    verdicts.append(log.check("s", old).reason)
    grow(session, 2, 3)
    verdicts.append(log.check("s", old).reason)
    assert verdicts == [reason(step["reason"]) for step in expect("recreated-session-old-cursor")]


@case("lost-tail-ids-used-again")
def test_lost_tail_ids_used_again(opener: Opener, tmp_path: Path) -> None:
    """The power cut: the directory as it was at 120, put back in place of the one at 130."""
    log = opener("relaxed")
    session = log.create("s")
    grow(session, 1, 120)
    log.flush()
    log.backup(tmp_path / "at-120")
    grow(session, 121, 130)
    at_130, at_119 = token(session, 130), token(session, 119)
    log.close()

    log = opener("relaxed", name="at-120")
    session = log.session("s")
    assert session.head == 120
    assert log.check("s", at_130).reason is Reason.FORKED, "ahead of the head"
    grow(session, 121, 140, word="other")
    forked, resumable = expect("lost-tail-ids-used-again")
    assert log.check("s", at_130).reason is reason(forked["reason"])
    assert log.check("s", at_119).reason is reason(resumable["reason"])
    assert ids_after(log, at_119)[0] == resumable["first"]


@case("epochless-token")
def test_epochless_token(log: Any) -> None:
    session = log.create("s")
    grow(session, 1, 50)
    other = log.create("other")
    grow(other, 1, 50)
    _, id, tag = token(session, 41).split(".")
    for cursor in (".41.", "41.", ".41", f".{id}.{tag}", token(other, 41), f"{other.epoch:016x}.{id}.{tag}"):
        assert log.check("s", cursor).reason in (Reason.MALFORMED, Reason.FORKED), cursor


@case("unknown-cursor-never-moves-the-reader")
def test_unknown_cursor_never_moves_the_reader(log: Any) -> None:
    session = log.create("s")
    grow(session, 1, 50)
    for cursor in (
        "0123456789abcdef.41.89abcdef",
        model.token_of(session.epoch, 41, 0x89ABCDEF),
        model.token_of(session.epoch, 51, 0),
    ):
        assert log.check("s", cursor).reason is Reason.FORKED
        with pytest.raises(replaylog.NotResumable):
            session.follow(cursor)


# --- cache and cold start ---


@case("ring-evicted-log-still-has-it")
def test_ring_evicted_log_still_has_it(opener: Opener, disk: str) -> None:
    expected = expect("ring-evicted-log-still-has-it")
    log = opener(disk, retention=Retention(events=100_000), memory_bytes=64 << 10)
    grow(log.create("s"), 1, 2506)
    log.flush()
    grow(log.create("other"), 1, 2000)
    assert log.check("s", 5).reason is reason(expected["reason"])
    ids = ids_after(log, 5)
    assert ids == list(range(expected["first"], expected["last"] + 1))


@case("cold-start-is-not-caught-up")
def test_cold_start_is_not_caught_up(opener: Opener, disk: str) -> None:
    expected = expect("cold-start-is-not-caught-up")
    log = opener(disk)
    grow(log.create("s"), 1, 50)
    log.close()
    log = opener(disk)
    assert log.check("s", 10).reason is reason(expected["reason"])
    assert ids_after(log, 10) == list(range(expected["first"], expected["last"] + 1))


@case("published-between-history-and-live")
def test_published_between_history_and_live(opener: Opener, durability: str) -> None:
    """Sixty readers in turn, one writer; the sustained forms are in test_follow.py and test_aio.py."""
    log = opener(durability)
    session = log.create("s")
    got: list[int] = []
    cursor = None
    for turn in range(60):
        tickets = [session.append_nowait(f"{turn}.{n}") for n in range(3)]
        with session.follow(cursor, timeout_s=10) as events:
            got += [next(events).id for _ in range(2)]
            cursor = events.cursor
        assert [ticket.wait(10) for ticket in tickets]
    got += ids_after(log, cursor)
    assert {"lost": 180 - len(set(got)), "duplicated": len(got) - len(set(got))} == expect(
        "published-between-history-and-live"
    )


@case("no-event-yet")
def test_no_event_yet(log: Any) -> None:
    session = log.create("s")
    with session.follow(None, timeout_s=0) as events:
        cursor = events.cursor
    assert cursor.split(".")[1] == "0"
    session.append("first")
    assert ids_after(log, cursor) == [1]


@case("end-is-an-event")
def test_end_is_an_event(opener: Opener, disk: str) -> None:
    log = opener(disk)
    session = log.create("s")
    grow(session, 1, 3)
    at_2, at_3 = token(session, 2), token(session, 3)
    session.end()
    log.close()
    log = opener(disk)
    for cursor, ids in [(at_2, [3]), (at_3, []), (f"{at_3}.end", [])]:
        with log.session("s").follow(cursor) as events:
            assert [event.id for event in events] == ids
            assert events.ended
        assert log.check("s", cursor).seen_end is cursor.endswith(".end")


# --- payloads and keys ---


@case("lines-in-payloads")
def test_lines_in_payloads(log: Any) -> None:
    session = log.create("s")
    sent: list[str | bytes] = [*payloads.TEXTS, *payloads.BYTES]
    for payload in sent:
        session.append(payload)
    with log.resume("s") as replay:
        events = list(replay)
    assert [event.payload for event in events] == sent
    parsed = ssespec.parse(b"".join(event.frame for event in events))
    for dispatched, event, payload in zip(parsed, events, sent, strict=True):
        data = payload.encode() if isinstance(payload, str) else payload
        if payloads.travels_verbatim(data):
            assert (dispatched.type, dispatched.data.encode()) == ("message", data)
        else:
            assert dispatched.type == "message;base64"
            assert "\n" not in dispatched.data
        assert dispatched.last_event_id == event.cursor
    for payload, kind in [("\ud800", "message"), *(("x", f"x{char}id: 1") for char in "\r\n\0;")]:
        with pytest.raises(ValueError):
            session.append(payload, kind=kind)
    assert session.head == len(sent)


@case("dedupe-key-outlives-its-event")
def test_dedupe_key_outlives_its_event(opener: Opener, durability: str) -> None:
    log = opener(durability, retention=Retention(events=2))
    session = log.create("s")
    assert session.append("a", key="k") == 1
    grow(session, 2, 4)
    assert session.append("a", key="k") == 5
    assert session.head == 5


# --- nothing is left out ---


def test_every_reported_case_runs_somewhere_and_only_once() -> None:
    assert set(RUN_HERE) | set(ELSEWHERE) == set(REPORTED)
    assert set(RUN_HERE).isdisjoint(ELSEWHERE)


@pytest.mark.parametrize("id", ELSEWHERE)
def test_the_case_that_runs_elsewhere_is_there(id: str) -> None:
    name, test = ELSEWHERE[id]
    path = HERE / name
    if not path.exists():
        pytest.skip(f"{name} comes with its part of the project")
    assert f"def {test}(" in path.read_text()
