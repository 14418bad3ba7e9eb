"""Bytes per event, on disk and in memory, and per idle session. Each contestant in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import measure
from baselines import PEERS
from ours import OURS

EVENTS = 100_000
IDLE = 100_000
FEW = 1000
PAYLOAD_BYTES = 200
TITLES = {
    "space-disk": f"bytes on disk per event of {PAYLOAD_BYTES} bytes, closed",
    "space-memory": f"resident bytes per event of {PAYLOAD_BYTES} bytes",
    "space-idle": "resident bytes per session without events",
}


def measure_all(path: Path) -> dict[str, Any]:
    """The three questions."""
    out: dict[str, Any] = {name: {} for name in TITLES}
    for kind in (*OURS[:3], *PEERS):
        if kind.on_disk and (kind.name.startswith("ours") or not kind.durable):
            out["space-disk"][kind.name] = _child("disk", kind.name, path)
        if not kind.on_disk or kind.name == "ours-sync":
            out["space-memory"][kind.name] = _child("memory", kind.name, path)
        if kind.name in ("ours-memory", "ours-sync", "deque"):
            out["space-idle"][kind.name] = _child("idle", kind.name, path)
    out["space-idle"]["ours-sync:cold"] = _child("cold", "ours-sync", path)
    return out


def _child(what: str, name: str, path: Path) -> dict[str, float]:
    where = path / f"{what}-{name}"
    done = subprocess.run(
        [sys.executable, __file__, what, name, str(where)], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _events(kind: Any, path: Path) -> Any:
    c = kind(path)
    session = c.create("s")
    c.fill(session, (measure.payload_of(i, PAYLOAD_BYTES) for i in range(EVENTS)))
    return c, session


def ask_disk(kind: Any, path: Path) -> dict[str, float]:
    """Blocks of the closed directory; our prewritten journal extents are told apart: they are a constant."""
    c, _ = _events(kind, path)
    c.close()
    total = measure.disk_bytes(path)
    journal = measure.disk_bytes(path / "log" / "journal") if (path / "log" / "journal").is_dir() else 0
    return {"per_event": (total - journal) / EVENTS, "journal_constant": float(journal)}


def ask_memory(kind: Any, path: Path) -> dict[str, float]:
    """Growth of the resident set."""
    warm = kind(path / "warm")
    warm.fill(warm.create("s"), [b"x" * PAYLOAD_BYTES] * 1000)
    before = measure.resident_bytes()
    kept = _events(kind, path / "log")
    grown = measure.resident_bytes() - before
    out = {"per_event": grown / EVENTS}
    if hasattr(kept[0], "log"):
        out["by_its_own_count"] = kept[0].log.stats()["memory_bytes"] / EVENTS
    return out


def ask_idle(kind: Any, path: Path) -> dict[str, float]:
    """Sessions that were created and never used."""
    c = kind(path)
    c.create("warm")
    before = measure.resident_bytes()
    kept = c.create_all(f"session-{i}" for i in range(IDLE))
    held = measure.resident_bytes() - before
    return {"per_session": held / len(kept)}


def ask_cold(kind: Any, path: Path) -> dict[str, float]:
    """After the log was opened again and nobody touched them: what many cost more than few."""
    import replaylog

    made = {n: path / str(n) for n in (FEW, IDLE)}
    for n, where in made.items():  # elsewhere: what its heap frees would hide what we take
        subprocess.run([sys.executable, __file__, f"make-{n}", kind.name, str(where)], check=True, capture_output=True)
    grown = {}
    for n in (FEW, IDLE) * 3:  # the last ones count: the first pay for what is loaded and mapped once
        before = measure.resident_bytes()
        log = replaylog.open(made[n] / "log")
        assert log.check("session-5", 0)
        grown[n] = measure.resident_bytes() - before
        log.close()
    return {"per_session": max(0, grown[IDLE] - grown[FEW]) / (IDLE - FEW)}


def make(n: int) -> Callable[[Any, Path], dict[str, float]]:
    """A closed log with so many sessions."""

    def run(kind: Any, path: Path) -> dict[str, float]:
        c = kind(path)
        c.create_all(f"session-{i}" for i in range(n))
        c.close()
        return {}

    return run


if __name__ == "__main__":
    asked = {f"make-{n}": make(n) for n in (FEW, IDLE)}
    asked |= {"disk": ask_disk, "memory": ask_memory, "idle": ask_idle, "cold": ask_cold}
    kinds = {kind.name: kind for kind in (*OURS, *PEERS)}
    print(json.dumps(asked[sys.argv[1]](kinds[sys.argv[2]], Path(sys.argv[3]))))
