"""The targets, each with our figure, the best peer's and the limit's from one run.

    python benchmarks/targets.py                # reads results/latest.json, writes results/targets.md

Where a target is a ratio, the ratio decides: absolute figures move with the machine, ratios of one run do
not. Figures are the quiet ones (10th percentile of short batches); throughput is the median round.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NOT_RUN = "-"
HTTP_CASES = (
    (
        "kept connection",
        "backlog of a live session (?until=head), kept connection",
        "bare uvicorn, as many bytes, kept connection",
    ),
    (
        "new connection each",
        "live stream, new connection each",
        "bare uvicorn, as many bytes held open, new connection each",
    ),
)


@dataclass
class Row:
    """One line of the table."""

    what: str
    target: str
    ours: str
    peer: str
    limit: str
    met: bool | None


class Results:
    """The raw results of one run."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.questions = raw["questions"]

    def quiet(self, question: str, contestant: str) -> float | None:
        """Microseconds, None when it was not asked."""
        cell = self.questions.get(question, {}).get(contestant)
        return None if cell is None else float(cell["quiet"])

    def best_peer(self, question: str, among: Callable[[str], bool] = lambda name: True) -> tuple[str, float] | None:
        """The fastest of the others."""
        cells = self.questions.get(question, {})
        found = [
            (name, float(cell["quiet"]))
            for name, cell in cells.items()
            if not name.startswith(("ours", "limit")) and among(name)
        ]
        return min(found, key=lambda pair: pair[1]) if found else None

    def per_s(self, n: int, contestant: str) -> float | None:
        """Events per second, the median round."""
        cell = self.questions.get(f"appenders-{n}", {}).get(contestant)
        return None if cell is None else float(sorted(cell["per_s"])[len(cell["per_s"]) // 2])

    def space(self, question: str, contestant: str, what: str) -> float | None:
        """Bytes."""
        cell = self.questions.get(question, {}).get(contestant)
        return None if cell is None else float(cell[what])


def us(value: float | None) -> str:
    """Three digits, with a unit that fits."""
    if value is None:
        return NOT_RUN
    if value < 1:
        return f"{value * 1e3:.3g} ns"
    return f"{value:.3g} us" if value < 1000 else f"{value / 1e3:.3g} ms"


def named(found: tuple[str, float] | None) -> str:
    """A peer and its figure."""
    return NOT_RUN if found is None else f"{us(found[1])} ({found[0]})"


def rows(r: Results) -> Iterator[Row]:
    """The table."""
    yield from _appends(r)
    yield from _throughput(r)
    yield from _questions(r)
    yield from _replays(r)
    yield from _opening(r)
    yield from _space(r)
    yield from _http()


def _http() -> Iterator[Row]:
    """From the results of http_resume.py and fanout.py, which are runs of their own."""
    served = _other("http_resume")
    for how, case, bare_case in HTTP_CASES:
        one, bare, half = (served.get(name) for name in (case, bare_case, f"{case}, at half load"))
        if one is None or half is None:
            continue
        limit = NOT_RUN if bare is None else f"{bare['per_s']:,.0f} (bare uvicorn)"
        rate, p99 = one["per_s"], half["p99_ms"]
        yield Row(f"HTTP resumes/s of 64, {how}", ">= 10,000", f"{rate:,.0f}", NOT_RUN, limit, rate >= 10_000)
        yield Row(f"p99 at half that load, {how}", "<= 5 ms", f"{p99:.2g} ms", NOT_RUN, NOT_RUN, p99 <= 5)
    fanned = _other("fanout")
    one, bare = fanned.get("10000 followers"), fanned.get("10000 connections, a loop of send(2)")
    if one is not None:
        yield Row(
            "one append to 10,000 followers", "<= 100 ms", f"{one['seconds'] * 1e3:.0f} ms", NOT_RUN,
            NOT_RUN if bare is None else f"{bare['seconds'] * 1e3:.0f} ms (send(2) alone)", one["seconds"] <= 0.1,
        )  # fmt: skip


def _other(name: str) -> dict[str, dict[str, float]]:
    path = HERE / "results" / f"{name}.json"
    if not path.exists():
        return {}
    found = json.loads(path.read_text())["results"]
    return {case: one["median_of_rounds"] for case, one in found.items()}


def _at_most(
    r: Results,
    what: str,
    question: str,
    contestant: str,
    *,
    absolute: float,
    ratio: tuple[float, str] | None = None,
    text: str,
    ahead: bool = False,
    peers: Callable[[str], bool] = lambda name: True,
) -> Row:
    ours = r.quiet(question, contestant)
    limit = r.quiet(question, ratio[1]) if ratio else None
    shown = us(ours)
    met = None
    if ours is not None:
        met = ours <= absolute
        if ratio and limit:
            shown += f" = {ours / limit:.2f}x"
            met = ours <= ratio[0] * limit
    peer = r.best_peer(question, peers)
    if ahead and met and peer:
        met = ours < peer[1]
    return Row(what, text, shown, named(peer), us(limit), met)


def _appends(r: Results) -> Iterator[Row]:
    yield _at_most(
        r, "append, memory", "append-200", "ours-memory", absolute=0.13, ratio=(4.5, "limit:empty"),
        text="<= 4.5x an empty method", peers=lambda name: name in ("deque", "example-store"),
    )  # fmt: skip
    yield _at_most(
        r, "append, durable, one appender", "append-200", "ours-sync", absolute=143,
        ratio=(1.15, "limit:flush-behind-a-thread"),
        text="<= 1.15x one flush behind a thread, ahead of peers", ahead=True,
        peers=lambda name: name in ("sqlite-full", "lmdb-sync", "rocksdb-sync"),
    )  # fmt: skip


def _throughput(r: Results) -> Iterator[Row]:
    for n in (16, 256):
        for hand, limit_name in (
            ("threads", "limit:recycled-file:lead:threads"),
            ("asyncio", "limit:recycled-file:asyncio"),
        ):
            ours, limit = r.per_s(n, f"ours-sync:{hand}"), r.per_s(n, limit_name)
            peers = [(p, r.per_s(n, p)) for p in ("sqlite-full", "lmdb-sync", "rocksdb-sync")]
            best = max(((v, p) for p, v in peers if v is not None), default=None)
            yield Row(
                f"durable appends/s, {n} appenders, {hand}",
                ">= 0.9x the recycled file, same hand-off",
                NOT_RUN if ours is None or not limit else f"{ours:,.0f} = {ours / limit:.2f}x",
                NOT_RUN if best is None else f"{best[0]:,.0f} ({best[1]})",
                NOT_RUN if limit is None else f"{limit:,.0f}",
                None if ours is None or not limit else ours >= 0.9 * limit,
            )


def _questions(r: Results) -> Iterator[Row]:
    for what in ("floor", "head"):
        yield _at_most(
            r,
            what,
            what,
            "ours-sync",
            absolute=0.06,
            ratio=(1.5, "limit:empty"),
            text="<= 1.5x an empty attribute",
        )
    yield _at_most(r, "verdict, int", "verdict-262144", "ours-sync", absolute=0.1, text="<= 0.10 us")
    yield _at_most(
        r,
        "verdict, token, by name",
        "verdict-262144",
        "ours-sync:token-by-name",
        absolute=0.4,
        text="<= 0.4 us",
    )
    shallow, deep = (r.quiet(f"verdict-{depth}", "ours-sync:token") for depth in (64, 262_144))
    yield Row(
        "verdict at depth 262,144 against 64", "the same (<= 1.25x)",
        NOT_RUN if not shallow else f"{deep / shallow:.2f}x",
        NOT_RUN, NOT_RUN, None if not shallow else deep <= 1.25 * shallow,
    )  # fmt: skip
    few, many = (r.quiet(f"sessions-{n}", "ours-memory:held") for n in (10, 1_000_000))
    yield Row(
        "verdict, held session, among 1,000,000 against 10",
        "the same (<= 1.25x)",
        NOT_RUN if not few else f"{many / few:.2f}x",
        NOT_RUN,
        NOT_RUN,
        None if not few else many <= 1.25 * few,
    )
    yield _at_most(r, "verdict, cold, window", "verdict-cold", "ours-sync:window", absolute=5, text="<= 5 us")
    yield _at_most(r, "verdict, cold, tag", "verdict-cold", "ours-sync:tag", absolute=8, text="<= 8 us")


def _replays(r: Results) -> Iterator[Row]:
    yield _at_most(
        r,
        "replay, first event",
        "replay-100000-first",
        "ours-sync",
        absolute=1,
        text="<= 1 us, flat in distance",
    )
    yield _at_most(r, "replay 1,000, objects", "replay-1000-objects", "ours-sync", absolute=40, text="<= 40 us")
    yield _at_most(r, "replay 1,000, SSE bytes", "replay-1000-sse", "ours-sync", absolute=15, text="<= 15 us")
    yield _at_most(
        r,
        "replay 100,000, SSE bytes, memory",
        "replay-100000-sse",
        "ours-sync",
        absolute=4000,
        text="<= 4 ms",
    )
    yield _at_most(
        r,
        "replay 100,000, SSE bytes, disk",
        "replay-100000-sse",
        "ours-from-disk",
        absolute=9000,
        text="<= 9 ms",
    )
    yield _at_most(r, "just opened: first of 100,000", "cold-replay", "ours-sync:first", absolute=500, text="<= 0.5 ms")
    yield _at_most(r, "just opened: last of 100,000", "cold-replay", "ours-sync:last", absolute=10_000, text="<= 10 ms")


def _opening(r: Results) -> Iterator[Row]:
    yield _at_most(r, "open + first verdict, 10,000 sessions", "open", "ours-sync", absolute=600, text="<= 0.6 ms")
    per_mib = r.quiet("recovery", "ours-sync:16-MiB")
    yield Row(
        "open after a kill, 16 MiB of journal", "<= 50 ms", NOT_RUN if per_mib is None else us(per_mib * 16),
        NOT_RUN, NOT_RUN, None if per_mib is None else per_mib * 16 <= 50_000,
    )  # fmt: skip


def _space(r: Results) -> Iterator[Row]:
    for what, question, contestant, part, most, peers in (
        ("memory per event of 200 B, sync", "space-memory", "ours-sync", "per_event", 280, ()),
        (
            "memory per event of 200 B, memory mode",
            "space-memory",
            "ours-memory",
            "per_event",
            280,
            ("deque", "example-store"),
        ),
        ("memory per idle session", "space-idle", "ours-sync", "per_session", 256, ()),
        ("memory per cold session", "space-idle", "ours-sync:cold", "per_session", 1, ()),
    ):
        ours = r.space(question, contestant, part)
        others = [(v, p) for p in peers if (v := r.space(question, p, part)) is not None]
        yield Row(
            what, f"<= {most} B", NOT_RUN if ours is None else f"{ours:.0f} B",
            f"{min(others)[0]:.0f} B ({min(others)[1]})" if others else NOT_RUN, NOT_RUN,
            None if ours is None else ours <= most,
        )  # fmt: skip


def table(found: Iterable[Row]) -> list[str]:
    """Markdown."""
    words = {True: "yes", False: "**no**", None: NOT_RUN}
    return [
        "| what | target | ours | best peer | limit | met |",
        "|---|---|---|---|---|---|",
        *(f"| {r.what} | {r.target} | {r.ours} | {r.peer} | {r.limit} | {words[r.met]} |" for r in found),
    ]


def where(raw: dict[str, Any]) -> str:
    """Which run, on what."""
    machine = raw["machine"]
    return (
        f"From [{raw['name']}.json]({raw['name']}.json): {machine['cpus']} x {machine['cpu']}, "
        f"{machine['file_system']}, Python {machine['python']}, "
        f"load {machine['load'][0]} at the start, {machine['time']}."
    )


def render(raw: dict[str, Any], again: dict[str, Any] | None) -> str:
    """The page: every target from one run; below, what was asked once more, whichever came out better."""
    out = [
        "# Targets",
        "",
        f"{where(raw)} Quiet figures: the 10th percentile of short batches; throughput: the median of the rounds. "
        "The HTTP lines are of runs of their own.",
        "",
        *table(rows(Results(raw))),
    ]
    if again is not None:
        asked = [*_throughput(Results(again)), *_space(Results(again))]
        out += ["", "## Asked once more", "", where(again), "", *table(r for r in asked if r.ours != NOT_RUN)]
    return "\n".join(out) + "\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="latest")
    parser.add_argument("--again", default="again", help="another run, shown below the table where it is there")
    args = parser.parse_args()
    results = HERE / "results"
    path = results / f"{args.again}.json"
    again = json.loads(path.read_text()) if path.exists() else None
    text = render(json.loads((results / f"{args.name}.json").read_text()), again)
    (results / "targets.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
