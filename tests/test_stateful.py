"""The one property: whatever is done to a log, it answers as a list of events would.

A Hypothesis machine drives the engine and the oracle side by side, in each durability, with a clock
that stands still and no grace, so that every answer is exact: windows, verdicts, events, tokens,
frames, errors; over clean reopens and crashes (`_abandon`: threads stopped, nothing checkpointed).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import model
import replaylog
from support import FULL, FakeClock, open_log

NAMES = ("a", "b", "ab")
NAME = st.sampled_from([*NAMES, *NAMES, "never"])
LOOKS = st.sampled_from([1, 5])
KINDS = st.sampled_from(["message", "progress", "", "r\u00e9sultat"])
PAYLOADS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.binary(max_size=12),
    st.sampled_from(["x" * 3000, None, True, 0, -1, 1.5, [], {"pct": 10}, "a\nb", "a\rb", b"\xff\r"]),
)
KEYS = st.sampled_from(["k1", "k2", "\u00fcber"])
LIMITS = st.sampled_from(
    [
        model.Limits(),
        model.Limits(events=1),
        model.Limits(events=5),
        model.Limits(events=40),
        model.Limits(bytes=100),
        model.Limits(bytes=300),
        model.Limits(bytes=3000),
        model.Limits(age_s=10),
        model.Limits(events=8, bytes=1000, age_s=30),
    ]
)
OWN = st.one_of(st.none(), LIMITS)
RARELY = st.sampled_from([False, False, False, False, True])


class Near(NamedTuple):
    """A cursor that is drawn before the window is known: some ids from the floor or the head."""

    edge: str
    off: int


CURSORS = st.one_of(
    st.builds(Near, st.sampled_from(["floor", "head"]), st.integers(-3, 3)),
    st.sampled_from(list(model.Origin)),
    st.integers(0, 60),
    st.none(),
)
ORIGINS = {
    model.Origin.START: replaylog.START,
    model.Origin.FLOOR: replaylog.FLOOR,
    model.Origin.HEAD: replaylog.HEAD,
}


def retention(limits: model.Limits) -> Any:
    return replaylog.Retention(**{name: value for name, value in vars(limits).items() if value is not None})


def plain(event: Any) -> tuple[Any, ...]:
    """What must be equal of an engine's and an oracle's event, types included."""
    payload = event.payload
    return (event.id, event.kind, type(payload), payload, event.time_ns, event.tag, event.cursor, event.frame)


def outcome(action: Any) -> tuple[model.Refused | None, Any]:
    """The oracle's refusal, or its answer."""
    try:
        return None, action()
    except model.Refused as refused:
        return refused, None


class Follower:
    """A live reader of the engine, and where the oracle says that it stands."""

    def __init__(self, session: model.Session, position: int, follow: Any) -> None:
        self.session, self.position, self.follow = session, position, follow


class LogMachine(RuleBasedStateMachine):
    durability = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="replaylog-"))
        self.clock = FakeClock()
        self.tokens: list[str] = []  # every token ever given out, of every epoch
        self.followers: list[Follower] = []

    @initialize(limits=LIMITS, own=st.tuples(OWN, OWN, OWN), look_every=LOOKS)
    def begin(self, limits: model.Limits, own: tuple[model.Limits | None, ...], look_every: int) -> None:
        # To look is to settle the floor: where nobody looks for a while, readers must find out alone.
        self.look_every, self.steps = look_every, 0
        self.oracle = model.Log(self.clock, limits)
        self.log = self.open()
        for name, its in zip(NAMES, own, strict=True):
            self.create(name, its, None)

    def open(self) -> Any:
        # As little memory as there may be, so that sessions come and go; without a disk there must be enough.
        memory = {} if self.durability == "memory" else {"memory_bytes": 1 << 16}
        return open_log(
            self.durability,
            self.directory / "log",
            retention=retention(self.oracle.limits),
            clock=self.clock,
            replay_grace_s=0,
            checkpoint_interval_s=0.05,
            **memory,
        )

    def teardown(self) -> None:
        if hasattr(self, "log"):
            if self.durability != "memory":
                assert self.log.verify() == []
            self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- both at once

    def both(self, on_engine: Any, on_oracle: Any) -> Any:
        """Do the same to both; the same error with the same facts, or the same answer."""
        refused, expected = outcome(on_oracle)
        if refused is None:
            found = on_engine()
            assert found == expected
            return found
        with pytest.raises(getattr(replaylog, refused.error)) as caught:
            on_engine()
        for fact, value in refused.facts.items():
            assert getattr(caught.value, fact) == value, (fact, refused)
        return None

    def resolve(self, name: str, cursor: Any) -> Any:
        """The cursor as the oracle takes it."""
        if not isinstance(cursor, Near):
            return cursor
        session = self.oracle.sessions.get(name)
        return 0 if session is None else max(0, getattr(session, cursor.edge) + cursor.off)

    def remember(self, name: str) -> None:
        session = self.oracle.sessions.get(name)
        if session is not None:
            self.tokens.append(session.token(session.head))

    # --- sessions

    @rule(name=st.sampled_from(NAMES), limits=OWN, meta=st.sampled_from([None, {"user": "u1"}]))
    def create(self, name: str, limits: model.Limits | None, meta: Any) -> None:
        own = None if limits is None else retention(limits)
        known = self.oracle.sessions.get(name)
        if known is None or known.state == "reaped":
            session = self.log.create(name, retention=own, meta=meta)
            assert session.epoch not in {other.epoch for other in self.oracle.sessions.values()}
            self.oracle.create(name, session.epoch, limits, meta)
        else:
            with pytest.raises(replaylog.SessionExists) as caught:
                self.log.create(name, retention=own, meta=meta)
            assert (caught.value.name, caught.value.epoch, caught.value.head) == (
                name, known.epoch, known.head,
            )  # fmt: skip
            assert self.log.create(name, exist_ok=True).epoch == known.epoch
        self.remember(name)

    @rule(name=NAME, reason=st.sampled_from(["", "idle"]), really=RARELY)
    def reap(self, name: str, reason: str, really: bool) -> None:
        if really and name in self.oracle.sessions and self.oracle.sessions[name].state != "reaped":
            self.log.reap(name, reason=reason)
            self.oracle.reap(name, reason)
            assert self.log.check(name, 0).last_reason == reason

    # --- events

    @rule(name=NAME, payload=PAYLOADS, kind=KINDS)
    def append(self, name: str, payload: Any, kind: str) -> None:
        self.both(
            lambda: self.log.session(name).append(payload, kind=kind),
            lambda: self.oracle.append(name, payload, kind),
        )
        self.remember(name)

    @rule(name=NAME, payloads=st.lists(PAYLOADS, min_size=1, max_size=25), kind=KINDS)
    def append_nowait(self, name: str, payloads: list[Any], kind: str) -> None:
        def on_engine() -> list[int]:
            session = self.log.session(name)
            tickets = [session.append_nowait(payload, kind=kind) for payload in payloads]
            return [ticket.wait(10) for ticket in tickets]

        self.both(on_engine, lambda: [self.oracle.append(name, payload, kind) for payload in payloads])

    @rule(name=NAME, events=st.lists(st.tuples(PAYLOADS, KINDS), min_size=1, max_size=25))
    def extend(self, name: str, events: list[tuple[Any, str]]) -> None:
        self.both(lambda: self.log.session(name).extend(events), lambda: self.oracle.extend(name, events))
        self.remember(name)

    @rule(
        name=NAME,
        key=KEYS,
        payload=st.sampled_from(["p", "q"]),
        kind=st.sampled_from(["message", "x"]),
    )
    def append_with_key(self, name: str, key: str, payload: str, kind: str) -> None:
        state = getattr(self.oracle.sessions.get(name), "state", None)
        if state == "ended":
            return  # a known key after the end: the contract leaves it open
        self.both(
            lambda: self.log.session(name).append(payload, kind=kind, key=key),
            lambda: self.oracle.append(name, payload, kind, key=key),
        )

    @rule(name=NAME, off=st.integers(-2, 2))
    def append_expecting_a_head(self, name: str, off: int) -> None:
        expected = max(0, getattr(self.oracle.sessions.get(name), "head", 0) + off)
        self.both(
            lambda: self.log.session(name).append("e", expect_head=expected),
            lambda: self.oracle.append(name, "e", expect_head=expected),
        )

    @rule(name=NAME, payload=st.one_of(st.none(), st.just("bye")), really=RARELY)
    def end(self, name: str, payload: Any, really: bool) -> None:
        if not really:
            return

        def on_engine() -> None:
            self.log.session(name).end(payload, kind="result")

        self.both(on_engine, lambda: self.oracle.end(name, payload, "result"))
        self.remember(name)

    @rule(name=NAME, back=st.integers(0, 10))
    def trim(self, name: str, back: int) -> None:
        floor = max(1, getattr(self.oracle.sessions.get(name), "head", 0) + 1 - back)

        def on_engine() -> None:
            self.log.session(name).trim(floor)

        self.both(on_engine, lambda: self.oracle.trim(name, floor))

    @rule(seconds=st.sampled_from([0.001, 1, 4, 9.999, 10, 60]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.oracle.settle()

    # --- readers

    @rule(name=NAME, cursor=CURSORS)
    def check_a_position(self, name: str, cursor: Any) -> None:
        cursor = self.resolve(name, cursor)
        self.compare_verdict(name, cursor)

    @precondition(lambda self: self.tokens)
    @rule(name=NAME, data=st.data())
    def check_a_token(self, name: str, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        self.compare_verdict(name, token)
        self.compare_verdict(name, token.encode())

    @rule(name=NAME, cursor=CURSORS, flip=st.integers(0, 31))
    def check_a_token_with_a_wrong_bit(self, name: str, cursor: Any, flip: int) -> None:
        session, id = self.oracle.sessions.get(name), self.resolve(name, cursor)
        if session is not None and isinstance(id, int):
            tag = session.tag_at(min(id, session.head)) ^ (1 << flip)
            self.compare_verdict(name, model.token_of(session.epoch, id, tag))

    def compare_verdict(self, name: str, cursor: Any) -> None:
        expected = self.oracle.check(name, cursor)
        verdict = self.log.check(name, ORIGINS.get(cursor, cursor))
        assert (verdict.reason.value, verdict.floor, verdict.head) == (
            expected.reason, expected.floor, expected.head,
        )  # fmt: skip
        assert verdict.ok is expected.ok
        if expected.reason not in ("reaped", "unknown", "malformed"):
            assert (verdict.missing, verdict.lost, verdict.ended) == (
                expected.missing, expected.lost, expected.ended,
            )  # fmt: skip

    @rule(name=NAME, cursor=CURSORS, as_text=st.booleans())
    def resume(self, name: str, cursor: Any, as_text: bool) -> None:
        cursor = self.resolve(name, cursor)
        refused, expected = outcome(lambda: self.oracle.replay(name, cursor))
        if refused is not None:
            with pytest.raises(replaylog.NotResumable):
                self.log.resume(name, ORIGINS.get(cursor, cursor))
            return
        with self.log.resume(name, ORIGINS.get(cursor, cursor)) as replay:
            if as_text:
                assert b"".join(replay.frames()) == b"".join(event.frame for event in expected)
            else:
                assert [plain(event) for event in replay] == [plain(event) for event in expected]

    @precondition(lambda self: len(self.followers) < 6)
    @rule(name=st.sampled_from(NAMES), back=st.integers(0, 6), by_token=st.booleans())
    def start_to_follow(self, name: str, back: int, by_token: bool) -> None:
        self.oracle.settle()
        session = self.oracle.sessions[name]
        if session.state != "reaped":
            position = max(session.floor - 1, session.head - back)
            cursor = session.token(position) if by_token else position
            follow = self.log.session(name).follow(cursor, timeout_s=0)
            follower = Follower(session, position, follow)
            self.followers.append(follower)
            self.read_on(follower, by_take=by_token)

    @precondition(lambda self: self.followers)
    @rule(data=st.data(), by_take=st.booleans())
    def a_follower_reads_on(self, data: st.DataObject, by_take: bool) -> None:
        self.read_on(data.draw(st.sampled_from(self.followers)), by_take)

    def read_on(self, follower: Follower, by_take: bool) -> None:
        session = follower.session
        self.oracle.settle()
        if session.state == "reaped" and session.ended and follower.position == session.head:
            assert drain(follower.follow) == []  # it has had everything, and the end
        elif session.state == "reaped":
            with pytest.raises(replaylog.ReplayLogError):
                drain(follower.follow)
            self.followers.remove(follower)
        elif follower.position < session.floor - 1:
            with pytest.raises(replaylog.Overrun) as caught:
                drain(follower.follow)
            assert caught.value.verdict.reason is replaylog.Reason.BELOW_FLOOR
            self.followers.remove(follower)
        else:
            expected = session.after(follower.position)
            if by_take:
                assert take_all(follower.follow) == b"".join(event.frame for event in expected)
            else:
                assert [plain(e) for e in drain(follower.follow)] == [plain(e) for e in expected]
            follower.position = session.head
            assert follower.follow.cursor == session.token(session.head)

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def a_follower_leaves(self, data: st.DataObject) -> None:
        follower = data.draw(st.sampled_from(self.followers))
        follower.follow.close()
        assert drain(follower.follow) == []
        self.followers.remove(follower)

    # --- restarts

    @precondition(lambda self: self.durability != "memory")
    @rule(clean=st.booleans(), limits=st.one_of(st.none(), LIMITS))
    def restart(self, clean: bool, limits: model.Limits | None) -> None:
        self.oracle.settle()
        if clean:
            self.log.close()
        else:
            self.log.flush()  # in `relaxed` a crash may cost what was not flushed
            self.log._abandon()
        self.followers.clear()
        if limits is not None:
            self.oracle.limits = limits
        self.log = self.open()

    @precondition(lambda self: self.durability != "memory")
    @rule()
    def flush(self) -> None:
        self.log.flush()

    # --- always

    @invariant()
    def every_session_is_as_the_oracle_says(self) -> None:
        if not hasattr(self, "log"):
            return
        self.steps += 1
        if self.steps % self.look_every:
            return
        self.oracle.settle()
        live = {}
        for name, session in self.oracle.sessions.items():
            if session.state == "reaped":
                with pytest.raises(replaylog.SessionReaped) as caught:
                    self.log.session(name)
                assert (caught.value.last_id, caught.value.reason) == (session.head, session.reap_reason)
                continue
            found = self.log.session(name)
            live[name] = (session.epoch, session.floor, session.head, session.state)
            assert (found.epoch, found.floor, found.head, found.state) == live[name]
            assert found.cursor == session.token(session.head)
            assert found.meta == session.meta
        listed = {info.name: info for info in self.log.sessions() if info.state != "reaped"}
        assert {name: (i.epoch, i.floor, i.head, i.state) for name, i in listed.items()} == live


def drain(follow: Any) -> list[Any]:
    """What a follower gets without waiting."""
    events = []
    try:
        for event in follow:
            events.append(event)
    except TimeoutError:
        pass
    return events


def take_all(follow: Any) -> bytes:
    return b"".join(iter(follow.take, b""))


def machine(name: str, examples: int, steps: int) -> type:
    """The machine for one durability, as a test case."""
    case = type(f"LogMachine_{name}", (LogMachine,), {"durability": name}).TestCase
    case.settings = settings(
        max_examples=examples * (10 if FULL else 1),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return case


TestMemory = machine("memory", examples=250, steps=60)
TestSync = machine("sync", examples=200, steps=60)
TestRelaxed = machine("relaxed", examples=200, steps=60)
