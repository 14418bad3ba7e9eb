"""The client and the servers, each real, over real sockets: the incident, and what a network does.

Every claim holds for `replaylog serve` (uvicorn) and for `App` under hypercorn and granian, with the
lines that PROTOCOL.md gives a deployer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy import Proxy
from replaylog.client import (
    Backoff,
    ClientReason,
    ClientState,
    IdleTimeoutWarning,
    Stream,
    StreamResumptionError,
    connect,
)
from support import FULL
from web import Mounted, Serving, free_port

SOON = Backoff(initial_s=0.005, max_s=0.05)
SEED = 20261113

Start = Callable[..., Serving]


@pytest.fixture(params=["serve", "hypercorn", "granian"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Start a server on a directory of this test; `disk=False` keeps the log in memory."""
    kind, port = request.param, free_port()
    if kind != "serve":
        pytest.importorskip(kind)
    with contextlib.ExitStack() as stack:

        def one(*, disk: bool = True, stall_s: float = 30, keepalive_s: float = 15) -> Serving:
            path = tmp_path / "log" if disk else None
            if kind == "serve":
                flags = ("--port", str(port), "--stall", str(stall_s), "--keepalive", str(keepalive_s))
                server = Serving(path, *flags)
            else:
                program = tmp_path / "program.py"
                server = Mounted(kind, program, path, stall_s=stall_s, keepalive_s=keepalive_s, port=port)
            return stack.enter_context(server)

        yield one


def url(server: Serving, name: str = "s") -> str:
    return f"{server.url}/sessions/{name}/events"


def reading(server: Serving | str, cursor: Any = 0, **settings: Any) -> Stream:
    address = server if isinstance(server, str) else url(server)
    return connect(address, cursor=cursor, **{"backoff": SOON, "idle_timeout_s": 60.0, **settings})


def fill(server: Serving, first: int, last: int, size: int = 0) -> None:
    for start in range(first, last + 1, 1000):
        stop = min(start + 1000, last + 1)
        server.extend("s", [(f"event {n} " + "x" * size, "message") for n in range(start, stop)])


def refused(stream: Stream) -> StreamResumptionError:
    with stream, pytest.raises(StreamResumptionError) as error:
        list(stream)
    return error.value


# --- the incident ----------------------------------------------------------------------------------


def test_variant_1_a_cursor_that_was_evicted_is_never_a_stream(start: Start) -> None:
    with start() as server:
        server.ask("PUT", "/sessions/s", b'{"retention": {"events": 64}}')
        fill(server, 1, 130)
        error = refused(reading(server, 41))
        assert (error.state, error.reason) == (ClientState.RESUMPTION_FAILED, ClientReason.BELOW_FLOOR)
        assert str(error) == "cursor 41 below replay floor 67; events 42..66 are lost"


def test_variant_2_after_a_restart_that_lost_the_store_the_session_is_lost(start: Start) -> None:
    with start(disk=False) as server:
        server.ask("PUT", "/sessions/s")
        fill(server, 1, 41)
        stream = reading(server, unreachable_max_s=30)
        with stream:
            for _ in range(41):
                stream.receive(10)
            server.stop(signal.SIGKILL)
            with start(disk=False), pytest.raises(StreamResumptionError) as error:
                stream.receive(20)
        assert (error.value.state, error.value.reason) == (ClientState.SESSION_LOST, ClientReason.UNKNOWN)


def test_variant_3_a_session_created_anew_under_the_old_name_is_no_continuation(start: Start) -> None:
    """The dangerous one: 200, an empty stream, and everything looks healthy and idle."""
    with start(disk=False) as server:
        server.ask("PUT", "/sessions/s")
        fill(server, 1, 41)
        with reading(server) as stream:
            tokens = [stream.receive(10).cursor for _ in range(41)]
        server.ask("DELETE", "/sessions/s")
        server.ask("PUT", "/sessions/s")
        assert refused(reading(server, tokens[-1])).reason is ClientReason.FORKED
        fill(server, 1, 130)
        assert refused(reading(server, tokens[-1])).reason is ClientReason.FORKED, "its ids have grown past"
        assert refused(reading(server, 41)).reason is ClientReason.NOT_DURABLE, "an id alone proves nothing"


def test_the_restart_that_keeps_the_store_loses_nothing(start: Start) -> None:
    """Killed and started again under a reader that is connected: the next event is the successor."""
    server = start()
    server.ask("PUT", "/sessions/s")
    fill(server, 1, 130)
    with reading(server, 41, unreachable_max_s=30) as stream:
        ids = [stream.receive(10).id for _ in range(89)]
        server.stop(signal.SIGKILL)
        server = start()
        fill(server, 131, 140)
        ids += [stream.receive(20).id for _ in range(10)]
        assert ids == list(range(42, 141))
        assert stream.status.connections == 2


# --- backpressure ----------------------------------------------------------------------------------


def test_an_application_that_is_busy_for_three_idle_timeouts_stays_delayed(start: Start) -> None:
    """Its loop stands still, as under a concurrent model call; the server's write stalls, is cut, and
    nothing of that is loss."""
    idle_s, stall_s, keepalive_s = 0.7, 0.4, 0.1

    async def scenario(server: Serving) -> None:
        stream = reading(server, idle_timeout_s=idle_s, buffer_events_max=50)
        async with stream:
            ids = [(await stream.areceive()).id]
            time.sleep(3 * idle_s)
            status = stream.status
            assert (status.state, status.reason) == (ClientState.DELAYED, ClientReason.BACKPRESSURE)
            assert status.backpressure
            while len(ids) < 4000:
                ids.append((await stream.areceive()).id)
            assert ids == list(range(1, 4001))
            assert stream.status.state is ClientState.DELAYED

    with start(stall_s=stall_s, keepalive_s=keepalive_s) as server:
        server.ask("PUT", "/sessions/s")
        fill(server, 1, 4000, size=2000)
        asyncio.run(scenario(server))


def test_a_busy_application_with_room_in_its_buffer_keeps_its_connection(start: Start) -> None:
    idle_s = 0.7

    async def scenario(server: Serving) -> None:
        async with reading(server, idle_timeout_s=idle_s) as stream:
            await stream.areceive()
            time.sleep(2 * idle_s)
            fill(server, 101, 110)
            ids = [(await stream.areceive()).id for _ in range(109)]
            assert ids == list(range(2, 111))
            assert stream.status.connections == 1

    with start(stall_s=0.4, keepalive_s=0.1) as server:
        server.ask("PUT", "/sessions/s")
        fill(server, 1, 100)
        asyncio.run(scenario(server))


def test_an_idle_timeout_that_the_servers_keepalive_exceeds_is_told_at_connect(start: Start) -> None:
    with start(stall_s=2, keepalive_s=1) as server:
        server.ask("PUT", "/sessions/s")
        fill(server, 1, 1)
        with reading(server, idle_timeout_s=3.0) as stream, warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(IdleTimeoutWarning, match="3"):
                stream.receive(10)


def test_a_slow_reader_gets_everything(start: Start) -> None:
    with start() as server:
        server.ask("PUT", "/sessions/s")
        fill(server, 1, 1000, size=1000)
        with reading(server, buffer_events_max=10, buffer_bytes_max=10_000) as stream:
            ids = []
            for event in stream:
                ids.append(event.id)
                if event.id == 500:
                    fill(server, 1001, 1100)
                if event.id % 100 == 0:
                    time.sleep(0.05)
                if event.id == 1100:
                    break
            assert ids == list(range(1, 1101))


# --- a network that cuts ---------------------------------------------------------------------------


def test_200_cuts_at_random_bytes_lose_nothing_and_repeat_nothing(start: Start) -> None:
    cuts = 2000 if FULL else 200
    with start() as server:
        server.ask("PUT", "/sessions/s", b'{"retention": {"events": 1000000}}')
        fill(server, 1, 1000, size=50)
        rng = random.Random(SEED)

        def cut_after() -> int | None:
            """Now and then inside the head of the answer, now and then after much of the stream."""
            return int(rng.expovariate(1 / 6000)) + 1 if proxy.cuts < cuts else None

        proxy = Proxy(server.port, cut_after)
        writing = threading.Event()

        def write() -> None:
            """Live traffic too, so that cuts fall on both sides of the seam."""
            n = 1001
            while not writing.is_set():
                fill(server, n, n + 49, size=50)
                n += 50
                time.sleep(0.005)
            server.ask("POST", "/sessions/s/end")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            ids = []
            with reading(f"{proxy.url}/sessions/s/events", unreachable_max_s=30) as stream:
                for event in stream:
                    assert str(event.payload).startswith(f"event {event.id} "), event
                    ids.append(event.id)
                    if proxy.cuts == cuts:
                        writing.set()
                connections = stream.status.connections
        finally:
            writing.set()
            writer.join(30)
            proxy.close()
        assert ids == list(range(1, len(ids) + 1)), f"seed {SEED}"
        assert proxy.cuts == cuts
        assert len(ids) >= 1000
        assert connections > cuts // 2, "cuts in the head of an answer are connections that gave none"
