"""`replaylog serve` as its users meet it: a process, real sockets, signals.

Here stand the promises that only a server can keep: the end of a stalled socket, bounded memory for a
reader that does not read, an exit within the grace, and what is left after SIGKILL.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from replaylog.asgi import _server
from web import Reader, Serving

MIB = 1 << 20


def raw_reader(server: Serving, name: str, query: str = "") -> socket.socket:
    """A reader that asks for a stream, takes the head of the answer, and then reads nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(20)
    sock.connect((server.host, server.port))
    sock.sendall(f"GET /sessions/{name}/events{query} HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode())
    assert sock.recv(64).startswith(b"HTTP/1.1 200")
    return sock


def is_reset(sock: socket.socket) -> bool:
    """Whether the connection is over: what was received is read, then RST or EOF."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


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


# --- readers that do not read ---------------------------------------------------------------------


def test_accepted_sockets_inherit_the_stall_limit_and_the_send_buffer() -> None:
    with _server.listen("127.0.0.1", 0, stall_max_s=7.5) as listening:
        listening.setblocking(True)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7500
            buffer = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            assert buffer <= 2 * _server.SEND_BUFFER_BYTES


def test_the_kernel_alone_ends_a_connection_whose_peer_takes_nothing() -> None:
    """Whatever the application does, or does not: this is the promise of `Replay-Stall-Max`."""

    async def scenario() -> None:
        lost: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        clock = asyncio.get_running_loop().time

        class Writes(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                self.began = clock()
                transport.write(b"x" * 4 * MIB)

            def connection_lost(self, exc: Exception | None) -> None:
                lost.set_result(clock() - self.began)

        listening = _server.listen("127.0.0.1", 0, stall_max_s=1)
        server = await asyncio.get_running_loop().create_server(Writes, sock=listening)
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(listening.getsockname())
            took_s = await asyncio.wait_for(lost, 10)
        server.close()
        assert 0.5 < took_s < 4

    asyncio.run(scenario())


def test_a_stalled_reader_is_gone_within_keepalive_and_stall_and_can_resume(tmp_path: Path) -> None:
    keepalive_s, stall_s, slack_s = 1, 3, 1.0
    with Serving(tmp_path / "log", "--keepalive", str(keepalive_s), "--stall", str(stall_s)) as server:
        server.ask("PUT", "/sessions/s")
        stalled = raw_reader(server, "s")
        port = stalled.getsockname()[1]
        with server.stream("s") as healthy:
            healthy.until("replay-caught-up")
            server.extend("s", [("x" * 2000, "message")] * 2000)
            began = time.monotonic()
            assert server.established(port)
            assert len(healthy.events(2000)) == 2000
            while server.established(port):
                assert time.monotonic() - began < keepalive_s + stall_s + slack_s
                time.sleep(0.05)
            assert is_reset(stalled)
            server.post("s", ["after"])
            assert healthy.events(1)[0].number == 2001, "the others never noticed"
        stalled.close()
        with server.stream("s", "10") as back:
            assert [frame.number for frame in back.events(1991)] == list(range(11, 2002))


class Counting(threading.Thread):
    """A reader that keeps up: it looks at the ids and drops the rest."""

    def __init__(self, sock: socket.socket, last: int) -> None:
        super().__init__()
        self.sock, self.last = sock, last
        self.ids: list[int] = []
        self.moved = threading.Condition()

    def run(self) -> None:
        tail = b""
        while not (self.ids and self.ids[-1] >= self.last):
            part = self.sock.recv(MIB)
            if not part:
                break
            text, _, tail = (tail + part).rpartition(b"\n")
            with self.moved:
                self.ids += map(
                    int, re.findall(rb"^id: [0-9a-f]{16}\.(\d+)\.[0-9a-f]{8}$", text, re.MULTILINE)
                )
                self.moved.notify()

    def wait_for(self, id: int) -> None:
        with self.moved:
            assert self.moved.wait_for(lambda: self.ids and self.ids[-1] >= id, 20)


def test_a_reader_that_does_not_read_costs_less_than_2_mb() -> None:
    """100,000 events of 2 KB pass by; the server holds none of them for the readers that sleep."""
    stalled_readers, batch = 4, [("x" * 2000, "message")] * 500
    with Serving(None, "--events", "1000", "--stall", "120") as server:
        server.ask("PUT", "/sessions/s")
        for _ in range(40):
            head = server.extend("s", batch)
        sleeping = [raw_reader(server, "s", "?from=head") for _ in range(stalled_readers)]
        healthy = Counting(raw_reader(server, "s", "?from=head"), head + 100_000)
        healthy.start()
        before = server.memory_bytes()
        for _ in range(200):
            healthy.wait_for(server.extend("s", batch) - len(batch))
        healthy.join(20)
        grown = server.memory_bytes() - before
        assert grown < stalled_readers * 2 * MIB, f"{grown / MIB:.1f} MiB for {stalled_readers} readers"
        events = healthy.ids[healthy.ids.index(head + 1) :]
        assert events == list(range(head + 1, head + 100_001)), "the reader that reads got everything"
        for sock in (*sleeping, healthy.sock):
            sock.close()


def test_idle_streams_stay_open_on_keepalives(tmp_path: Path) -> None:
    with Serving(tmp_path / "log", "--keepalive", "0.1", "--stall", "0.5") as server:
        server.ask("PUT", "/sessions/s")
        with server.stream("s", timeout_s=1) as reader:
            reader.until("replay-caught-up")
            frames = iter(reader)
            for _ in range(15):
                assert next(frames).comment == "head=0"
