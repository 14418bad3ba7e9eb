"""Concurrent durable appenders, sustained over checkpoints: threads and asyncio, against the recycled file.

Every appender waits until its event is durable before it appends the next one, to another of 1,000 sessions.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import limits
import measure
from baselines import GroupCommit, LMDBSync, RocksDBSync, SQLiteFull

import replaylog
import replaylog.aio

SESSIONS = 1000
WAITS_EVERY = 16  # one wait in so many is kept
STRIDE = 7919  # from one session to the next: far apart

Result = tuple[float, list[float]]  # events per second, waits in us


def race(path: Path, n: int, *, rounds: int, seconds: float, sessions: int, only: set[str]) -> dict[str, Any]:
    """Rounds of everybody in turn."""
    found: dict[str, list[Result]] = {}
    for _ in range(rounds):
        for name, run in CONTESTANTS.items():
            if only and name not in only:
                continue
            if n > 256 and name.endswith(":threads"):
                continue  # a thousand Python threads measure the scheduler
            where = path / f"{name.replace(':', '-')}-{n}"
            where.mkdir()
            found.setdefault(name, []).append(run(where, n, sessions, seconds))
            shutil.rmtree(where)
    out = {}
    for name, results in found.items():
        waits = [w for _, w in results]
        out[name] = {"per_s": [round(per_s) for per_s, _ in results], "wait_us": measure.summary(waits)}
        out[name]["waits"] = [measure.thin(w) for w in waits]
    return out


def with_threads(n: int, sessions: int, seconds: float, append: Callable[[int, bytes], Any]) -> Result:
    """`append(k, payload)`: the k-th session."""
    counts, waits = [0] * n, []
    payload = measure.payload_of(7)
    deadline = time.perf_counter() + seconds

    def work(i: int) -> None:
        done, k = 0, i * 31
        mine = []
        now = time.perf_counter()
        while now < deadline:
            append(k % sessions, payload)
            done += 1
            k += STRIDE
            then, now = now, time.perf_counter()
            if done % WAITS_EVERY == 0:
                mine.append((now - then) * 1e6)
        counts[i] = done
        waits.extend(mine)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin), waits or [0.0]


async def with_tasks(n: int, sessions: int, seconds: float, append: Callable[[int, bytes], Awaitable[Any]]) -> Result:
    """The same with tasks of one loop."""
    waits: list[float] = []
    payload = measure.payload_of(7)
    deadline = time.perf_counter() + seconds

    async def work(i: int) -> int:
        done, k = 0, i * 31
        now = time.perf_counter()
        while now < deadline:
            await append(k % sessions, payload)
            done += 1
            k += STRIDE
            then, now = now, time.perf_counter()
            if done % WAITS_EVERY == 0:
                waits.append((now - then) * 1e6)
        return done

    begin = time.perf_counter()
    counts = await asyncio.gather(*(work(i) for i in range(n)))
    return sum(counts) / (time.perf_counter() - begin), waits or [0.0]


def ours_threads(path: Path, n: int, sessions: int, seconds: float) -> Result:
    """Session.append from threads."""
    with replaylog.open(path / "log") as log:
        appends = [log.create(f"s{i}", wait=False).append for i in range(sessions)]
        log.flush()
        return with_threads(n, sessions, seconds, lambda k, payload: appends[k](payload))


def ours_asyncio(path: Path, n: int, sessions: int, seconds: float) -> Result:
    """aio.Session.append from tasks."""

    async def run() -> Result:
        async with await replaylog.aio.open(path / "log") as log:
            for i in range(sessions):
                log.sync.create(f"s{i}", wait=False)
            await log.flush()
            appends = [(await log.session(f"s{i}")).append for i in range(sessions)]
            return await with_tasks(n, sessions, seconds, lambda k, payload: appends[k](payload))

    return asyncio.run(run())


def limit_threads(path: Path, n: int, sessions: int, seconds: float) -> Result:
    """The recycled file, whoever comes first writes."""
    flusher = limits.Flusher(path / "recycled", leads=True)
    try:
        return with_threads(n, sessions, seconds, lambda _, payload: flusher.commit(payload))
    finally:
        flusher.close()


def limit_thread(path: Path, n: int, sessions: int, seconds: float) -> Result:
    """The recycled file, a thread writes."""
    flusher = limits.Flusher(path / "recycled", leads=False)
    try:
        return with_threads(n, sessions, seconds, lambda _, payload: flusher.commit(payload))
    finally:
        flusher.close()


def limit_asyncio(path: Path, n: int, sessions: int, seconds: float) -> Result:
    """The recycled file, a thread writes, tasks wait."""
    flusher = limits.Flusher(path / "recycled", leads=False)
    try:
        return asyncio.run(with_tasks(n, sessions, seconds, lambda _, payload: flusher.acommit(payload)))
    finally:
        flusher.close()


def nothing_asyncio(path: Path, n: int, sessions: int, seconds: float) -> Result:
    """asyncio with a store that does nothing."""
    store = limits.NothingStore()
    return asyncio.run(with_tasks(n, sessions, min(seconds, 1.0), lambda _, payload: store.acommit(payload)))


def peer(kind: type[Any]) -> Callable[[Path, int, int, float], Result]:
    """A peer behind one thread and one commit per batch."""

    def run(path: Path, n: int, sessions: int, seconds: float) -> Result:
        store = kind(path)
        handles = [store.create(f"s{i}") for i in range(sessions)]
        group = GroupCommit(store.commit)
        try:
            return asyncio.run(with_tasks(n, sessions, seconds, lambda k, payload: group.append(handles[k], payload)))
        finally:
            group.close()
            store.close()

    return run


CONTESTANTS: dict[str, Callable[[Path, int, int, float], Result]] = {
    "ours-sync:threads": ours_threads,
    "limit:recycled-file:lead:threads": limit_threads,
    "limit:recycled-file:threads": limit_thread,
    "ours-sync:asyncio": ours_asyncio,
    "limit:recycled-file:asyncio": limit_asyncio,
    "limit-of-asyncio": nothing_asyncio,
    "sqlite-full": peer(SQLiteFull),
    "lmdb-sync": peer(LMDBSync),
    "rocksdb-sync": peer(RocksDBSync),
}
