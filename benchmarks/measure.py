"""Timing, order statistics and the header that every result carries.

A sample is the mean of one short batch of calls (one call where it waits for the disk). Quantiles are of
samples. On a shared machine the quiet end of the distribution is what the code costs, and the rest is what
the neighbours did: `quiet` is the 10th percentile, and ratios are between quiet figures of the same run.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import platform
import sys
import time
import timeit
from importlib import metadata
from pathlib import Path
from typing import Any

POINTS_MAX = 41  # order statistics kept per cell and round: the raw result
PACKAGES = ("replaylog", "lmdb", "rocksdict", "msgpack", "Cython")


def payload_of(i: int, size: int = 200) -> bytes:
    """An MCP progress notification of `size` bytes, different for each i."""
    head = (
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":%d,"message":"' % i
    )
    if size < len(head) + 3:
        return b"%020d" % i if size == 20 else head[:size]
    return head + b"x" * (size - len(head) - 3) + b'"}}'


def time_batches(
    statement: str, names: dict[str, Any], *, calls: int, seconds: float, samples_max: int = 2000
) -> list[float]:
    """Samples of one call of `statement`, in microseconds, for about `seconds`."""
    timer = timeit.Timer(statement, globals=names)
    out: list[float] = []
    gc.collect()
    deadline = time.perf_counter() + seconds
    timer.timeit(1)
    while len(out) < 3 or (time.perf_counter() < deadline and len(out) < samples_max):
        out.append(timer.timeit(calls) / calls * 1e6)
    return out


def thin(samples: list[float]) -> list[float]:
    """The sorted samples, or POINTS_MAX order statistics of them, least and greatest included."""
    ordered = sorted(samples)
    if len(ordered) > POINTS_MAX:
        last = len(ordered) - 1
        ordered = [ordered[round(i * last / (POINTS_MAX - 1))] for i in range(POINTS_MAX)]
    return [float(f"{x:.5g}") for x in ordered]


def quantile(ordered: list[float], q: float) -> float:
    """Nearest rank."""
    return ordered[min(len(ordered) - 1, max(0, round(q * (len(ordered) - 1))))]


def summary(rounds: list[list[float]]) -> dict[str, float]:
    """quiet (p10), median, p90, p99, max over all rounds; `spread`: of the rounds' quiet figures."""
    ordered = sorted(x for samples in rounds for x in samples)
    quiet = [quantile(sorted(samples), 0.1) for samples in rounds]
    return {
        "quiet": quantile(ordered, 0.1),
        "median": quantile(ordered, 0.5),
        "p90": quantile(ordered, 0.9),
        "p99": quantile(ordered, 0.99),
        "max": ordered[-1],
        "spread": max(quiet) / min(quiet) if min(quiet) > 0 else 0.0,
    }


def machine(directory: Path) -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _line("/proc/cpuinfo", "model name"),
        "cpus": os.cpu_count(),
        "memory": _line("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "file_system": _file_system(directory),
        "python": sys.version.split()[0],
        "load": [round(x, 2) for x in os.getloadavg()],
        "versions": {name: version for name in PACKAGES if (version := _version(name))} | _sqlite(),
    }


def header(facts: dict[str, Any], settings: dict[str, Any]) -> str:
    """The facts as lines of text."""
    versions = " ".join(f"{k} {v}" for k, v in facts["versions"].items())
    return (
        f"machine:  {facts['cpus']} x {facts['cpu']}, {facts['memory']}, {facts['file_system']}, "
        f"Linux {facts['kernel']}, load {facts['load'][0]}\n"
        f"software: Python {facts['python']} {versions}\n"
        f"settings: {' '.join(f'{k}={v}' for k, v in settings.items())}"
    )


def _line(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return "?"


def _file_system(directory: Path) -> str:
    best = ("", "?")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if str(directory.resolve()).startswith(where) and len(where) >= len(best[0]):
            best = (where, kind)
    return best[1]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _sqlite() -> dict[str, str]:
    import sqlite3

    return {"SQLite": sqlite3.sqlite_version}


def disk_bytes(path: Path) -> int:
    """Blocks that a directory takes."""
    return sum(p.stat().st_blocks * 512 for p in path.rglob("*") if p.is_file())


def resident_bytes() -> int:
    """Anonymous memory of this process: pages of mapped files are the kernel's to take back."""
    return int(_line("/proc/self/status", "RssAnon").split()[0]) * 1024


def write_json(path: Path, value: dict[str, Any]) -> None:
    """One line per cell: diffs of results stay readable."""
    parts = []
    for key, part in value.items():
        if key != "questions":
            parts.append(f"{json.dumps(key)}: {json.dumps(part)}")
            continue
        questions = []
        for name, question in part.items():
            cells = ",\n   ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in question.items())
            questions.append(f"  {json.dumps(name)}: {{\n   {cells}}}")
        parts.append('"questions": {\n' + ",\n".join(questions) + "}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
