"""The verbs of the command line: what they print, and the exit code that scripts branch on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import replaylog
from replaylog.cli._app import app


def run(*arguments: object, given: bytes | str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=given)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """`agent` retains 3..5, `done` has ended, `gone` was reaped."""
    path = tmp_path / "log"
    with replaylog.open(path) as log:
        for name in ("agent", "done", "gone"):
            session = log.create(name, meta={"of": name})
            session.extend([(f"event {n}", "progress") for n in range(1, 6)])
        log.session("agent").trim(3)
        log.session("done").end()
        log.reap("gone", reason="idle")
    return path


def token(path: Path, name: str, id: int) -> str:
    with replaylog.open(path, mode="r") as log, log.resume(name, id) as replay:
        return replay.verdict.from_token


# --- check ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cursor", "code", "verdict"),
    [
        ("agent", "2", 0, "resumable"),
        ("agent", "5", 0, "at-head"),
        ("agent", "floor", 0, "resumable"),
        ("agent", "head", 0, "at-head"),
        ("agent", "start", 1, "below-floor"),
        ("agent", "1", 1, "below-floor"),
        ("agent", "6", 1, "forked"),
        ("agent", "0123456789abcdef.3.00000000", 1, "forked"),
        ("agent", "five", 1, "malformed"),
        ("done", "5", 0, "at-head"),
        ("gone", "3", 1, "reaped"),
        ("never", "3", 1, "unknown"),
    ],
)
def test_check_answers_by_its_exit_code(
    directory: Path, name: str, cursor: str, code: int, verdict: str
) -> None:
    plain = run("check", directory, name, cursor)
    assert plain.exit_code == code
    assert plain.stdout.startswith(f"{verdict}: ")
    reported = run("check", directory, name, cursor, "--json")
    assert reported.exit_code == code
    document = json.loads(reported.stdout)
    assert (document["verdict"], document["ok"]) == (verdict, code == 0)


def test_check_names_the_lost_range_and_the_way_back(directory: Path) -> None:
    document = json.loads(run("check", directory, "agent", "0", "--json").stdout)
    assert (document["floor"], document["head"], document["lost"], document["status"]) == (3, 5, 2, 409)
    assert run("check", directory, "agent", document["restart_from"]).exit_code == 0


def test_check_takes_a_token_and_proves_it(directory: Path) -> None:
    document = json.loads(run("check", directory, "agent", token(directory, "agent", 3), "--json").stdout)
    assert (document["verdict"], document["proof"], document["missing"]) == ("resumable", "chain", 2)


def test_usage_errors_are_2(directory: Path) -> None:
    for arguments in (
        ("check",),
        ("check", directory),
        ("check", directory, "agent"),
        ("nothing",),
        ("reap", directory),
    ):
        assert run(*arguments).exit_code == 2


@pytest.mark.parametrize("verb", [("check", "s", "1"), ("sessions",), ("tail", "s"), ("verify",)])
def test_what_cannot_be_read_is_3_and_nothing_is_created(tmp_path: Path, verb: tuple[str, ...]) -> None:
    missing, file = tmp_path / "missing", tmp_path / "file"
    file.write_text("not a log")
    for path in (missing, file):
        result = run(verb[0], path, *verb[1:])
        assert result.exit_code == 3
        assert str(path) in result.stderr
        assert result.stdout == ""
    assert not missing.exists()


def test_a_directory_without_a_log_is_3_and_stays_empty(tmp_path: Path) -> None:
    assert run("check", tmp_path, "s", "1").exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_log_is_3(directory: Path) -> None:
    (directory / "data.mdb").write_bytes(b"")
    assert run("check", directory, "agent", "3").exit_code == 3


# --- sessions, tail -------------------------------------------------------------------------------


def test_sessions_lists_windows_and_states(directory: Path) -> None:
    rows = [json.loads(line) for line in run("sessions", directory, "--json").stdout.splitlines()]
    by_name = {row["name"]: row for row in rows}
    assert (by_name["agent"]["floor"], by_name["agent"]["head"], by_name["agent"]["state"]) == (3, 5, "open")
    assert by_name["agent"]["meta"] == {"of": "agent"}
    assert by_name["done"]["state"] == "ended"
    table = run("sessions", directory, "--prefix", "ag").stdout
    assert "agent" in table
    assert "done" not in table


def test_tail_prints_what_is_after_the_cursor(directory: Path) -> None:
    ids = [json.loads(line)["id"] for line in run("tail", directory, "agent", "--json").stdout.splitlines()]
    assert ids == [3, 4, 5]
    result = run("tail", directory, "agent", "--from", "4")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "5")
    assert "progress  event 5" in result.stdout


def test_tail_refuses_a_cursor_instead_of_skipping(directory: Path) -> None:
    result = run("tail", directory, "agent", "--from", "0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "floor 3" in result.stderr


def test_tail_follow_ends_with_the_session(directory: Path) -> None:
    result = run("tail", directory, "done", "--follow", "--json")
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [1, 2, 3, 4, 5]


def test_tail_follow_sees_what_another_process_appends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with replaylog.open(path) as log:
        session = log.create("s")
        session.extend([("old", "message")] * 3)
        command = [
            sys.executable,
            "-m",
            "replaylog.cli",
            "tail",
            str(path),
            "s",
            "-f",
            "--json",
            "--from",
            "head",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            time.sleep(0.5)
            for n in range(3):
                session.append(f"live {n}")
                time.sleep(0.2)
            session.end("bye")
            ids = [json.loads(line)["id"] for line in process.stdout]
            assert process.wait(10) == 0
    assert ids == list(range(ids[0], 8))
    assert ids[0] in (4, 5, 6, 7), "from the head of the moment it looked first"


def test_a_payload_cannot_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with replaylog.open(path) as log:
        session = log.create("s")
        session.extend([("\x1b[2Jgone\n", "message"), (b"\xff", "message"), ({"a": "ü"}, "message")])
    out = run("tail", path, "s").stdout
    assert "\x1b" not in out
    assert len(out.splitlines()) == 3
    assert "base64:/w==" in out
    assert '{"a":"ü"}' in out


# --- append, reap ---------------------------------------------------------------------------------


def payloads(path: Path, name: str) -> list[Any]:
    with replaylog.open(path, mode="r") as log, log.resume(name) as replay:
        return [event.payload for event in replay]


def test_append_prints_the_id(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert run("append", path, "s", "hello", "--create").stdout == "1\n"
    assert run("append", path, "s", '{"n": 1}', "--as", "json", "--kind", "progress").stdout == "2\n"
    assert run("append", path, "s", "--as", "bytes", given=b"\x00\xff").stdout == "3\n"
    assert payloads(path, "s") == ["hello", {"n": 1}, b"\x00\xff"]


def test_append_lines_is_one_event_per_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = "".join(f"{n}\n" for n in range(2500))
    document = json.loads(run("append", path, "s", "--create", "--lines", "--json", given=lines).stdout)
    assert (document["first"], document["id"]) == (1, 2500)
    assert payloads(path, "s") == [str(n) for n in range(2500)]
    assert json.loads(run("append", path, "s", "--lines", "--json", given="").stdout)["id"] is None


def test_append_creates_only_when_told(directory: Path) -> None:
    assert run("append", directory, "never", "x").exit_code == 1
    assert run("append", directory, "done", "x").exit_code == 1
    assert run("check", directory, "never", "0").stdout.startswith("unknown")


@pytest.mark.parametrize(
    "arguments",
    [("{", "--as", "json"), ("x", "--kind", "a;b"), ("x", "--lines"), ("x", "--as", "pickle")],
)
def test_append_of_what_is_not_an_event_is_a_usage_error(directory: Path, arguments: tuple[str, ...]) -> None:
    assert run("append", directory, "agent", *arguments).exit_code == 2
    assert payloads(directory, "done") == [f"event {n}" for n in range(1, 6)]
    assert json.loads(run("check", directory, "agent", "head", "--json").stdout)["head"] == 5


def test_a_key_appends_once(directory: Path) -> None:
    for _ in range(2):
        assert run("append", directory, "agent", "x", "--key", "k").stdout == "6\n"
    assert run("append", directory, "agent", "other", "--key", "k").exit_code == 1


def test_reap_turns_resumable_into_reaped(directory: Path) -> None:
    assert run("reap", directory, "agent", "--reason", "idle").exit_code == 0
    assert run("check", directory, "agent", "3").stdout.startswith("reaped")
    assert run("reap", directory, "never").exit_code == 1
    assert run("reap", directory, "--prefix", "do").exit_code == 0
    assert run("check", directory, "done", "3").stdout.startswith("reaped")


# --- verify, backup -------------------------------------------------------------------------------


def test_verify_says_ok_and_a_backup_is_the_same_log(directory: Path, tmp_path: Path) -> None:
    assert json.loads(run("verify", directory, "--json").stdout) == {"ok": True, "problems": []}
    copy = tmp_path / "copy"
    assert run("backup", directory, copy).exit_code == 0
    assert run("check", copy, "agent", token(directory, "agent", 3)).exit_code == 0
    assert run("sessions", copy, "--json").stdout == run("sessions", directory, "--json").stdout


def test_backup_writes_over_nothing(directory: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious").write_text("mine")
    assert run("backup", directory, full).exit_code == 2
    assert [path.name for path in full.iterdir()] == ["precious"]
