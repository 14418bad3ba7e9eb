"""`replaylog serve` as its users meet it: a process, real sockets, signals.

Here stand the promises that only a server can keep: an exit within the grace, and what is left after
SIGKILL. Readers that do not read are in test_asgi_stall.py.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from web import Mounted, Reader, Serving, is_reset, raw_reader

# --- start ----------------------------------------------------------------------------------------


def test_the_first_line_is_the_url_with_the_real_port(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replaylog.cli", "serve", str(tmp_path / "log"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        host, _, port = url.removeprefix("http://").partition(":")
        assert host == "127.0.0.1"
        socket.create_connection((host, int(port)), timeout=5).close()
        process.terminate()
        assert process.wait(10) == 0


def test_flags_and_variables_set_the_limits(tmp_path: Path) -> None:
    env = {
        "REPLAYLOG_EVENTS": "5",
        "REPLAYLOG_KEEPALIVE": "0.2",
        "REPLAYLOG_STALL": "7",
        "REPLAYLOG_HOST": "127.0.0.2",
    }
    with Serving(tmp_path / "log", "--stall", "3", env=env) as server:
        assert server.host == "127.0.0.2"
        server.ask("PUT", "/sessions/s")
        server.post("s", [str(n) for n in range(20)])
        with server.stream("s", query="?from=floor") as reader:
            assert reader.headers["Replay-Floor"] == "16"
            assert reader.headers["Replay-Keepalive"] == "0.2"
            assert reader.headers["Replay-Stall-Max"] == "3", "a flag wins over its variable"
            reader.until("replay-caught-up")
            assert next(iter(reader)).comment == "head=20"


def test_memory_mode_needs_no_directory() -> None:
    with Serving(None) as server:
        assert server.first["path"] is None
        server.ask("PUT", "/sessions/s")
        assert server.post("s", ["a"]) == 1


@pytest.mark.parametrize(
    ("flags", "status", "remedy"),
    [
        (["--host", "0.0.0.0"], 2, "REPLAYLOG_TOKEN"),
        (["--host", "::"], 2, "REPLAYLOG_TOKEN"),
        (["--keepalive", "-1"], 2, "keepalive"),
        (["--durability", "memory"], 2, "DIR"),
        (["--token", "not\nascii"], 2, "token"),
    ],
)
def test_what_cannot_be_served_safely_is_a_usage_error(
    tmp_path: Path, flags: list[str], status: int, remedy: str
) -> None:
    command = [sys.executable, "-m", "replaylog.cli", "serve", str(tmp_path / "log"), "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == status
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "log").exists(), "nothing was created"


def test_off_loopback_a_token_is_needed_for_everything_but_health(tmp_path: Path) -> None:
    with Serving(tmp_path / "log", "--host", "0.0.0.0", env={"REPLAYLOG_TOKEN": "secret"}) as server:
        assert server.ask("GET", "/sessions").status == 401
        assert server.ask("GET", "/health").status == 200
        assert server.ask("GET", "/sessions", headers={"Authorization": "Bearer secret"}).status == 200


def test_a_second_server_on_the_directory_says_who_holds_it(tmp_path: Path) -> None:
    with Serving(tmp_path / "log"):
        command = [sys.executable, "-m", "replaylog.cli", "serve", str(tmp_path / "log"), "--port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 3
        assert "is open in" in done.stderr
        assert "Traceback" not in done.stderr


def test_tickets_are_redacted_in_the_access_log(tmp_path: Path) -> None:
    with Serving(tmp_path / "log", "--access-log", "--token", "secret") as server:
        bearer = {"Authorization": "Bearer secret"}
        server.ask("PUT", "/sessions/s", headers=bearer)
        ticket = server.ask("POST", "/tickets", headers=bearer).document["ticket"]
        assert server.ask("HEAD", f"/sessions/s/events?ticket={ticket}").status == 200
        _, _, said = server.stop()
    assert "ticket=..." in said
    assert ticket not in said
    assert "secret" not in said


# --- the incident ---------------------------------------------------------------------------------


def _read_41(server: Serving) -> str:
    with server.stream("agent") as reader:
        *_, last = reader.events(41)
    assert last.number == 41
    return last.id


def test_a_cursor_below_the_floor_gets_no_stream(tmp_path: Path) -> None:
    with Serving(tmp_path / "log", "--events", "64") as server:
        server.ask("PUT", "/sessions/agent")
        server.post("agent", [f"step {n}" for n in range(1, 42)])
        token = _read_41(server)
        server.post("agent", [f"step {n}" for n in range(42, 131)])
        with server.stream("agent", token) as reader:
            assert reader.status == 409
            assert reader.headers["Replay-Verdict"] == "below-floor"
            assert (reader.headers["Replay-Floor"], reader.headers["Replay-Head"]) == ("67", "130")
            assert reader.headers["Session-Durable"] == "?1"
            assert b'"lost":25' in reader.answer.read()


def test_after_sigkill_everything_acknowledged_is_replayed_then_live(tmp_path: Path) -> None:
    with Serving(tmp_path / "log", "--events", "256") as server:
        server.ask("PUT", "/sessions/agent")
        server.ask("PUT", "/sessions/idle")
        server.post("idle", ["x"] * 5)
        server.ask("DELETE", "/sessions/idle?reason=idle")
        server.post("agent", [f"step {n}" for n in range(1, 131)])
        token = _read_41(server)
        server.stop(signal.SIGKILL)
    with Serving(tmp_path / "log", "--events", "256") as server:
        with server.stream("agent", token) as reader:
            assert (reader.status, reader.headers["Replay-Proof"]) == (200, "chain")
            assert [frame.number for frame in reader.events(89)] == list(range(42, 131))
            server.post("agent", ["live"])
            (live,) = reader.events(1)
            assert (live.number, live.data) == (131, "live")
        reaped = server.ask("GET", "/sessions/idle/events", headers={"Last-Event-ID": "3"})
        assert (reaped.status, reaped.document["head"]) == (410, 5)
        assert server.ask("GET", "/sessions/never/events", headers={"Last-Event-ID": "41"}).status == 404
        assert server.ask("GET", "/sessions/never").status == 404, "asking created nothing"


# --- shutdown -------------------------------------------------------------------------------------


def _open_streams(server: Serving, count: int) -> list[Reader]:
    readers = [server.stream("s") for _ in range(count)]
    for reader in readers:
        reader.until("replay-caught-up")
    return readers


def test_sigterm_with_100_open_streams_ends_each_with_retry_within_the_grace(tmp_path: Path) -> None:
    with Serving(tmp_path / "log", "--grace", "5") as server:
        server.ask("PUT", "/sessions/s")
        server.post("s", ["a"])
        readers = _open_streams(server, 100)
        status, took_s, said = server.stop()
        assert status == 0
        assert took_s < 5, f"{took_s:.1f} s"
        assert "Traceback" not in said
        for reader in readers:
            rest = list(reader)
            assert [frame.retry for frame in rest] == ["1000"], "and then the end, not a reset"
            reader.close()
    with Serving(tmp_path / "log") as server:
        assert server.ask("GET", "/sessions/s").document["head"] == 1


def test_sigterm_does_not_wait_for_a_reader_that_does_not_read(tmp_path: Path) -> None:
    with Serving(tmp_path / "log", "--grace", "3", "--stall", "60") as server:
        server.ask("PUT", "/sessions/s")
        stalled = raw_reader(server, "s")
        server.extend("s", [("x" * 2000, "message")] * 2000)
        time.sleep(0.3)
        readers = _open_streams(server, 5)
        status, took_s, said = server.stop()
        assert status == 0
        assert took_s < 3, f"{took_s:.1f} s"
        assert "Traceback" not in said
        assert is_reset(stalled)
        for reader in [*readers]:
            reader.close()
        stalled.close()


def test_idle_streams_stay_open_on_keepalives(tmp_path: Path) -> None:
    with Serving(tmp_path / "log", "--keepalive", "0.1", "--stall", "0.5") as server:
        server.ask("PUT", "/sessions/s")
        with server.stream("s", timeout_s=1) as reader:
            reader.until("replay-caught-up")
            frames = iter(reader)
            for _ in range(15):
                assert next(frames).comment == "head=0"


# --- mounted under a server of one's own ----------------------------------------------------------


@pytest.fixture(params=["uvicorn", "hypercorn", "granian"])
def server(request: pytest.FixtureRequest) -> str:
    """Servers that the protocol gives lines for."""
    pytest.importorskip(request.param)
    name: str = request.param
    return name


def test_the_lines_in_the_protocol_end_streams_and_the_process_on_sigterm(
    server: str, tmp_path: Path
) -> None:
    with Mounted(server, tmp_path / "program.py", None) as mounted:
        mounted.ask("PUT", "/sessions/s")
        with mounted.stream("s") as reader:
            assert reader.headers["Replay-Stall-Max"] == "30"
            reader.until("replay-caught-up")
            mounted.process.terminate()
            began = time.monotonic()
            assert [frame.retry for frame in reader if not frame.comment] == ["1000"]
        _, took_s, _ = mounted.stop()
        assert time.monotonic() - began < 4, took_s


def test_the_lines_in_the_protocol_end_a_connection_that_stalls(server: str, tmp_path: Path) -> None:
    stall_s = 2
    with Mounted(server, tmp_path / "program.py", None, stall_s=stall_s) as mounted:
        mounted.ask("PUT", "/sessions/s")
        with raw_reader(mounted, "s") as stalled:
            port = stalled.getsockname()[1]
            mounted.extend("s", [("x" * 2000, "message")] * 2000)
            began = time.monotonic()
            while mounted.established(port):
                assert time.monotonic() - began < stall_s + 3, "still offering bytes to who reads none"
                time.sleep(0.05)
            assert time.monotonic() - began > stall_s / 2
            assert is_reset(stalled)
        with mounted.stream("s", "1990") as back:
            assert [frame.number for frame in back.events(10)] == list(range(1991, 2001))
