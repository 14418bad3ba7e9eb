"""The stubs beside the C modules say what the modules are: same names, same signatures, both ways."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="stubtest comes with mypy (the `lint` extra)")

PROJECT = Path(__file__).parent.parent
ROOM = PROJECT / "src" / "replaylog"
MODULES = sorted(path.stem for path in (PROJECT / "ext" / "replaylog").glob("*.pyx"))

needs_tree = pytest.mark.skipif(not ROOM.exists(), reason="needs the source tree")


def stubtest(tree: Path, *modules: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy.stubtest", "--ignore-disjoint-bases", "--concise"]
    command += ["--allowlist", str(PROJECT / "tests" / "stubtest_allow.txt"), "--ignore-unused-allowlist"]
    command += ["--mypy-config-file", str(PROJECT / "pyproject.toml"), *(f"replaylog.{name}" for name in modules)]
    environ = {**os.environ, "MYPYPATH": str(tree)}
    return subprocess.run(
        command, cwd=PROJECT, env=environ, capture_output=True, text=True, timeout=300, check=False
    )


@needs_tree
def test_every_c_module_has_a_stub() -> None:
    assert MODULES == ["_frame", "_journal", "_judge", "_ring", "_session"]
    assert [path.stem for path in sorted(ROOM.glob("*.pyi"))] == MODULES


@needs_tree
def test_stubs_and_modules_have_the_same_public_names_and_signatures() -> None:
    done = stubtest(ROOM.parent, *MODULES)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_tree
def test_the_comparison_has_teeth(tmp_path: Path) -> None:
    """A stub with one name too many, one too few and one other signature is refused, each by name."""
    text = (ROOM / "_frame.pyi").read_text()
    text = text.replace("def first_tag(epoch: int)", "def first_tag(era: int)")
    text = text.replace("def crc_by_table(", "def crc_by_chance(")
    (tmp_path / "replaylog").mkdir()
    (tmp_path / "replaylog" / "__init__.pyi").write_text("")
    (tmp_path / "replaylog" / "_frame.pyi").write_text(text)
    config = tmp_path / "pyproject.toml"
    config.write_text("[tool.mypy]\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "--concise", "replaylog._frame"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(tmp_path)}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    for name in ("first_tag", "crc_by_table", "crc_by_chance"):
        assert f"replaylog._frame.{name}" in done.stdout, done.stdout + done.stderr
