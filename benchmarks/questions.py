"""The questions, each asked of every contestant on the same events.

A stand prepares the contestants once; its questions then yield one cell per contestant: a statement that is
timed in short batches, or a callable that gives samples. The runner goes round the cells, so that a noisy
minute hits everybody.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import limits
from baselines import PEERS, Contestant
from measure import payload_of, time_batches
from ours import OURS, Ours, OursSync, OursWarm

import replaylog

DEEP = 262_144
DEPTHS = (64, 4096, DEEP)
SIZES = (20, 200, 2048, 65536)
SESSIONS = 10_000
COLD_BATCH = 20
RETAINED = 4096  # of the sessions that are appended to for ever


@dataclass
class Cell:
    """One contestant's answer to one question: `sample(seconds)` gives microseconds per call."""

    contestant: str
    sample: Callable[[float], list[float]]


@dataclass
class Question:
    """A name for the raw results, a sentence for people, the cells."""

    name: str
    title: str
    cells: list[Cell]


def _timed(contestant: str, statement: str, names: dict[str, Any], calls: int) -> Cell:
    return Cell(contestant, lambda seconds: time_batches(statement, names, calls=calls, seconds=seconds))


def _payloads(n: int) -> Iterator[bytes]:
    return (payload_of(i) for i in range(n))


def empty_cell(*, attribute: bool = False) -> Cell:
    """The limit of every call: an empty method (or attribute) of a C object."""
    empty = limits.load().Empty()
    names = {"empty": empty, "method": empty.method, "payload": b""}
    return _timed("limit:empty", "empty.number" if attribute else "method(payload)", names, 500)


def copy_cell(n_bytes: int, label: str = "limit:memcpy") -> Cell:
    """The limit of every replay as bytes: one copy of as many."""
    names = {"copy": limits.load().copy, "source": bytes(n_bytes)}
    return _timed(label, "copy(source)", names, max(1, min(200, 10_000_000 // n_bytes // 10)))


class AppendStand:
    """One appender, one session, payloads of several sizes."""

    def __init__(self, path: Path, only: set[str]) -> None:
        self._path = path
        ours = [functools.partial(kind, retained=RETAINED) for kind in OURS[:3]]
        names = [kind.name for kind in (*OURS[:3], *PEERS)]
        kinds = dict(zip(names, (*ours, *PEERS), strict=True))
        self._all = [kind(path / name) for name, kind in kinds.items() if not only or name in only]
        self._recycled = limits.RecycledFile(path / "recycled")
        self._growing = limits.GrowingFile(path / "growing")
        self._behind = limits.Flusher(path / "behind", leads=False)

    def questions(self) -> Iterator[Question]:
        """One per payload size; the peers at 200 bytes."""
        for size in SIZES:
            cells = []
            for c in self._all:
                if size == 200 or c.name.startswith("ours"):
                    names = c.names(c.create(f"append-{size}"), 0) | {"payload": payload_of(7, size)}
                    calls = 1 if c.durable else 20 if c.on_disk else 200
                    cells.append(_timed(c.name, c.append, names, calls))
            block = b"x" * ((size + 511) // 512 * 512)
            for label, f in (
                ("limit:recycled-file", self._recycled.append),
                ("limit:growing-file", self._growing.append),
                ("limit:flush-behind-a-thread", self._behind.commit),
            ):
                cells.append(_timed(label, "f(block)", {"f": f, "block": block}, 1))
            cells.append(empty_cell())
            yield Question(f"append-{size}", f"append one event of {size} bytes, one appender", cells)

    def close(self) -> None:
        """Let the files go."""
        for c in self._all:
            c.close()
        for f in (self._recycled, self._growing, self._behind):
            f.close()


class DeepStand:
    """Sessions of 64, 4,096 and 262,144 events, none trimmed."""

    def __init__(self, path: Path, only: set[str]) -> None:
        self._all: list[tuple[Contestant, dict[int, Any]]] = []
        for kind in (*OURS, *PEERS):
            if only and kind.name not in only:
                continue
            if kind.on_disk and (kind.durable and kind.name not in ("ours-sync", "ours-from-disk")):
                continue  # reads like its non-durable form
            if kind.name == "ours-relaxed":
                continue
            c = kind(path / kind.name)
            sessions = {}
            for depth in DEPTHS:
                sessions[depth] = c.create(f"deep-{depth}")
                c.fill(sessions[depth], _payloads(depth))
            if isinstance(c, OursWarm):
                c.reopen("deep-64")
                sessions = {depth: c.log.session(f"deep-{depth}") for depth in DEPTHS}
            self._all.append((c, sessions))

    def questions(self) -> Iterator[Question]:
        """Floor, head, verdict at each depth, replay of 64, 1,000 and 100,000."""
        yield Question("floor", "floor of a session of 262,144", self._ask("floor", DEEP, 0, 200, empty=True))
        yield Question("head", "head of a session", self._heads())
        for depth in DEPTHS:
            yield Question(
                f"verdict-{depth}",
                f"can a reader replay from the middle of {depth:,}?",
                self._verdicts(depth),
            )
        for n in (64, 1000, 100_000):
            yield Question(f"replay-{n}-first", f"replay of {n:,}: the first event", self._ask("first", DEEP, n, 1))
            yield Question(
                f"replay-{n}-objects",
                f"replay of {n:,}: the last event, as objects",
                [*self._ask("replay", DEEP, n, 1), *self._slices(n)],
            )
            cells = self._ask("sse", DEEP, n, 1)
            for c, sessions in self._all:
                if isinstance(c, Ours):
                    names = c.names(sessions[DEEP], DEEP - n)
                    cells.append(_timed(f"{c.name}:one-buffer", c.sse_whole, names, 1 if n > 1000 else 20))
            size = self._sse_bytes(n)
            yield Question(
                f"replay-{n}-sse", f"replay of {n:,}: the last event, as SSE bytes", [*cells, copy_cell(size)]
            )

    def _ask(self, what: str, depth: int, back: int, calls: int, *, empty: bool = False) -> list[Cell]:
        cells = []
        for c, sessions in self._all:
            if not getattr(c, what):
                continue
            names = c.names(sessions[depth], depth - back)
            n = calls if back == 0 or back > 1000 else 10
            cells.append(_timed(c.name, getattr(c, what), names, n if c.on_disk is False or back else 20))
        if empty:
            cells.append(empty_cell(attribute=True))
        return cells

    def _heads(self) -> list[Cell]:
        ours = [(c, s) for c, s in self._all if c.name.startswith("ours")]
        cells = [_timed(c.name, "session.head", c.names(s[DEEP], 0), 200) for c, s in ours]
        return [*cells, empty_cell(attribute=True)]

    def _verdicts(self, depth: int) -> list[Cell]:
        cells = []
        for c, sessions in self._all:
            names = c.names(sessions[depth], depth // 2)
            slow = c.name == "example-store" and depth > 1000
            calls = 1 if slow else 100 if c.name.startswith("ours") or not c.on_disk else 20
            cells.append(_timed(c.name, c.verdict, names, calls))
            if c.name.startswith("ours"):
                cells += [
                    _timed(f"{c.name}:token", "check(token)", names, calls),
                    _timed(f"{c.name}:token-by-name", "log.check(name, token)", names, calls),
                    _timed(f"{c.name}:ok", "check(token).ok", names, calls),
                ]
        return [*cells, empty_cell()]

    def _slices(self, n: int) -> list[Cell]:
        """The limit of a replay as objects: n bytes objects out of one buffer."""
        source = bytes(200 * n)
        names = {"source": source, "starts": range(0, 200 * n, 200)}
        return [_timed("limit:bytes-objects", "for at in starts: source[at:at + 200]", names, 1 if n > 1000 else 10)]

    def _sse_bytes(self, n: int) -> int:
        for c, sessions in self._all:
            if c.name == "ours-memory":
                return len(b"".join(sessions[DEEP].resume(DEEP - n).frames(1 << 30)))
        return 260 * n

    def close(self) -> None:
        """Let the files go."""
        for c, _ in self._all:
            c.close()


class OpenStand:
    """Directories with 10,000 sessions, closed in order; cold sessions; a journal to recover."""

    def __init__(self, path: Path, only: set[str]) -> None:
        self._path = path
        self._kinds = [k for k in (OursSync, *PEERS) if (k.on_disk and not k.durable) or k is OursSync]
        self._kinds = [k for k in self._kinds if not only or k.name in only]
        for kind in self._kinds:
            c = kind(path / kind.name)
            for session in c.create_all(f"s{i}" for i in range(SESSIONS)):
                c.fill(session, _payloads(4))
            c.close()

    def questions(self) -> Iterator[Question]:
        """Open and first verdict; cold verdicts; recovery per MiB; a replay by a process just opened."""
        title = f"open and first verdict, {SESSIONS:,} sessions after a clean close"
        yield Question("open", title, [Cell(k.name, self._opener(k)) for k in self._kinds])
        yield Question("verdict-cold", "verdict of a session that is not in memory", list(self._colds()))
        yield Question(
            "recovery",
            "recovery, per MiB of journal (open of what a killed process left)",
            self._recoveries(),
        )
        yield Question(
            "cold-replay", "replay of 100,000 by a process that has just opened the log", self._cold_replays()
        )

    def _opener(self, kind: type[Contestant]) -> Callable[[float], list[float]]:
        numbers = itertools.cycle(range(0, SESSIONS, 37))

        def sample(seconds: float) -> list[float]:
            out = []
            deadline = time.perf_counter() + seconds
            while len(out) < 3 or (time.perf_counter() < deadline and len(out) < 200):
                name = f"s{next(numbers)}"
                begin = time.perf_counter()
                opened = kind.open_and_ask(self._path / kind.name, name)
                out.append((time.perf_counter() - begin) * 1e6)
                opened.close()
            return out

        return sample

    def _colds(self) -> Iterator[Cell]:
        path = self._path / OursSync.name / "log"
        with replaylog.open(path) as log:
            tokens = [next(iter(log.resume(f"s{i}", 1))).cursor for i in range(SESSIONS)]
        for label, cursors in (("window", [2] * SESSIONS), ("tag", tokens)):
            yield Cell(f"ours-sync:{label}", _cold_sampler(path, cursors))

    def _recoveries(self) -> list[Cell]:
        cells = []
        for mib in (2, 8, 16):
            path = self._path / f"killed-{mib}"
            log = replaylog.open(path, checkpoint_interval_s=3600.0, checkpoint_bytes=1 << 40)
            sessions = [log.create(f"s{i}", wait=False) for i in range(1000)]
            for i in itertools.count():
                for session in sessions:
                    session.append_nowait(payload_of(i))
                log.flush()
                if log.stats()["journal_bytes_written"] >= mib << 20:
                    break
            written = log.stats()["journal_bytes_written"]
            log._abandon()
            cells.append(Cell(f"ours-sync:{mib}-MiB", self._recovery(path, written / (1 << 20))))
        return cells

    def _recovery(self, path: Path, mib: float) -> Callable[[float], list[float]]:
        def sample(seconds: float) -> list[float]:
            out = []
            deadline = time.perf_counter() + seconds
            while len(out) < 2 or (time.perf_counter() < deadline and len(out) < 50):
                copy = path.with_name("recovering")
                shutil.copytree(path, copy)
                begin = time.perf_counter()
                log = replaylog.open(copy)
                assert log.check("s0", 1)
                out.append((time.perf_counter() - begin) * 1e6 / mib)
                log.close()
                shutil.rmtree(copy)
            return out

        return sample

    def _cold_replays(self) -> list[Cell]:
        path = self._path / "cold"
        with replaylog.open(path, retention=replaylog.Retention(events=1 << 20)) as log:
            session = log.create("deep", retention=replaylog.Retention(events=1 << 20))
            for _ in range(100):
                session.extend([(payload_of(i), "message") for i in range(1000)])
        cells = []
        for label, take in (("first", _take_first), ("last", _take_frames)):

            def sample(seconds: float, take: Callable[[Iterable[Any]], None] = take) -> list[float]:
                out = []
                deadline = time.perf_counter() + seconds
                while len(out) < 3 or (time.perf_counter() < deadline and len(out) < 100):
                    with replaylog.open(path) as log:
                        begin = time.perf_counter()
                        take(log.resume("deep", 0))
                        out.append((time.perf_counter() - begin) * 1e6)
                return out

            cells.append(Cell(f"ours-sync:{label}", sample))
        return cells

    def close(self) -> None:
        """Nothing is open."""


def _take_first(replay: Any) -> None:
    next(replay)


def _take_frames(replay: Any) -> None:
    for _ in replay.frames():
        pass


def _cold_sampler(path: Path, cursors: list[Any]) -> Callable[[float], list[float]]:
    def sample(seconds: float) -> list[float]:
        out = []
        with replaylog.open(path) as log:
            check = log.check
            names = [f"s{i * 7919 % SESSIONS}" for i in range(SESSIONS)]
            asked = [(name, cursors[int(name[1:])]) for name in names]
            deadline = time.perf_counter() + seconds
            for at in range(0, SESSIONS, COLD_BATCH):
                part = asked[at : at + COLD_BATCH]
                begin = time.perf_counter()
                for name, cursor in part:
                    check(name, cursor)
                out.append((time.perf_counter() - begin) * 1e6 / COLD_BATCH)
                if time.perf_counter() > deadline:
                    break
        return out

    return sample


class SessionsStand:
    """One log in memory that grows from 10 to 1,000,000 sessions."""

    def __init__(self, path: Path, only: set[str]) -> None:
        self._log = replaylog.open(None, durability="memory", memory_bytes=8 << 30)
        self._made = 0

    def questions(self) -> Iterator[Question]:
        """The verdict of a held session and by name, one session and many in turn."""
        for n in (10, 10_000, 1_000_000):
            for i in range(self._made, n):
                self._log.create(f"s{i}")
            self._made = n
            names = [f"s{i * 7919 % n}" for i in range(1000)]
            found = {"names": names, "check": self._log.check, "held": self._log.session("s7").check}
            cells = [
                _timed("ours-memory:held", "held(0)", found, 200),
                _timed("ours-memory:by-name", "check('s7', 0)", found, 200),
                _timed("ours-memory:1000-names", "for name in names: check(name, 0)", found, 1),
                empty_cell(),
            ]
            yield Question(f"sessions-{n}", f"verdict among {n:,} sessions (1000-names: all of them)", cells)

    def close(self) -> None:
        """Let it go."""
        self._log.close()


STANDS: dict[str, Any] = {
    "append": AppendStand,
    "deep": DeepStand,
    "open": OpenStand,
    "sessions": SessionsStand,
}
