"""Ask every question of every contestant, in turns, and keep the raw answers.

    python benchmarks/run.py                    # everything, about 20 minutes
    python benchmarks/run.py --only append deep --rounds 3 --seconds 0.2

Prints a header, then per question: quiet (10th percentile), median, p90, p99, max, the ratio to the limit and
to the best peer. Writes benchmarks/results/<name>.json; targets.py and plot.py read that.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import appenders
import measure
import space
from questions import STANDS, Question

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def main() -> None:
    """The command."""
    args = arguments()
    settings = {"rounds": args.rounds, "seconds": args.seconds, "quiet": "p10", "payload": 200}
    settings |= {
        "appender_seconds": args.appender_seconds,
        "appender_rounds": args.appender_rounds,
        "sessions": args.sessions,
    }
    raw: dict[str, Any] = {"name": args.name, "machine": {}, "settings": settings, "questions": {}}
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{args.name}.json"
    with tempfile.TemporaryDirectory(prefix="replaylog-bench-", dir=args.dir) as scratch:
        raw["machine"] = measure.machine(Path(scratch))
        print(measure.header(raw["machine"], settings), flush=True)
        for stand in args.only:
            path = Path(scratch) / stand
            path.mkdir()
            if stand == "appenders":
                ask_appenders(raw, path, args)
            elif stand == "space":
                raw["questions"] |= space.measure_all(path)
                show_space(raw["questions"])
            else:
                ask_stand(raw, STANDS[stand](path, set(args.contestants)), args)
            measure.write_json(target, raw)
            shutil.rmtree(path, ignore_errors=True)
    print(f"\nraw results: {target}")


def arguments() -> argparse.Namespace:
    """What to ask."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[*STANDS, "appenders", "space"])
    parser.add_argument("--contestants", nargs="*", default=[], help="names; all when empty")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.25, help="per cell and round")
    parser.add_argument("--appender-seconds", type=float, default=5.0)
    parser.add_argument("--appender-rounds", type=int, default=3)
    parser.add_argument("--appenders", type=int, nargs="*", default=[1, 16, 256, 1024])
    parser.add_argument("--sessions", type=int, default=appenders.SESSIONS, help="that appenders write to")
    parser.add_argument("--name", default="latest")
    parser.add_argument("--dir", default=None, help="a directory on the disk that is meant; default: TMPDIR")
    return parser.parse_args()


def ask_stand(raw: dict[str, Any], stand: Any, args: argparse.Namespace) -> None:
    """Every question of a stand, round after round."""
    try:
        for question in stand.questions():
            rounds: dict[str, list[list[float]]] = {cell.contestant: [] for cell in question.cells}
            for _ in range(args.rounds):
                for cell in question.cells:
                    rounds[cell.contestant].append(cell.sample(args.seconds))
            raw["questions"][question.name] = cells_of(rounds)
            show(question, raw["questions"][question.name])
    finally:
        stand.close()


def cells_of(rounds: dict[str, list[list[float]]]) -> dict[str, Any]:
    """What is kept of the samples."""
    return {
        name: {k: float(f"{v:.5g}") for k, v in measure.summary(samples).items()}
        | {"rounds": [measure.thin(one) for one in samples]}
        for name, samples in rounds.items()
    }


def show(question: Question, cells: dict[str, Any]) -> None:
    """A table, microseconds."""
    limit = min((c["quiet"] for name, c in cells.items() if name.startswith("limit:")), default=None)
    peers = [c["quiet"] for name, c in cells.items() if not name.startswith(("limit:", "ours"))]
    print(f"\n{question.name}: {question.title} (us)")
    print(f"  {'':32}{'quiet':>10}{'median':>10}{'p90':>10}{'p99':>10}{'max':>11}{'x limit':>9}{'x peer':>8}")
    for name, c in cells.items():
        line = f"  {name:32}" + "".join(f"{c[k]:10.4g}" for k in ("quiet", "median", "p90", "p99"))
        line += f"{c['max']:11.4g}"
        line += f"{c['quiet'] / limit:9.2f}" if limit else f"{'-':>9}"
        line += f"{c['quiet'] / min(peers):8.2f}" if peers else f"{'-':>8}"
        print(line, flush=True)


def ask_appenders(raw: dict[str, Any], path: Path, args: argparse.Namespace) -> None:
    """Concurrent durable appenders: events per second, and what one of them waits."""
    for n in args.appenders:
        cells = appenders.race(
            path,
            n,
            rounds=args.appender_rounds,
            seconds=args.appender_seconds,
            sessions=args.sessions,
            only=set(args.contestants),
        )
        raw["questions"][f"appenders-{n}"] = cells
        limit = max((max(c["per_s"]) for name, c in cells.items() if name.startswith("limit:")), default=float("nan"))
        print(f"\nappenders-{n}: {n} durable appenders over {args.sessions:,} sessions (events/s)")
        print(f"  {'':32}{'median':>10}{'best':>10}{'x limit':>9}{'wait p50':>11}{'p99':>9}{'max us':>10}")
        for name, c in cells.items():
            ordered = sorted(c["per_s"])
            median = ordered[len(ordered) // 2]
            wait = c["wait_us"]
            print(
                f"  {name:32}{median:10,.0f}{ordered[-1]:10,.0f}{ordered[-1] / limit:9.2f}"
                f"{wait['median']:11,.0f}{wait['p99']:9,.0f}{wait['max']:10,.0f}",
                flush=True,
            )


def show_space(questions: dict[str, Any]) -> None:
    """Bytes."""
    for name in ("space-disk", "space-memory", "space-idle"):
        print(f"\n{name}: {space.TITLES[name]}")
        for contestant, cell in questions.get(name, {}).items():
            print(f"  {contestant:32}" + "  ".join(f"{k} {v:,.1f}" for k, v in cell.items()))


if __name__ == "__main__":
    main()
