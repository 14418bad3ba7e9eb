"""Run the MCP tests once per SDK: `python tests/mcp_matrix.py [--table FILE] [sdk ...]`.

Makes one environment per SDK under build/mcp/ (kept for the next time) and runs tests/test_mcp_*.py in each,
with the package of the environment that this script runs in. `--table FILE` writes the table of the README
instead.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

import replaylog

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "mcp"
SDKS = {"mcp1": "mcp==1.30.*", "mcp2": "mcp==2.3.*", "fastmcp": "fastmcp==4.*"}
NEEDED = ["lmdb>=3,<4", "msgpack>=1.1", "httpx>=0.27", "pytest>=8", "hypothesis>=6.100", "uvicorn>=0.30"]


def environment(sdk: str) -> Path:
    """The Python of the environment with this SDK."""
    place = PLACE / sdk
    python = place / "bin" / "python"
    wanted = f"{SDKS[sdk]} {NEEDED}"
    if not python.exists() or (place / "wanted").read_text() != wanted:
        venv.create(place, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", SDKS[sdk], *NEEDED], check=True)
        (place / "wanted").write_text(wanted)
    return python


def run(sdk: str, *arguments: str) -> int:
    """In the environment of an SDK, with this package before everything else."""
    python = environment(sdk)
    package = str(Path(replaylog.__file__).parents[1])
    settings = {**os.environ, "PYTHONPATH": package}
    return subprocess.run([python, *arguments], cwd=ROOT, env=settings, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sdk", nargs="*", choices=[[], *SDKS], help="default: all")
    parser.add_argument("--table", type=Path, help="write the README's table to this file")
    asked = parser.parse_args()
    chosen = asked.sdk or list(SDKS)
    if asked.table is not None:
        PLACE.mkdir(parents=True, exist_ok=True)
        rows = PLACE / "rows.jsonl"
        rows.unlink(missing_ok=True)
        failed = sum(run(sdk, "tests/mcp_table.py", "measure", str(rows)) for sdk in chosen)
        return failed or run(chosen[0], "tests/mcp_table.py", "write", str(rows), str(asked.table))
    tests = sorted(str(path) for path in (ROOT / "tests").glob("test_mcp_*.py"))
    failed = 0
    for sdk in chosen:
        print(f"== {sdk}: {SDKS[sdk]}", flush=True)
        failed += run(sdk, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *tests) != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
