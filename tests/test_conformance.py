"""conformance/verdicts.yaml, run step by step against the oracle and against the engine.

A case is data; `Engine` and `Oracle` translate its verbs, `run` compares. A case that restarts the
log runs where there is a disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

import model
import replaylog
from replaylog import Retention
from support import FakeClock, open_log

CASES = yaml.safe_load((Path(__file__).parent / "conformance" / "verdicts.yaml").read_text())
NEEDS_DISK = {"reopen", "crash"}


def verbs(case: dict[str, Any]) -> set[str]:
    return {verb for step in case["steps"] for verb in step}


class Target(Protocol):
    """What a case can do to a log, and ask of it."""

    def create(self, name: str, retention: dict[str, Any] | None) -> None: ...
    def append(self, name: str, payload: Any, **options: Any) -> int: ...
    def extend(self, name: str, payloads: list[Any]) -> range: ...
    def end(self, name: str, payload: Any) -> None: ...
    def trim(self, name: str, floor: int) -> None: ...
    def reap(self, name: str, reason: str) -> None: ...
    def restart(self, clean: bool, retention: dict[str, Any] | None) -> None: ...
    def token(self, name: str, id: int) -> str: ...
    def origin(self, which: str) -> Any: ...
    def check(self, name: str, cursor: Any) -> dict[str, Any]: ...
    def replay(self, name: str, cursor: Any) -> list[int]: ...
    def state(self, name: str) -> dict[str, Any]: ...
    def exists(self) -> list[str]: ...
    def close(self) -> None: ...


class Oracle:
    """The model, seen as a target. A restart changes nothing but the limits."""

    def __init__(self, clock: FakeClock, retention: dict[str, Any]) -> None:
        self.log = model.Log(clock, model.Limits(**retention))
        self.epoch = 0x1000

    def create(self, name: str, retention: dict[str, Any] | None) -> None:
        self.epoch += 1
        self.log.create(name, self.epoch, model.Limits(**retention) if retention else None)

    def append(self, name: str, payload: Any, **options: Any) -> int:
        return self.log.append(name, payload, **options)

    def extend(self, name: str, payloads: list[Any]) -> range:
        return self.log.extend(name, [(payload, "message") for payload in payloads])

    def end(self, name: str, payload: Any) -> None:
        self.log.end(name, payload)

    def trim(self, name: str, floor: int) -> None:
        self.log.trim(name, floor)

    def reap(self, name: str, reason: str) -> None:
        self.log.reap(name, reason)

    def restart(self, clean: bool, retention: dict[str, Any] | None) -> None:
        if retention is not None:
            self.log.settle()
            self.log.limits = model.Limits(**retention)

    def token(self, name: str, id: int) -> str:
        return self.log.sessions[name].token(id)

    def origin(self, which: str) -> Any:
        return model.Origin(which)

    def check(self, name: str, cursor: Any) -> dict[str, Any]:
        return vars(self.log.check(name, cursor))

    def replay(self, name: str, cursor: Any) -> list[int]:
        return [event.id for event in self.log.replay(name, cursor)]

    def state(self, name: str) -> dict[str, Any]:
        self.log.settle()
        session = self.log.session(name)
        return {"state": session.state, "head": session.head, "floor": session.floor}

    def exists(self) -> list[str]:
        return sorted(name for name, session in self.log.sessions.items() if session.state != "reaped")

    def close(self) -> None:
        pass


class Engine:
    """replaylog, seen as a target."""

    def __init__(self, clock: FakeClock, retention: dict[str, Any], durability: str, path: Path) -> None:
        self.clock, self.durability, self.path = clock, durability, path
        self.retention = retention
        self.log = self._open()

    def _open(self) -> Any:
        retention = Retention(**self.retention)
        return open_log(self.durability, self.path, retention=retention, clock=self.clock)

    def create(self, name: str, retention: dict[str, Any] | None) -> None:
        self.log.create(name, retention=Retention(**retention) if retention else None)

    def append(self, name: str, payload: Any, **options: Any) -> int:
        return self.log.session(name).append(payload, **options)

    def extend(self, name: str, payloads: list[Any]) -> range:
        return self.log.session(name).extend([(payload, "message") for payload in payloads])

    def end(self, name: str, payload: Any) -> None:
        self.log.session(name).end(payload)

    def trim(self, name: str, floor: int) -> None:
        self.log.session(name).trim(floor)

    def reap(self, name: str, reason: str) -> None:
        self.log.reap(name, reason=reason)

    def restart(self, clean: bool, retention: dict[str, Any] | None) -> None:
        if clean:
            self.log.close()
        else:
            self.log.flush()  # nothing in `sync`; in `relaxed` a crash may cost what was not flushed
            self.log._abandon()
        self.retention = self.retention if retention is None else retention
        self.log = self._open()

    def token(self, name: str, id: int) -> str:
        session = self.log.session(name)
        if id == 0:
            return model.token_of(session.epoch, 0, model.tag_at_start(session.epoch))
        with session.resume(id - 1) as replay:
            return next(iter(replay)).cursor

    def origin(self, which: str) -> Any:
        return {"start": replaylog.START, "floor": replaylog.FLOOR, "head": replaylog.HEAD}[which]

    def check(self, name: str, cursor: Any) -> dict[str, Any]:
        verdict = self.log.check(name, cursor)
        fields = {field: getattr(verdict, field) for field in ("floor", "head", "missing", "lost", "ended")}
        return {"reason": verdict.reason.value, **fields}

    def replay(self, name: str, cursor: Any) -> list[int]:
        with self.log.resume(name, cursor) as replay:
            return [event.id for event in replay]

    def state(self, name: str) -> dict[str, Any]:
        session = self.log.session(name)
        return {"state": session.state, "head": session.head, "floor": session.floor}

    def exists(self) -> list[str]:
        return sorted(info.name for info in self.log.sessions() if info.state != "reaped")

    def close(self) -> None:
        self.log.close()


def error_name(error: Exception) -> str:
    return error.error if isinstance(error, model.Refused) else type(error).__name__


class Run:
    """One case on one target."""

    def __init__(self, target: Target, clock: FakeClock) -> None:
        self.target, self.clock = target, clock
        self.tokens: dict[str, str] = {}

    def step(self, verb: str, arguments: dict[str, Any]) -> None:
        arguments = dict(arguments)
        name = arguments.pop("session", "s")
        error = arguments.pop("error", None)
        action: Callable[..., None] = getattr(self, f"do_{verb}")
        if error is None:
            action(name, **arguments)
            return
        with pytest.raises(Exception) as caught:
            action(name, **arguments)
        assert error_name(caught.value) == error

    def do_create(self, name: str, retention: dict[str, Any] | None = None) -> None:
        self.target.create(name, retention)

    def do_append(
        self, name: str, count: int = 1, payload: Any = "x", id: int | None = None, **options: Any
    ) -> None:
        ids = [self.target.append(name, payload, **options) for _ in range(count)]
        if id is not None:
            assert ids == list(range(id, id + count))

    def do_extend(self, name: str, payloads: list[Any], ids: list[int] | None = None) -> None:
        got = self.target.extend(name, payloads)
        if ids is not None:
            assert [got[0], got[-1]] == ids

    def do_end(self, name: str, payload: Any = None) -> None:
        self.target.end(name, payload)

    def do_trim(self, name: str, floor: int) -> None:
        self.target.trim(name, floor)

    def do_reap(self, name: str, reason: str = "") -> None:
        self.target.reap(name, reason)

    def do_advance(self, name: str, seconds: float) -> None:
        self.clock.advance(seconds)

    def do_reopen(self, name: str, retention: dict[str, Any] | None = None) -> None:
        self.target.restart(clean=True, retention=retention)

    def do_crash(self, name: str) -> None:
        self.target.restart(clean=False, retention=None)

    def do_remember(self, name: str, id: int, **named: str) -> None:
        self.tokens[named["as"]] = self.target.token(name, id)

    def do_check(self, name: str, cursor: Any, expect: dict[str, Any]) -> None:
        verdict = self.target.check(name, self.cursor(cursor))
        assert {field: verdict[field] for field in expect} == expect

    def do_replay(self, name: str, cursor: Any, first: int | None = None, last: int | None = None) -> None:
        ids = self.target.replay(name, self.cursor(cursor))
        if first is not None and last is not None:
            assert ids == list(range(first, last + 1))

    def do_state(self, name: str, expect: dict[str, Any]) -> None:
        state = self.target.state(name)
        assert {field: state[field] for field in expect} == expect

    def do_exists(self, name: str, expect: list[str]) -> None:
        assert self.target.exists() == expect

    def cursor(self, cursor: Any) -> Any:
        if not isinstance(cursor, dict):
            return cursor
        if "origin" in cursor:
            return self.target.origin(cursor["origin"])
        epoch, id, tag = self.tokens[cursor["token"]].split(".")
        epoch = replaced(epoch, cursor.get("epoch"))
        tag = replaced(tag, cursor.get("tag"))
        return f"{epoch}.{cursor.get('id', id)}.{tag}{'.end' if cursor.get('end') else ''}"


def replaced(digits: str, by: str | None) -> str:
    """`digits`, or `by`, or for "other" the same number of digits with every bit of the last flipped."""
    if by != "other":
        return by or digits
    return digits[:-1] + f"{int(digits[-1], 16) ^ 0xF:x}"


def run(case: dict[str, Any], target: Target, clock: FakeClock) -> None:
    runner = Run(target, clock)
    for number, step in enumerate(case["steps"], 1):
        ((verb, arguments),) = step.items()
        try:
            runner.step(verb, arguments or {})
        except Exception as error:
            error.add_note(f"case {case['id']}, step {number}: {verb} {json.dumps(arguments)}")
            raise
    target.close()


def by_id(case: dict[str, Any]) -> str:
    return case["id"]


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_the_oracle_gives_the_verdicts_of(case: dict[str, Any], clock: FakeClock) -> None:
    run(case, Oracle(clock, case.get("retention", {})), clock)


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_the_engine_gives_the_verdicts_of(
    case: dict[str, Any], durability: str, clock: FakeClock, tmp_path: Path
) -> None:
    if durability == "memory" and NEEDS_DISK & verbs(case):
        pytest.skip("the case restarts the log")
    run(case, Engine(clock, case.get("retention", {}), durability, tmp_path / "log"), clock)


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case["id"] for case in CASES]
    assert len(names) == len(set(names))
