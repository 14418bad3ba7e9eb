"""The incident on real sockets: a server process, a producer, a client that verifies every id.

Guarantees: nothing is simulated. What a `Seen` says was read from a socket; the server is a separate
process, and where it is killed, it is killed with SIGKILL. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

__all__ = ["DROP_AT", "HEAD", "LIVE", "NAME", "Seen", "play"]

NAME = "agent-7"
DROP_AT = 41
HEAD = 130
LIVE = 5
WAIT_S = 10.0

Tell = Callable[[str, str], None]


@dataclass
class Seen:
    """What the client saw in one act."""

    window: int
    killed: bool
    status: int = 0
    verdict: str = ""
    proof: str = ""
    floor: int = 0
    head: int = 0
    lost: int | None = None
    replayed: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    steps: list[tuple[float, str, str]] = field(default_factory=list)


class Frame(NamedTuple):
    token: str
    event: str
    data: str


class Server:
    """`replaylog serve` in a process of its own."""

    def __init__(self, directory: Path, window: int) -> None:
        command = [sys.executable, "-m", "replaylog.cli", "serve", str(directory)]
        flags = ["--port", "0", "--events", str(window), "--keepalive", "1", "--json"]
        # The environment of the caller must not change the act.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("REPLAYLOG_")}
        self._process = subprocess.Popen(command + flags, stdout=subprocess.PIPE, env=environment)
        self.url = self._first_line()["url"]

    def _first_line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], WAIT_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self.stop(signal.SIGKILL)
            raise RuntimeError(f"the server did not start within {WAIT_S:g} s: run `replaylog serve` by hand")
        document: dict[str, Any] = json.loads(line)
        return document

    def stop(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)


def _send(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    document = json.loads(answer.read())
    if answer.status != 201:
        raise RuntimeError(f"{method} {path}: {answer.status} {document.get('detail')}")
    return document


def _produce(url: str, ids: range) -> None:
    """Append one event after the other; each is durable when it is answered."""
    with closing(_connect(url)) as connection:
        for number in ids:
            kind = "result" if number == HEAD else "progress"
            document = _send(connection, "POST", f"/sessions/{NAME}/events?kind={kind}", {"step": number})
            if document["id"] != number:
                raise RuntimeError(f"appended id {document['id']}, expected {number}")


def _frames(answer: http.client.HTTPResponse) -> Iterator[Frame]:
    fields: dict[str, str] = {}
    while line := answer.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "id" in fields:
            yield Frame(fields["id"], fields.get("event", "message"), fields.get("data", ""))
            fields = {}


def _is_control(frame: Frame) -> bool:
    return frame.event == "replay" or frame.event.startswith("replay-")


def _id(frame: Frame) -> int:
    return int(frame.token.split(".")[1])


def _next(frames: Iterator[Frame], cursor: int) -> Frame:
    """The successor of `cursor`, or an error: nothing else continues it."""
    for frame in frames:
        if _is_control(frame):
            continue
        if _id(frame) != cursor + 1:
            raise RuntimeError(f"gap: expected id {cursor + 1}, got {_id(frame)}")
        return frame
    raise RuntimeError(f"the stream ended after id {cursor}")


def play(directory: Path, window: int, *, kill: bool) -> Seen:
    """One act: read to 41, drop, let the producer go on to 130, come back with the cursor of 41."""
    seen = Seen(window, kill)
    began = time.monotonic()

    def tell(who: str, what: str) -> None:
        seen.steps.append((time.monotonic() - began, who, what))

    server = Server(directory, window)
    try:
        tell("server", f"up, window of {window} events, durable")
        token = _read_and_drop(server.url, tell)
        if kill:
            server.stop(signal.SIGKILL)
            tell("server", f"SIGKILL at {HEAD}")
            server = Server(directory, window)
            tell("server", "started again on the same directory")
        _resume(server.url, token, seen, tell)
    finally:
        server.stop()
    return seen


def _read_and_drop(url: str, tell: Tell) -> str:
    """The producer runs on while the client leaves; returns the client's cursor."""
    with closing(_connect(url)) as connection:
        _send(connection, "PUT", f"/sessions/{NAME}")
    failed: list[Exception] = []
    producer = threading.Thread(target=_guarded, args=(failed, url, range(1, HEAD + 1)), name="producer")
    with closing(_connect(url)) as connection:
        connection.request("GET", f"/sessions/{NAME}/events")
        answer = connection.getresponse()
        frames = _frames(answer)
        producer.start()
        cursor, frame = 0, Frame("", "", "")
        while cursor < DROP_AT:
            frame = _next(frames, cursor)
            cursor = _id(frame)
        answer.close()
    tell("client", f"read 1..{DROP_AT}, then the connection drops")
    producer.join(WAIT_S * 3)
    if failed or producer.is_alive():
        raise RuntimeError(f"the producer failed: {failed[0] if failed else 'still running'}")
    tell("producer", f"went on to {HEAD}")
    return frame.token


def _guarded(failed: list[Exception], url: str, ids: range) -> None:
    try:
        _produce(url, ids)
    except (OSError, RuntimeError, http.client.HTTPException, ValueError) as error:
        failed.append(error)  # told by the thread that waits


def _resume(url: str, token: str, seen: Seen, tell: Tell) -> None:
    with closing(_connect(url)) as connection:
        connection.request("GET", f"/sessions/{NAME}/events", headers={"Last-Event-ID": token})
        answer = connection.getresponse()
        seen.status = answer.status
        seen.verdict = answer.headers.get("Replay-Verdict", "")
        seen.proof = answer.headers.get("Replay-Proof", "")
        seen.floor = int(answer.headers.get("Replay-Floor", 0))
        seen.head = int(answer.headers.get("Replay-Head", 0))
        tell("client", f"back with cursor {DROP_AT}: {seen.status} {seen.verdict}, floor {seen.floor}")
        if seen.status != 200:
            seen.lost = json.loads(answer.read())["lost"]
            return
        frames = _frames(answer)
        seen.replayed = _run_of(frames, DROP_AT, seen.head)
        tell("server", f"replayed {seen.replayed[0]}..{seen.replayed[-1]}, proof: {seen.proof}")
        if seen.killed:
            _produce(url, range(HEAD + 1, HEAD + LIVE + 1))
            seen.live = _run_of(frames, HEAD, HEAD + LIVE)
            tell("server", f"live {seen.live[0]}..{seen.live[-1]}, without a gap")
        answer.close()


def _run_of(frames: Iterator[Frame], cursor: int, last: int) -> list[int]:
    ids = []
    while cursor < last:
        cursor = _id(_next(frames, cursor))
        ids.append(cursor)
    return ids
