"""The client stands alone: no compiler, no C modules, no LMDB, and httpx only when it connects."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import replaylog.client

ROOM = Path(replaylog.client.__file__).parent
SOURCE = ROOM.parent
PROJECT = Path(__file__).parent.parent
PURE = {"_cursor", "_verdict", "_errors", "_sse", "client"}

BLOCKED = """
import importlib.machinery, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"lmdb", "msgpack", "httpx", "httpcore", "Cython", "starlette"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Block())
# No compiled module of the package can be found: as if it had been built without a compiler.
importlib.machinery.EXTENSION_SUFFIXES.clear()
real = importlib.machinery.FileFinder.find_spec
def find_spec(self, name, target=None):
    found = real(self, name, target)
    if found and name.startswith("replaylog") and (found.origin or "").endswith(".so"):
        return None
    return found
importlib.machinery.FileFinder.find_spec = find_spec
"""

USE = """
from replaylog.client import *
import replaylog.client as client

verify_resumption(41, ReconnectResult(200, 1, Event(42, "message", {}), True))
verifier = Verifier(41)
verifier.on_response(200, {"Replay-Floor": "1"}, now_s=0.0)
for frame in SseParser().feed(b"id: 42\\ndata: x\\n\\n"):
    assert verifier.on_event(frame, now_s=0.0).id == 42
try:
    connect("http://127.0.0.1/")
except ImportError as missing:
    assert "pip install 'replaylog[client]'" in str(missing), missing
else:
    raise AssertionError("httpx was not needed")
ours = {n: str(m.__file__) for n, m in sys.modules.items() if n.startswith("replaylog")}
compiled = [n for n, path in ours.items() if path.endswith(".so")]
assert not compiled, compiled
print("stands alone")
"""


def python(code: str, source: Path = SOURCE.parent) -> str:
    environ = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_imports_and_works_without_lmdb_msgpack_httpx_and_the_c_modules() -> None:
    assert python(BLOCKED + USE) == "stands alone"


def test_the_block_has_teeth() -> None:
    code = BLOCKED + "\nfor name in ('lmdb', 'msgpack', 'httpx'):\n    try:\n        __import__(name)\n"
    code += "    except ImportError:\n        continue\n    raise AssertionError(name)\nprint('blocked')"
    assert python(code) == "blocked"


def test_it_imports_the_pure_row_only() -> None:
    for path in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top, _, rest = name.partition(".")
                assert top in sys.stdlib_module_names or top in ("replaylog", "httpx"), (path.name, name)
                assert top != "replaylog" or rest.partition(".")[0] in PURE, (path.name, name)


@pytest.mark.skipif(not (PROJECT / "setup.py").exists(), reason="needs the source tree")
def test_setup_without_the_core_needs_no_compiler(tmp_path: Path) -> None:
    """CC is a program that fails, and Cython cannot be imported: nothing of either is asked for."""
    code = BLOCKED + (
        f"import os, runpy\nos.chdir({str(PROJECT)!r})\n"
        f"sys.argv = ['setup.py', '-q', 'build', '--build-base', {str(tmp_path / 'base')!r}, "
        f"'--build-lib', {str(tmp_path / 'lib')!r}, 'egg_info', '--egg-base', {str(tmp_path)!r}]\n"
        "runpy.run_path('setup.py', run_name='__main__')\n"
    )
    environ = {**os.environ, "REPLAYLOG_CLIENT_ONLY": "1", "CC": "/bin/false"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    built = tmp_path / "lib"
    assert not list(built.rglob("*.so"))
    assert python(BLOCKED + USE, built) == "stands alone"
