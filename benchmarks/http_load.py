"""What the HTTP benchmarks share: the load generator, servers to load, results with their circumstances."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from web import Serving, free_port  # noqa: E402

__all__ = ["Bare", "Load", "Serving", "circumstances", "free_port", "probe", "settled", "show", "write"]

QUIET_S = 0.4


def circumstances() -> dict[str, Any]:
    """The machine, the interpreter, and what serves."""
    versions = {}
    for name in ("uvicorn", "httptools", "uvloop", "h11", "starlette"):
        with contextlib.suppress(ImportError):
            versions[name] = getattr(__import__(name), "__version__", "?")
    model = "?"
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],  # others on this machine: above `cores`, latencies are theirs too
        "nice": os.nice(0),
        "python": platform.python_version(),
        "kernel": platform.release(),
        **versions,
    }


class Load:
    """loadgen.c, compiled for this run."""

    def __init__(self) -> None:
        self._work = Path(tempfile.mkdtemp(prefix="replaylog-load-"))
        self._program = self._work / "loadgen"
        source = HERE / "loadgen.c"
        subprocess.run(["cc", "-O2", "-o", str(self._program), str(source)], check=True)

    def resumes(
        self,
        server: Serving | Bare,
        request: bytes,
        *,
        connections: int,
        seconds: float,
        rate: float,
        reuse: bool,
    ) -> dict[str, Any]:
        """Rate 0: as many as it answers. Latencies are counted from when a request was due."""
        size = len(probe(server, request))
        asked = (str(size), str(connections), str(seconds), f"{rate:.1f}", str(int(reuse)))
        return self._run("resume", server, request, *asked)

    def fanout(
        self, server: Serving | Bare, request: bytes, post: bytes, *, followers: int, rounds: int, event: int
    ) -> dict[str, Any]:
        path = self._work / "post"
        path.write_bytes(post)
        size = len(probe(server, request))
        return self._run(
            "fanout", server, request, str(size), str(followers), str(rounds), str(path), str(event)
        )

    def _run(self, what: str, server: Serving | Bare, request: bytes, *more: str) -> dict[str, Any]:
        path = self._work / "request"
        path.write_bytes(request)
        command = [str(self._program), what, server.host, str(server.port), str(path), *more]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def probe(server: Serving | Bare, request: bytes) -> bytes:
    """The answer, up to where it goes quiet."""
    with socket.create_connection((server.host, server.port)) as sock:
        sock.sendall(request)
        return settled(sock)


def settled(sock: socket.socket) -> bytes:
    sock.settimeout(QUIET_S)
    answer = b""
    try:
        while part := sock.recv(1 << 20):
            answer += part
    except TimeoutError:
        pass
    return answer


class Bare:
    """A program of this directory that prints its port; what the same work costs without the library."""

    host = "127.0.0.1"

    def __init__(self, program: str, *arguments: str) -> None:
        self.port = free_port()
        command = [sys.executable, str(HERE / program), str(self.port), *arguments]
        self._process = subprocess.Popen(command)
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port)):
                return
            time.sleep(0.05)
        raise RuntimeError(f"{program} does not listen")

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each number over the rounds; errors are summed, the maximum is the greatest."""
    out = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    out["errors"] = sum(r["errors"] for r in rounds)
    out["max_ms"] = max(r["max_ms"] for r in rounds)
    return out


def show(name: str, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """One line per case, the rounds kept."""
    m = middle(rounds)
    print(
        f"{name:58} {m['per_s']:9,.0f}/s   median {m['p50_ms']:7.2f}  p90 {m['p90_ms']:7.2f}  "
        f"p99 {m['p99_ms']:7.2f}  max {m['max_ms']:7.2f} ms   errors {m['errors']}",
        flush=True,
    )
    return {"median_of_rounds": m, "rounds": rounds}


def write(name: str, settings: dict[str, Any], results: dict[str, Any]) -> None:
    """benchmarks/results/<name>.json."""
    document = {"settings": settings, "circumstances": circumstances(), "results": results}
    path = HERE / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"-> {path}")
