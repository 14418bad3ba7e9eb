"""What the README says is so: its examples run, its table is the wire's table, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from replaylog import Reason
from replaylog._verdict import wire_of
from web import free_port

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_first_example_runs_and_prints_its_verdict(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PYTHON[0]], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "True RESUMABLE 1 0"
    assert re.fullmatch(r"2 note half way [0-9a-f]{16}\.2\.[0-9a-f]{8}", lines[1])
    assert len(PYTHON[0].strip().splitlines()) <= 14


def test_the_server_example_serves_verdicts(tmp_path: Path) -> None:
    port = free_port()
    source = PYTHON[1].replace("port=8000", f"port={port}")
    assert source != PYTHON[1]
    assert len(source.strip().splitlines()) <= 15
    server = subprocess.Popen([sys.executable, "-c", source], cwd=tmp_path)
    try:
        answer = head(f"http://127.0.0.1:{port}/events/sessions/agent-7/events")
        assert answer["Replay-Verdict"] == "resumable"
        assert (answer["Replay-Floor"], answer["Replay-Head"], answer["Session-Durable"]) == ("1", "1", "?1")
    finally:
        server.terminate()
        server.wait(20)


def head(url: str) -> Message:
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as answer:
                return answer.headers
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.mark.parametrize("reason", list(Reason))
def test_the_verdict_table_is_the_one_on_the_wire(reason: Reason) -> None:
    row = next(line for line in README.splitlines() if line.startswith(f"| `{reason.name}`"))
    wire = wire_of(reason)
    assert str(wire.status) in row
    assert wire.problem in row


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_ci_runs_the_test_command_that_the_readme_gives() -> None:
    assert ".venv/bin/python -m pytest\n" in README
    assert 'bin/python" -m pytest)' in (ROOT / ".ci" / "run").read_text()
