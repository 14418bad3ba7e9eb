"""What the tests of the HTTP face share: a server process, a raw stream reader, an in-process driver.

`Serving` is `replaylog serve` in a process of its own, asked over real sockets. `Call` drives an ASGI
application by hand, so that a test decides when a write blocks and when the reader leaves.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

START_S = 20.0


class Frame(NamedTuple):
    """One SSE block; a comment has only `comment`, a `retry:` only `retry`."""

    id: str = ""
    event: str = "message"
    data: str = ""
    comment: str = ""
    retry: str = ""

    @property
    def number(self) -> int:
        return int(self.id.split(".")[1])

    @property
    def document(self) -> Any:
        return json.loads(self.data)


def frames(text: bytes) -> list[Frame]:
    """The blocks of a finished stream."""
    assert text == b"" or text.endswith(b"\n\n"), text[-80:]
    return [_frame(block.decode().split("\n")) for block in text.split(b"\n\n")[:-1]]


def _frame(lines: list[str]) -> Frame:
    fields: dict[str, str] = {}
    data = []
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        else:
            fields[name or "comment"] = value
    return Frame(**fields, data="\n".join(data))


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Reader:
    """One open stream on a socket of its own."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self.connection, self.answer = connection, answer
        self.status, self.headers = answer.status, answer.headers
        self.socket = connection.sock

    def __iter__(self) -> Iterator[Frame]:
        lines: list[str] = []
        while line := self.answer.readline():
            text = line.decode().rstrip("\n")
            if text:
                lines.append(text)
            elif lines:
                yield _frame(lines)
                lines = []

    def until(self, event: str) -> list[Frame]:
        """Frames up to the first control frame `event`, included."""
        got = []
        for frame in self:
            got.append(frame)
            if frame.event == event and not frame.comment:
                return got
        raise AssertionError(f"the stream ended without {event}: {got[-3:]}")

    def events(self, count: int) -> list[Frame]:
        """The next `count` events, control frames and comments left out."""
        got: list[Frame] = []
        for frame in self:
            if frame.id and frame.event != "replay" and not frame.event.startswith("replay-"):
                got.append(frame)
            if len(got) == count:
                break
        return got

    def close(self) -> None:
        self.answer.close()
        self.connection.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Serving:
    """A server process on a free port of loopback."""

    def __init__(self, path: Path | None, *flags: str, env: dict[str, str] | None = None) -> None:
        where = ["--durability", "memory"] if path is None else [str(path)]
        command = [sys.executable, "-m", "replaylog.cli", "serve", *where, "--port", "0", "--json", *flags]
        self._launch(command, env or {})

    def _launch(self, command: list[str], env: dict[str, str]) -> None:
        """Start it and wait for its first line, JSON with its URL."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("REPLAYLOG_")}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean | env
        )
        assert self.process.stdout is not None
        late = threading.Timer(START_S, self.process.kill)
        late.start()
        # Some servers say other things first; not select(): it does not see lines that are buffered here.
        line = self.process.stdout.readline()
        while line and not line.startswith(b"{"):
            line = self.process.stdout.readline()
        late.cancel()
        if not line:
            self.process.kill()
            _, errors = self.process.communicate(timeout=START_S)
            code = self.process.returncode
            raise AssertionError(f"the server did not start ({code}): {errors.decode()[-2000:]}")
        self.first = json.loads(line)
        self.url = self.first["url"]
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port

    def connect(self, timeout_s: float = 20.0) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def post(self, name: str, payloads: list[str], kind: str = "message") -> int:
        """Append text events one by one on one connection; returns the last id."""
        connection, last = self.connect(), 0
        try:
            for payload in payloads:
                connection.request(
                    "POST",
                    f"/sessions/{name}/events?kind={kind}",
                    payload.encode(),
                    {"Content-Type": "text/plain"},
                )
                answer = connection.getresponse()
                document = json.loads(answer.read())
                assert answer.status == 201, document
                last = document["id"]
        finally:
            connection.close()
        return last

    def extend(self, name: str, items: list[tuple[Any, str]]) -> int:
        import msgpack

        answer = self.ask(
            "POST", f"/sessions/{name}/events", msgpack.packb(items), {"Content-Type": "application/msgpack"}
        )
        assert answer.status == 201, answer.body
        return answer.document["id"]

    def stream(
        self, name: str, cursor: str | None = None, query: str = "", timeout_s: float = 20.0
    ) -> Reader:
        connection = self.connect(timeout_s)
        headers = {} if cursor is None else {"Last-Event-ID": cursor}
        connection.request("GET", f"/sessions/{name}/events{query}", headers=headers)
        return Reader(connection, connection.getresponse())

    def memory_bytes(self) -> int:
        """Resident memory of the server process."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def established(self, client_port: int) -> bool:
        """Whether the kernel still lists the server's side of this connection as ESTABLISHED."""
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            local, remote, state = line.split()[1:4]
            ports = int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)
            if ports == (self.port, client_port) and state == "01":
                return True
        return False

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 15.0) -> tuple[int, float, str]:
        """Exit status, seconds that it took, what was said on stderr."""
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            _, errors = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode, time.monotonic() - began, errors.decode()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


class Mounted(Serving):
    """`App` under a server of one's own: the lines of PROTOCOL.md for `server`, run as they stand but for
    the port and the stall limit. `port` is kept over restarts."""

    def __init__(
        self,
        server: str,
        program: Path,
        path: Path | None,
        *,
        stall_s: float = 30,
        keepalive_s: float = 15,
        port: int = 0,
    ) -> None:
        import replaylog

        text = (Path(replaylog.__file__).parent / "PROTOCOL.md").read_text()
        lines = text.partition(f"**{server}**")[2].partition("```python\n")[2].partition("```")[0]
        assert "app = App(" in lines
        port = port or free_port()
        lines = lines.replace("8080", str(port)).replace("30_000", str(round(stall_s * 1000)))
        lines = lines.replace("stall_max_s=30", f"stall_max_s={stall_s}, keepalive_s={keepalive_s}")
        where = "None, durability='memory'" if path is None else repr(str(path))
        program.write_text(
            "import json, threading, time, urllib.request\nimport replaylog\n"
            f"log = replaylog.open({where}, retention=replaylog.Retention(events=4096))\n"
            f"URL = 'http://127.0.0.1:{port}'\n" + _SAY_WHEN_READY + lines
        )
        self._launch([sys.executable, str(program)], {})


_SAY_WHEN_READY = """
def say():
    for _ in range(400):
        try:
            with urllib.request.urlopen(URL + "/health", timeout=5):
                break
        except OSError:
            time.sleep(0.02)
    print(json.dumps({"url": URL}), flush=True)

threading.Thread(target=say, daemon=True).start()
"""


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


class Call:
    """One request to an ASGI application in this process, under the test's control."""

    def __init__(
        self,
        app: Any,
        method: str,
        path: str,
        headers: list[tuple[str, str]] | None = None,
        *,
        host: str = "127.0.0.1",
        root_path: str = "",
        body: bytes = b"",
    ) -> None:
        raw, _, query = path.partition("?")
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(raw),
            "raw_path": raw.encode(),
            "root_path": root_path,
            "query_string": query.encode(),
            "headers": [(b"host", host.encode())]
            + [(name.lower().encode(), value.encode("utf-8")) for name, value in headers or []],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 80),
        }
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.complete = False
        self.writable = asyncio.Event()
        self.writable.set()
        self._request = [{"type": "http.request", "body": body, "more_body": False}]
        self._left = asyncio.Event()
        self._wrote = asyncio.Event()
        self.task = asyncio.create_task(app(self.scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._request:
            return self._request.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self.writable.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.complete = not message.get("more_body", False)
        self._wrote.set()

    async def until(self, text: str, timeout_s: float = 5.0) -> None:
        """Wait until the body holds `text`."""
        async with asyncio.timeout(timeout_s):
            while text.encode() not in self.body:
                self._wrote.clear()
                await self._wrote.wait()

    async def done(self, timeout_s: float = 5.0) -> Call:
        async with asyncio.timeout(timeout_s):
            await self.task
        return self

    def leave(self) -> None:
        """The reader closes its connection."""
        self._left.set()

    @property
    def frames(self) -> list[Frame]:
        return frames(self.body)

    @property
    def document(self) -> Any:
        return json.loads(self.body)


async def ask(app: Any, method: str, path: str, *args: Any, **named: Any) -> Call:
    """One request, answered in full."""
    return await Call(app, method, path, *args, **named).done()
