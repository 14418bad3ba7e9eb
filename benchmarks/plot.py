"""Two plots from the raw results: replay latency against distance, durable appends against appenders.

python benchmarks/plot.py                   # reads results/latest.json, writes results/*.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.hashsalt": "replaylog",
    "svg.fonttype": "none",
}
COLOURS = {"ours": "#c0392b", "limit": "#222222"}
OTHERS = ("#2e86c1", "#28b463", "#8e44ad", "#d68910", "#7f8c8d")
DISTANCES = (64, 1000, 100_000)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="latest")
    raw = json.loads((HERE / "results" / f"{parser.parse_args().name}.json").read_text())
    with plt.rc_context(STYLE):
        replay(raw)
        appends(raw)


def line_style(name: str, others: dict[str, str]) -> dict[str, Any]:
    """We are red, limits are black and dashed, peers have a colour each."""
    if name.startswith("limit"):
        return {"color": COLOURS["limit"], "linestyle": "--", "marker": "."}
    if name.startswith("ours"):
        dash = ":" if "disk" in name or "asyncio" in name else "-"
        return {"color": COLOURS["ours"], "linewidth": 2, "linestyle": dash, "marker": "o"}
    colour = others.setdefault(name, OTHERS[len(others) % len(OTHERS)])
    return {"color": colour, "marker": "."}


def replay(raw: dict[str, Any]) -> None:
    """Microseconds until the last byte, against how many events are missing."""
    figure, axes = plt.subplots(figsize=(6.4, 4))
    others: dict[str, str] = {}
    peers = ("deque", "example-store", "sqlite-normal", "lmdb-nosync", "rocksdb-nosync")
    for name in ("ours-memory", "ours-from-disk", "limit:memcpy", *peers):
        points = [(n, raw["questions"].get(f"replay-{n}-sse", {}).get(name)) for n in DISTANCES]
        points = [(n, cell["quiet"]) for n, cell in points if cell]
        if points:
            axes.plot(*zip(*points, strict=True), label=name, **line_style(name, others))
    axes.set(xscale="log", yscale="log", xlabel="events missing", ylabel="us until the last one, as SSE bytes")
    axes.set_title("Replay out of 262,144 events of 200 bytes", loc="left")
    save(figure, axes, "replay.svg")


def appends(raw: dict[str, Any]) -> None:
    """Events per second, against appenders."""
    figure, axes = plt.subplots(figsize=(6.4, 4))
    others: dict[str, str] = {}
    counts = sorted(int(name.split("-")[1]) for name in raw["questions"] if name.startswith("appenders-"))
    names = dict.fromkeys(name for n in counts for name in raw["questions"][f"appenders-{n}"])
    for name in names:
        if name in ("limit:recycled-file:threads", "limit-of-asyncio"):
            continue
        cells = [(n, raw["questions"][f"appenders-{n}"].get(name)) for n in counts]
        points = [(n, sorted(cell["per_s"])[len(cell["per_s"]) // 2]) for n, cell in cells if cell]
        style = line_style(name, others)
        if name == "limit:recycled-file:asyncio":
            style["linestyle"] = ":"
        axes.plot(*zip(*points, strict=True), label=name, **style)
    axes.set(xscale="log", yscale="log", xlabel="concurrent appenders", ylabel="durable events per second")
    axes.set_xticks(counts, [str(n) for n in counts])
    axes.set_title("Durable appends of 200 bytes over 1,000 sessions", loc="left")
    save(figure, axes, "appends.svg")


def save(figure: Any, axes: Any, name: str) -> None:
    """Without a date, so that the same results give the same file."""
    axes.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(HERE / "results" / name, metadata={"Date": None})
    plt.close(figure)
    print(HERE / "results" / name)


if __name__ == "__main__":
    main()
