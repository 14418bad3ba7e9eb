"""The verdict's truth table: state of the session x kind of cursor x position, asked both ways.

floor - 1 <= cursor <= head is the window; what lies outside is named, never moved inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import model
import replaylog
from hostile import HOSTILE
from replaylog import FLOOR, HEAD, START, Reason
from replaylog._cursor import parse
from support import shown

FLOOR_ID, HEAD_ID = 5, 9

RESUMABLE, AT_HEAD = Reason.RESUMABLE, Reason.AT_HEAD
BELOW, FORKED = Reason.BELOW_FLOOR, Reason.FORKED


class Row(NamedTuple):
    """What each kind of cursor at `position` is told by a session with window 5..9."""

    position: int
    integer: Reason
    token: Reason
    other_tag: Reason
    missing: int | None
    lost: int | None


TABLE = [
    Row(0, BELOW, BELOW, BELOW, 9, 4),
    Row(1, BELOW, BELOW, BELOW, 8, 3),
    Row(3, BELOW, BELOW, BELOW, 6, 1),
    Row(4, RESUMABLE, RESUMABLE, FORKED, 5, 0),
    Row(5, RESUMABLE, RESUMABLE, FORKED, 4, 0),
    Row(8, RESUMABLE, RESUMABLE, FORKED, 1, 0),
    Row(9, AT_HEAD, AT_HEAD, FORKED, 0, 0),
    Row(10, FORKED, FORKED, FORKED, None, None),
    Row(model.ID_MAX, FORKED, FORKED, FORKED, None, None),
]


class World(NamedTuple):
    """One log with a session of window 5..9, open or ended; tokens of all its ids."""

    log: Any
    session: Any
    tokens: list[str]

    def asked(self, kind: str, position: int) -> int | str | bytes:
        """The cursor of that kind at that position. Past the head any tag is a wrong one."""
        token = self.tokens[min(position, HEAD_ID)]
        epoch, _, tag = token.split(".")
        wrong = f"{int(tag, 16) ^ 1:08x}"
        return {
            "int": position,
            "decimal": str(position),
            "decimal bytes": str(position).encode(),
            "token": f"{epoch}.{position}.{tag}",
            "token bytes": f"{epoch}.{position}.{tag}".encode(),
            "other tag": f"{epoch}.{position}.{wrong}",
            "other epoch": f"{int(epoch, 16) ^ 1:016x}.{position}.{tag}",
        }[kind]


def fill(log: Any, name: str = "s") -> World:
    session = log.create(name)
    tokens = [log.check(name, 0).from_token]
    for n in range(1, HEAD_ID + 1):
        session.append(f"event {n}")
        tokens.append(session.cursor)
    session.trim(FLOOR_ID)
    return World(log, session, tokens)


@pytest.fixture(params=["open", "ended"])
def world(log: Any, request: pytest.FixtureRequest) -> World:
    world = fill(log)
    if request.param == "ended":
        world.session.end()
    return world


@pytest.fixture
def reaped(log: Any) -> World:
    world = fill(log)
    log.reap("s", reason="idle")
    return world


KINDS = {
    "int": "integer",
    "decimal": "integer",
    "decimal bytes": "integer",
    "token": "token",
    "token bytes": "token",
    "other tag": "other_tag",
}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"at-{row.position}")
@pytest.mark.parametrize("kind", KINDS)
def test_a_live_session_judges_by_position_and_proof(world: World, kind: str, row: Row) -> None:
    cursor = world.asked(kind, row.position)
    verdict = world.log.check("s", cursor)
    reason = getattr(row, KINDS[kind])
    assert verdict.reason is reason
    assert verdict.ok is (reason in (RESUMABLE, AT_HEAD))
    assert bool(verdict) is verdict.ok
    assert (verdict.floor, verdict.head) == (FLOOR_ID, HEAD_ID)
    counts = (None, None) if reason is FORKED else (row.missing, row.lost)
    assert (verdict.missing, verdict.lost) == counts
    assert verdict.ended is (world.session.state == "ended")
    assert verdict.cursor == row.position
    assert verdict.epoch == world.session.epoch
    assert verdict.state == world.session.state
    assert verdict == world.session.check(cursor)
    assert hash(verdict) == hash(world.session.check(cursor))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"at-{row.position}")
def test_another_epoch_is_forked_at_every_position(world: World, row: Row) -> None:
    verdict = world.log.check("s", world.asked("other epoch", row.position))
    assert verdict.reason is FORKED
    assert (verdict.missing, verdict.lost) == (None, None)
    assert verdict == world.session.check(world.asked("other epoch", row.position))


@pytest.mark.parametrize("position", [0, 4, 9, 10])
@pytest.mark.parametrize("kind", [*KINDS, "other epoch"])
def test_a_reaped_session_is_reaped_for_every_cursor(reaped: World, kind: str, position: int) -> None:
    cursor = reaped.asked(kind, position)
    verdict = reaped.log.check("s", cursor)
    assert verdict.reason is Reason.REAPED
    assert not verdict
    assert (verdict.floor, verdict.head) == (HEAD_ID + 1, HEAD_ID)
    assert verdict.state == "reaped"
    assert reaped.session.check(cursor).reason is Reason.REAPED


@pytest.mark.parametrize("position", [0, 4, 9, 10])
@pytest.mark.parametrize("kind", [*KINDS, "other epoch"])
def test_an_unknown_session_is_unknown_for_every_cursor(world: World, kind: str, position: int) -> None:
    verdict = world.log.check("never", world.asked(kind, position))
    assert verdict.reason is Reason.UNKNOWN
    assert not verdict
    assert (verdict.floor, verdict.head, verdict.epoch, verdict.state) == (None, None, None, None)
    assert verdict.proof == "none"
    assert not verdict.session_durable


@pytest.mark.parametrize(
    ("cursor", "reason", "position"),
    [
        (None, BELOW, 0),
        (START, BELOW, 0),
        (FLOOR, RESUMABLE, FLOOR_ID - 1),
        (HEAD, AT_HEAD, HEAD_ID),
    ],
)
def test_an_origin_is_a_choice_and_start_is_never_clamped(
    world: World, cursor: Any, reason: Reason, position: int
) -> None:
    verdict = world.log.check("s", cursor)
    assert verdict.reason is reason
    assert verdict.cursor == position
    assert verdict == world.session.check(cursor)


@pytest.mark.parametrize("origin", [None, START, FLOOR, HEAD])
def test_an_origin_of_no_session_is_unknown_and_of_a_reaped_one_reaped(reaped: World, origin: Any) -> None:
    assert reaped.log.check("never", origin).reason is Reason.UNKNOWN
    assert reaped.log.check("s", origin).reason is Reason.REAPED


def test_a_hostile_cursor_is_malformed_everywhere_and_creates_nothing(world: World) -> None:
    world.log.create("gone")
    world.log.reap("gone")
    for cursor in HOSTILE:
        for name in ("s", "gone", "never"):
            assert world.log.check(name, cursor).reason is Reason.MALFORMED, (name, cursor)
        verdict = world.session.check(cursor)
        assert verdict.reason is Reason.MALFORMED, cursor
        assert verdict.cursor is None
        assert not verdict.ok
    assert world.log.check("never").reason is Reason.UNKNOWN
    with pytest.raises(replaylog.SessionUnknown):
        world.log.session("never")


@pytest.mark.parametrize("cursor", [-1, -(2**63), 2**63, 2**64 + 4, -(2**200), 2**200])
def test_an_integer_that_is_no_id_is_malformed(world: World, cursor: int) -> None:
    assert world.log.check("s", cursor).reason is Reason.MALFORMED
    assert world.session.check(cursor).reason is Reason.MALFORMED


@pytest.mark.parametrize(
    "cursor",
    [True, False, 4.0, float("nan"), 4j, Decimal(4), Fraction(4), [4], (4,), {"id": 4}, {4}, object(), int,
     bytearray(b"4"), memoryview(b"4"), Reason.AT_HEAD, ...],
    ids=shown,
)  # fmt: skip
def test_a_cursor_of_another_type_is_the_programmers_fault(world: World, cursor: Any) -> None:
    for ask in (lambda: world.log.check("s", cursor), lambda: world.log.check("never", cursor)):
        with pytest.raises(TypeError):
            ask()
    for ask in (world.session.check, world.session.resume, world.session.follow):
        with pytest.raises(TypeError):
            ask(cursor)


class Loud(str):
    def __str__(self) -> str:
        return self


def test_a_str_of_a_subclass_is_judged_or_refused_but_never_a_crash(world: World) -> None:
    try:
        verdict = world.log.check("s", Loud("7"))
    except TypeError:
        return
    assert verdict.reason is RESUMABLE


@given(
    st.one_of(
        st.text(),
        st.binary(),
        st.integers(),
        st.from_regex(r"[0-9a-f]{16}\.[0-9]{1,20}\.[0-9a-f]{8}(\.end)?", fullmatch=True),
        st.sampled_from(HOSTILE),
    )
)
def test_the_engine_reads_cursors_by_the_same_grammar(memory_log: Any, cursor: Any) -> None:
    """The core has a parser of its own: it must accept exactly what _cursor.py accepts."""
    verdict = memory_log.create("s", exist_ok=True).check(cursor)
    parsed = parse(str(cursor) if isinstance(cursor, int) else cursor)
    assert verdict.cursor == (None if parsed is None else parsed.id)
    assert (verdict.reason is Reason.MALFORMED) is (parsed is None)
    assert verdict.seen_end is bool(parsed and parsed.ended)


HOSTILE_NAMES = [
    "",
    "x" * 256,
    "\u00e9" * 128,
    "\0",
    "a\nb",
    "a\x7f",
    "\ud800",
    "../..",
    "/",
    "never",
    "*",
    "s ",
    "S",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: ascii(name[:12]))
def test_check_of_a_name_that_is_not_there_raises_nothing_and_creates_nothing(log: Any, name: str) -> None:
    log.create("s")
    for cursor in (None, 0, 41, "41", b"41", START, FLOOR, HEAD, "0123456789abcdef.41.89abcdef"):
        assert log.check(name, cursor).reason is Reason.UNKNOWN
    assert log.check(name, ".41.").reason is Reason.MALFORMED
    assert [info.name for info in log.sessions()] == ["s"]


@pytest.mark.parametrize("name", [None, 1, b"s", True, ["s"]])
def test_check_of_a_name_of_another_type_is_the_programmers_fault(log: Any, name: Any) -> None:
    with pytest.raises(TypeError):
        log.check(name, 0)


def test_resume_and_follow_refuse_at_once_with_the_verdict_of_check(world: World) -> None:
    actions: list[Callable[[Any], Any]] = [
        world.session.resume,
        world.session.replay,
        world.session.follow,
        lambda cursor: world.log.resume("s", cursor),
    ]
    for cursor in (
        3,
        world.tokens[3],
        10,
        ".41.",
        world.asked("other epoch", 7),
        world.asked("other tag", 7),
    ):
        for act in actions:
            with pytest.raises(replaylog.NotResumable) as caught:
                act(cursor)
            assert caught.value.verdict == world.log.check("s", cursor)
            assert caught.value.verdict.explanation in str(caught.value)


def test_resume_of_no_session_is_refused_and_creates_nothing(log: Any) -> None:
    for cursor in (None, 41, ".41."):
        with pytest.raises(replaylog.NotResumable) as caught:
            log.resume("never", cursor)
        assert caught.value.verdict == log.check("never", cursor)
    assert log.sessions() == []


# --- proof, durability, and the tokens that a verdict gives -----------------------------------------


@pytest.mark.parametrize(("kind", "proof"), [("int", "window"), ("decimal", "window"), ("token", "chain")])
def test_proof_names_what_the_answer_rests_on(world: World, kind: str, proof: str) -> None:
    for position in (4, 7, 9):
        assert world.log.check("s", world.asked(kind, position)).proof == proof


def test_session_durable_means_that_the_identity_is_proven(log: Any) -> None:
    world = fill(log)
    on_disk = log.durability != "memory"
    assert world.log.check("s", world.asked("int", 7)).session_durable is on_disk
    assert world.log.check("s", world.asked("other epoch", 7)).session_durable is on_disk
    assert world.log.check("s", world.asked("token", 7)).session_durable is True


def test_a_verdict_gives_the_tokens_to_go_on_from(world: World) -> None:
    for kind in ("int", "token"):
        verdict = world.log.check("s", world.asked(kind, 7))
        assert verdict.from_token == world.tokens[7]
        assert verdict.head_token == world.tokens[9]
    refused = world.log.check("s", 2)
    assert (refused.from_token, refused.head_token) == (None, None)
    assert refused.restart_from == world.tokens[FLOOR_ID - 1]
    assert world.log.check("s", refused.restart_from).missing == HEAD_ID - FLOOR_ID + 1
    assert world.log.check("s", world.asked("other epoch", 7)).restart_from == world.tokens[FLOOR_ID - 1]


def test_an_end_mark_is_seen_and_changes_no_position(log: Any) -> None:
    world = fill(log)
    world.session.end()
    verdict = log.check("s", f"{world.tokens[9]}.end")
    assert verdict.reason is AT_HEAD
    assert verdict.seen_end
    assert verdict.ended
    assert not log.check("s", world.tokens[9]).seen_end


def test_explanations_say_fact_and_number(log: Any) -> None:
    session = log.create("s", retention=replaylog.Retention(events=64))
    session.extend([(f"event {n}", "message") for n in range(130)])
    log.create("r").append("x")
    log.reap("r", reason="idle")
    below = log.check("s", 41).explanation
    assert all(number in below for number in ("41", "42", "66", "67"))
    assert "500" in log.check("s", 500).explanation
    assert "130" in log.check("s", 500).explanation
    assert "idle" in log.check("r", 1).explanation
    assert "never" in log.check("never", 1).explanation
    assert all(
        log.check(name, cursor).explanation for name in ("s", "r", "never") for cursor in (1, ".4.", 129)
    )


# --- the value ---------------------------------------------------------------------------------------


def verdicts(log: Any) -> Iterator[Any]:
    world = fill(log)
    for cursor in (2, 4, 9, 10, ".41.", world.tokens[7]):
        yield log.check("s", cursor)
    yield log.check("never", 2)


def test_a_verdict_is_frozen_and_compares_by_value(memory_log: Any) -> None:
    found = list(verdicts(memory_log))
    assert len(set(found)) == len(found)
    for verdict in found:
        for field in ("ok", "reason", "floor", "head", "anything"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(verdict, field, 1)
        assert verdict.reason.name in repr(verdict).upper().replace("-", "_")
        assert verdict != verdict.reason
    with pytest.raises(TypeError):
        sorted(found)


def test_reason_is_an_enum_of_seven_with_the_wire_form_as_value() -> None:
    assert {reason.value for reason in Reason} == {
        "resumable", "at-head", "below-floor", "forked", "reaped", "unknown", "malformed",
    }  # fmt: skip


def test_a_verdict_does_not_change_when_the_log_moves_on(log: Any) -> None:
    world = fill(log)
    verdict = log.check("s", 7)
    before = (verdict.reason, verdict.floor, verdict.head, verdict.missing)
    world.session.append("more")
    world.session.trim(10)
    assert (verdict.reason, verdict.floor, verdict.head, verdict.missing) == before
    assert verdict != log.check("s", 7)
