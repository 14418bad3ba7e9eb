"""The process that test_crash.py kills: appenders, trims, a follower and checkpoints in flight.

    python crash_worker.py DIRECTORY SEED ROUND DURABILITY BROKEN

It reports on stdout, one line per fact, each written by one os.write *after* the call returned:

    I session epoch             the session is there
    A session id content        an append was acknowledged
    V session id content        a follower was shown the event
    t session floor             a trim is about to be asked for
    T session floor             a trim was acknowledged
    K session key id content    an append with a key was acknowledged
    R session epoch last_id     a reap was acknowledged
    E session head              an end was acknowledged
"""

from __future__ import annotations

import os
import random
import sys
import threading
from typing import Any

import replaylog

SESSIONS = ("busy", "slow", "keyed")
APPENDERS = 6


def report(*facts: object) -> None:
    os.write(1, (" ".join(map(str, facts)) + "\n").encode())


def append(log: Any, rng: random.Random, label: str) -> None:
    """One appender: single appends, tickets, ranges, keys; the content names round, thread and turn."""
    turn = 0
    while True:
        turn += 1
        name = rng.choices(SESSIONS, (8, 1, 3))[0]
        session = log.session(name)
        content = f"{label}.{turn}"
        how = rng.randrange(10)
        filler = "x" * rng.choice((0, 0, 10, 600, 5000))
        if name == "keyed":
            id = session.append(f"{content}|{filler}", key=content)
            report("K", name, content, id, content)
        elif how < 6:
            report("A", name, session.append(f"{content}|{filler}"), content)
        elif how < 8:
            tickets = [(session.append_nowait(f"{content}-{n}|"), f"{content}-{n}") for n in range(5)]
            for ticket, text in tickets:
                report("A", name, ticket.wait(60), text)
        else:
            texts = [f"{content}-{n}" for n in range(rng.randrange(1, 30))]
            for id, text in zip(session.extend([(f"{t}|", "message") for t in texts]), texts, strict=True):
                report("A", name, id, text)


def trim(log: Any, rng: random.Random) -> None:
    while True:
        session = log.session(rng.choice(SESSIONS))
        floor = max(1, session.head - rng.randrange(2000))
        report("t", session.name, floor)
        session.trim(floor)
        report("T", session.name, floor)
        threading.Event().wait(rng.random() / 50)


def follow(log: Any) -> None:
    session = log.session("busy")
    while True:
        try:
            for event in session.follow(replaylog.HEAD):
                report("V", session.name, event.id, event.payload.split("|")[0])
        except replaylog.Overrun:
            continue


def come_and_go(log: Any, rng: random.Random, label: str) -> None:
    """Short sessions: created, written, ended or reaped."""
    turn = 0
    while True:
        turn += 1
        name = f"short-{label}-{turn}"
        session = log.create(name)
        report("I", name, session.epoch)
        for n in range(rng.randrange(4)):
            report("A", name, session.append(f"{n}|"), n)
        if rng.random() < 0.5:
            session.end("bye|", kind="result")
            report("E", name, session.head)
        elif rng.random() < 0.5:
            head = session.head
            log.reap(name, reason="short")
            report("R", name, session.epoch, head)
        threading.Event().wait(rng.random() / 100)


def main(directory: str, seed: int, number: int, durability: str, broken: str) -> None:
    extra = {"_broken": broken} if broken else {}
    log = replaylog.open(
        directory,
        durability=durability,
        retention=replaylog.Retention(events=3000),
        journal_extent_bytes=1 << 20,
        checkpoint_interval_s=0.03,
        replay_grace_s=0,
        **extra,
    )
    for name in SESSIONS:
        report("I", name, log.create(name, exist_ok=True).epoch)

    def start(action: Any, *arguments: Any) -> None:
        threading.Thread(target=action, args=(log, *arguments), daemon=True).start()

    for n in range(APPENDERS):
        start(append, random.Random(f"{seed}.{number}.{n}"), f"{number}.{n}")
    start(trim, random.Random(f"{seed}.{number}.trim"))
    start(come_and_go, random.Random(f"{seed}.{number}.short"), str(number))
    start(follow)
    report("READY")
    threading.Event().wait(60)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
