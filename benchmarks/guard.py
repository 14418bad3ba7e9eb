"""Ratios of one run, for CI: exits 1 when something that should be flat is not, or a call lost its speed.

    python benchmarks/guard.py

Never times: each bound is between two things measured in turns on the same machine, the best of many short
batches of each, asked up to TRIES times. The bounds are generous: what fails here is a change of kind, such
as a copy, a lock or a look-up in a path that had none.
"""

from __future__ import annotations

import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import limits
from measure import payload_of

import replaylog

TRIES = 3
BATCHES = 60
Timed = Callable[[], float]


def timed(statement: str, calls: int, **names: Any) -> Timed:
    """Seconds per call of one short batch."""
    timer = timeit.Timer(statement, globals=names)
    return lambda: timer.timeit(calls) / calls


def ratio(ours: Timed, other: Timed, batches: int = BATCHES) -> float:
    """Best of ours over best of the other, in turns."""
    best = [float("inf"), float("inf")]
    for _ in range(batches):
        for i, one in enumerate((ours, other)):
            best[i] = min(best[i], one())
    return best[0] / best[1]


def checks(scratch: Path) -> Iterator[tuple[str, float, Callable[[], float]]]:
    """(claim, bound, ratio)."""
    empty = limits.load().Empty()
    method = timed("f(p)", 500, f=empty.method, p=b"")
    number = timed("e.number", 500, e=empty)
    copy = limits.load().copy
    payload = payload_of(7)
    log = replaylog.open(None, durability="memory", memory_bytes=1 << 30, retention=replaylog.Retention(events=1 << 20))
    ring = log.create("ring", retention=replaylog.Retention(events=4096))
    append = timed("f(p)", 500, f=ring.append, p=payload)
    yield "append in memory <= 16x an empty method", 16, lambda: ratio(append, method)
    sessions = {}
    for depth in (64, 131_072):
        sessions[depth] = log.create(f"deep-{depth}")
        for at in range(0, depth, 4096):
            sessions[depth].extend([(payload, "message")] * min(4096, depth - at))
    deep, shallow = sessions[131_072], sessions[64]
    yield "floor <= 2.5x an attribute", 2.5, lambda: ratio(timed("s.floor", 500, s=deep), number)
    yield "head <= 2.5x an attribute", 2.5, lambda: ratio(timed("s.head", 500, s=deep), number)
    yield (
        "verdict <= 8x an empty method",
        8,
        lambda: ratio(timed("f(c)", 500, f=deep.check, c=70_000), method),
    )
    tokens = {s: s.resume(s.head // 2).verdict.from_token for s in (deep, shallow)}
    ask = {s: timed("f(c)", 500, f=s.check, c=token) for s, token in tokens.items()}
    yield "verdict at depth 131,072 <= 2x at 64", 2, lambda: ratio(ask[deep], ask[shallow])
    many = replaylog.open(None, durability="memory")
    for i in range(10_000):
        many.create(f"s{i}")
    names = {"f": many.check, "n": "s5000", "c": 0}
    few = {"f": log.check, "n": "deep-64", "c": 0}
    yield (
        "verdict by name of 10,000 sessions <= 2x of 3",
        2,
        lambda: ratio(timed("f(n, c)", 500, **names), timed("f(n, c)", 500, **few)),
    )
    first = {n: timed("next(f(c))", 50, f=deep.resume, c=deep.head - n) for n in (64, 100_000)}
    yield "first event of 100,000 <= 4x of 64", 4, lambda: ratio(first[100_000], first[64])
    size = len(b"".join(deep.resume(deep.head - 100_000).frames(1 << 30)))
    whole = timed("for _ in f(c).frames(1 << 30): pass", 1, f=deep.resume, c=deep.head - 100_000)
    memcpy = timed("f(s)", 1, f=copy, s=bytes(size))
    yield "replay of 100,000 as bytes <= 6x memcpy", 6, lambda: ratio(whole, memcpy, 12)
    yield from durable_checks(scratch, payload)


def durable_checks(scratch: Path, payload: bytes) -> Iterator[tuple[str, float, Callable[[], float]]]:
    """Against write + fdatasync into a recycled file."""
    log = replaylog.open(scratch / "log")
    session = log.create("s")
    recycled = limits.RecycledFile(scratch / "recycled", 4 << 20)
    block = b"x" * 512
    ours = timed("f(p)", 1, f=session.append, p=payload)
    flush = timed("f(p)", 1, f=recycled.append, p=block)
    yield "durable append <= 4x write and flush of a recycled file", 4, lambda: ratio(ours, flush, 300)


def main() -> int:
    """The command."""
    begin = time.perf_counter()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="replaylog-guard-") as scratch:
        for claim, bound, measured in checks(Path(scratch)):
            found = measured()
            for _ in range(TRIES - 1):
                if found <= bound:
                    break
                found = min(found, measured())
            failed += found > bound
            print(f"{'ok  ' if found <= bound else 'FAIL'} {claim}: {found:.2f}", flush=True)
    print(f"{failed} failed, {time.perf_counter() - begin:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
