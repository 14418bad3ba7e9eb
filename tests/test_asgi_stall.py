"""Readers that do not read: the socket really gone in time, the memory bounded, the others undisturbed.

Two cases of conformance/reported.yaml are run here with their own numbers, on real sockets.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from pathlib import Path

import yaml

from replaylog.asgi import _server
from web import Serving, is_reset, raw_reader

MIB = 1 << 20
REPORTED = {
    case["id"]: case
    for case in yaml.safe_load((Path(__file__).parent / "conformance" / "reported.yaml").read_text())
}


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
    steps = REPORTED["keepalive-behind-a-full-socket"]["steps"]
    assert f"keepalive interval {keepalive_s} s" in steps
    assert f"stall_max {stall_s} s" in steps
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
    assert (
        REPORTED["slow-reader-memory"]["expect"]["server memory grows by"] == "less than 2 MB for that reader"
    )
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
        back = server.ask("GET", "/sessions/s/events", headers={"Last-Event-ID": str(head)})
        assert (back.status, back.headers["Replay-Verdict"]) == (409, "below-floor")
