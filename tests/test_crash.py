"""kill -9 in a loop. The one property: what was acknowledged, or shown to a reader, is there.

Each round a process appends, trims, ends, reaps and checkpoints from many threads, and reports every
acknowledgement through a pipe; it is killed at a random moment, and the log is opened again:

    1 nothing acknowledged is lost            4 the floor never falls
    2 no id has two contents, in any round    5 tokens of earlier rounds are never FORKED
    3 ids are contiguous                      6 no name is resurrected, none that was told of is unknown

The canary runs the same loop on an engine that acknowledges before it writes; it must be caught.
REPLAYLOG_FULL=1 runs 200 rounds instead of 20. A failure prints its seed; REPLAYLOG_SEED repeats it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import replaylog
from replaylog import FLOOR, Reason
from support import EXTENT_BYTES, FULL

ROUNDS = 200 if FULL else 20
CANARY_ROUNDS_MAX = 40
WORKER = Path(__file__).parent / "crash_worker.py"


class Broken(AssertionError):
    """A promise that the log did not keep."""


@dataclass
class Told:
    """All that the killed processes ever reported of one session, and all that was read since."""

    epoch: int
    content: dict[int, str] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    floor: int = 1
    floor_asked: int = 1
    ended_at: int | None = None
    reaped: bool = False
    token: str | None = None


class Ledger:
    """What was promised. `hear` adds to it, `audit` compares the log with it."""

    def __init__(self) -> None:
        self.told: dict[str, Told] = {}
        self.acknowledgements = 0

    def hear(self, line: str) -> None:
        verb, *facts = line.split()
        if verb == "READY":
            return
        name, *rest = facts
        if verb == "I":
            known = self.told.setdefault(name, Told(int(rest[0])))
            claim(known.epoch == int(rest[0]), f"{name}: another epoch than before")
            return
        told = self.told[name]
        if verb in "AV":
            self.note(name, int(rest[0]), rest[1])
            told.acknowledged = max(told.acknowledged, int(rest[0]))
            self.acknowledgements += verb == "A"
        elif verb == "K":
            key, id, content = rest
            self.note(name, int(id), content)
            told.keys[key] = int(id)
            told.acknowledged = max(told.acknowledged, int(id))
            self.acknowledgements += 1
        elif verb == "t":
            told.floor_asked = max(told.floor_asked, int(rest[0]))
        elif verb == "T":
            told.floor = max(told.floor, int(rest[0]))
        elif verb == "E":
            told.ended_at = int(rest[0])
            told.acknowledged = max(told.acknowledged, int(rest[0]))
        elif verb == "R":
            told.reaped = True

    def note(self, name: str, id: int, content: str) -> None:
        before = self.told[name].content.setdefault(id, content)
        claim(before == content, f"{name}: id {id} was {before!r} and is {content!r}")

    def audit(self, log: Any) -> None:
        problems = log.verify()
        claim(problems == [], f"verify: {problems}")
        for name, told in self.told.items():
            if told.reaped:
                claim(
                    log.check(name).reason is Reason.REAPED,
                    f"{name}: acknowledged as reaped, is {log.check(name).reason.name}",
                )
            elif log.check(name).reason is Reason.REAPED and name.startswith("short-"):
                continue  # the reap was under way when the process was killed
            else:
                self.audit_session(log, name, told)

    def audit_session(self, log: Any, name: str, told: Told) -> None:
        claim(log.check(name).reason is not Reason.UNKNOWN, f"{name}: told of, and unknown now")
        session = log.session(name)
        floor, head = session.floor, session.head
        claim(session.epoch == told.epoch, f"{name}: another epoch than before")
        claim(head >= told.acknowledged, f"{name}: head {head}, but id {told.acknowledged} was acknowledged")
        claim(floor >= told.floor, f"{name}: floor fell from {told.floor} to {floor}")
        by_limits = max(told.floor_asked, head - 3000 + 1)
        claim(floor <= by_limits, f"{name}: floor {floor} is above anything asked for ({by_limits})")
        claim(told.ended_at in (None, head), f"{name}: head {head} after the end at {told.ended_at}")
        claim(told.ended_at is None or session.state == "ended", f"{name}: the end is lost")
        self.read(session, floor, head)
        if told.token is not None:
            reason = log.check(name, told.token).reason
            claim(reason is not Reason.FORKED, f"{name}: {told.token} of an earlier round is forked")
        told.token, told.floor = session.cursor, floor
        for key in [key for key, id in told.keys.items() if id >= floor][-3:]:
            with pytest.raises(replaylog.KeyReused) as caught:
                session.append("other content", key=key)
            claim(caught.value.id == told.keys[key], f"{name}: key {key} moved")

    def read(self, session: Any, floor: int, head: int) -> None:
        expected = floor
        with session.resume(FLOOR) as replay:
            for event in replay:
                claim(event.id == expected, f"{session.name}: expected id {expected}, got {event.id}")
                self.note(session.name, event.id, event.payload.split("|")[0])
                expected += 1
        claim(expected == head + 1, f"{session.name}: replay stops at {expected - 1}, head is {head}")


def claim(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


def one_life(
    directory: Path, seed: int, number: int, life_s: float, durability: str, broken: str
) -> list[str]:
    """Start a worker, kill it `life_s` after it is ready, and return the whole lines it reported."""
    command = [sys.executable, str(WORKER), str(directory), str(seed), str(number), durability, broken]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stderr is not None
    said: list[bytes] = []
    ready = threading.Event()

    def listen() -> None:
        for line in worker.stdout or ():
            said.append(line)
            if line == b"READY\n":
                ready.set()

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        if not ready.wait(60):
            worker.kill()
            pytest.fail(f"the worker did not start: {worker.stderr.read().decode()}")
        time.sleep(life_s)
        early = worker.poll()
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    finally:
        worker.kill()
        listener.join()
    complaints = worker.stderr.read().decode()
    assert early is None, complaints
    assert not complaints, complaints
    return [line.decode() for line in said if line.endswith(b"\n")]


def campaign(directory: Path, seed: int, rounds: int, durability: str = "sync", broken: str = "") -> Ledger:
    """Lives and audits in turn. Raises Broken, with the seed, at the first promise not kept."""
    rng = random.Random(seed)
    ledger = Ledger()
    for number in range(rounds):
        lines = one_life(directory, seed, number, rng.uniform(0.02, 0.4), durability, broken)
        try:
            for line in lines:
                ledger.hear(line)
            log = replaylog.open(
                directory,
                durability=durability,
                retention=replaylog.Retention(events=3000),
                journal_extent_bytes=EXTENT_BYTES,
                checkpoint_interval_s=rng.choice((0.02, 60)),
            )
            try:
                ledger.audit(log)
            finally:
                rng.choice((log.close, log._abandon))()
        except Broken as error:
            error.add_note(f"round {number}, REPLAYLOG_SEED={seed}")
            raise
    return ledger


def a_seed() -> int:
    return int(os.environ.get("REPLAYLOG_SEED") or random.randrange(2**32))


def test_kill_9_loses_nothing_acknowledged(tmp_path: Path, disk: str) -> None:
    """`relaxed` too: it may lose its tail to a power cut, never to the end of a process."""
    seed = a_seed()
    ledger = campaign(tmp_path / "log", seed, ROUNDS, durability=disk)
    assert ledger.acknowledgements > 50 * ROUNDS, f"too little happened, seed {seed}"


def test_the_canary_an_engine_that_acknowledges_before_it_writes_is_caught(tmp_path: Path) -> None:
    seed = a_seed()
    with pytest.raises(Broken, match="acknowledged"):
        campaign(tmp_path / "log", seed, CANARY_ROUNDS_MAX, broken="ack-before-write")


# --- the ledger itself: each promise, broken on purpose in a log that is whole ---------------------------

LIES: dict[str, tuple[list[str], str]] = {
    "lost": (["A s 6 later"], "was acknowledged"),
    "shown and lost": (["V s 6 later"], "was acknowledged"),
    "two contents": (["A s 3 other"], "id 3 was"),
    "floor fell": (["T s 3"], "floor fell"),
    "other epoch": (["I s 1"], "epoch"),
    "end lost": (["E s 5"], "the end is lost"),
    "unknown": (["I t 1"], "unknown"),
    "not reaped": (["R s 1 5"], "reaped"),
}


@pytest.mark.parametrize("lie", LIES)
def test_the_ledger_notices(memory_log: Any, lie: str) -> None:
    session = memory_log.create("s")
    ledger = Ledger()
    ledger.hear(f"I s {session.epoch}")
    for n in range(1, 6):
        ledger.hear(f"A s {session.append(f'{n}|')} {n}")
    ledger.audit(memory_log)
    lines, complaint = LIES[lie]
    with pytest.raises(Broken, match=complaint):
        for line in lines:
            ledger.hear(line)
        ledger.audit(memory_log)
