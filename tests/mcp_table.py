"""The table of the README: each MCP SDK with a store of its own and with ours, on the same inputs.

`mcp_table.py measure ROWS` appends this SDK's rows as JSON lines; `mcp_table.py write ROWS FILE` makes the
table. "Own" is fastmcp's in-memory store; the mcp SDKs ship none, so there it is one as their example has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import httpx

import mcp_kit as kit
import replaylog
import replaylog.mcp
from replaylog import Retention
from test_mcp_incident import cut_at_41
from test_mcp_streams import drain, unread_post

INPUTS = (
    ("cut at event 41, back at 131, window 64", "lost"),
    ("the same, window 256", "covered"),
    ("60 reconnects at 300 events/s", "seam"),
    ("an id that was never issued", "never"),
    ("another session's id, equal request ids", "foreign"),
    ("a 40 MB answer that is not read: the next call", "unread"),
    ("SIGKILL and restart: the same session", "restart"),
)
FOREIGN = 20  # what the other session's call counts to


@contextlib.contextmanager
def served(whose: str, window: int) -> Iterator[tuple[str, kit.Ran]]:
    server, ran = kit.make_server()
    if whose == "own":
        app, log = kit.own_app(server, kit.own_store(window)), contextlib.nullcontext()
    else:
        log = replaylog.open(None, durability="memory")
        limits = replaylog.mcp.Limits(retention=Retention(events=window))
        app = replaylog.mcp.resumable(server, log, limits=limits)
    with log, kit.serve(app) as url:
        yield url, ran


def incident(whose: str, window: int) -> str:
    with served(whose, window) as (url, ran):
        outcome, text, seen, seconds = asyncio.run(cut_at_41(url, ran))
    lost = 130 - len(set(seen))
    if outcome == "never":
        return "never returns (20 s watched)"
    what = "result" if outcome == "result" else f"error, names {'the' if 'events 42' in text else 'no'} lost range"
    return f"{what}, {lost} of 130 not delivered, {seconds:.1f} s"


def seam(whose: str) -> str:
    with served(whose, 4000) as (url, ran):
        raw, got = kit.Raw(url).initialize(), []
        sent = 3600
        with raw.call(1, "count", to=sent, every_s=0.0028) as events:
            last = _take(events, got, 0.05)
        raw.http.timeout = 1
        for _ in range(60):
            with contextlib.suppress(Exception), raw.get(last) as events:
                last = _take(events, got, 0.12) or last
        kit.until(lambda: ran.finished, 30)
        with contextlib.suppress(Exception), raw.get(last) as events:
            _take(events, got, 10)
    return f"{sent - len(set(got))} of {sent} lost, {len(got) - len(set(got))} doubled"


def _take(events: kit.Sse, got: list[int], seconds: float) -> str:
    last, deadline = "", time.monotonic() + seconds
    with contextlib.suppress(Exception):
        for event in events:
            last = event.get("id", last)
            got += kit.progress_of([event])
            if time.monotonic() > deadline:
                break
    return last


def never(whose: str) -> str:
    with served(whose, 100) as (url, _):
        raw = kit.Raw(url).initialize()
        return _answer_to(raw, "0123456789abcdef.41.01234567")


def foreign(whose: str) -> str:
    with served(whose, 100) as (url, _):
        a, b = kit.Raw(url).initialize(), kit.Raw(url).initialize()
        with a.call(7, "count", to=FOREIGN) as events:
            seen = list(events)
        b.result(7, "count", to=5)
        return _answer_to(b, seen[3]["id"])


def _answer_to(raw: kit.Raw, cursor: str) -> str:
    raw.http.timeout = 2
    found: list[dict[str, Any]] = []
    with raw.get(cursor) as events, contextlib.suppress(Exception):
        for event in events:
            found.append(event)
    crossed = sum(e.get("json", {}).get("params", {}).get("total") == FOREIGN for e in found)
    if crossed:
        return f"{events.response.status_code}, {crossed} events of the other session"
    if found:
        return f"{events.response.status_code}, an error that ends the call, `{_verdict(events)}`"
    return f"{events.response.status_code}, an empty body: the client asks again each second"


def _verdict(events: kit.Sse) -> str:
    return f"Replay-Verdict: {events.response.headers.get('replay-verdict', 'none')}"


def unread(whose: str) -> str:
    with served(whose, 1000) as (url, _):
        raw = kit.Raw(url).initialize()
        params = {"name": "pour", "arguments": {"events": 400, "size": 100_000}, "_meta": {"progressToken": 1}}
        sock, head = unread_post(raw, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        time.sleep(0.5)
        raw.http.timeout, began_s = 5, time.monotonic()
        try:
            raw.result(2, "wait", seconds=0)
            told = f"{(time.monotonic() - began_s) * 1000:.0f} ms"
        except httpx.TimeoutException:
            told = "none within 5 s"
        got = (head + drain(sock)).count(b"notifications/progress") if whose == "ours" else None
        sock.close()
        return told if got is None else f"{told}; the late reader got {got} of 400"


def restart(whose: str) -> str:
    import tempfile

    server = Path(__file__).parent / "mcp_restart_server.py"

    def start(directory: str, port: int) -> tuple[Any, str]:
        command = [sys.executable, str(server), directory, str(port), whose]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    with tempfile.TemporaryDirectory() as directory:
        process, url = start(directory, 0)
        raw = kit.Raw(url).initialize()
        with raw.call(1, "count", to=1000, every_s=0.01) as events:
            seen = [next(iter(events)) for _ in range(8)]
        time.sleep(0.5)  # the server counts on
        process.kill()
        process.wait()
        process, _ = start(directory, int(url.rsplit(":", 1)[1].partition("/")[0]))
        try:
            with raw.get(seen[-1]["id"]) as events:
                if events.response.status_code != 200:
                    return f"{events.response.status_code}: the session is lost"
                rest = list(events)
            answer = raw.result(2, "count", to=3)
            replayed = len(kit.progress_of(rest))
            return f"goes on: {replayed} stored events, the running call's error, new calls" if answer else "?"
        finally:
            process.kill()
            process.wait()


MEASURES: dict[str, Callable[[str], str]] = {
    "lost": lambda whose: incident(whose, 64),
    "covered": lambda whose: incident(whose, 256),
    "seam": seam,
    "never": never,
    "foreign": foreign,
    "unread": unread,
    "restart": restart,
}


def measure(rows: Path, *names: str) -> None:
    for whose in ("own", "ours"):
        for name in names or MEASURES:
            told = MEASURES[name](whose)
            print(f"{kit.SDK_NAME} {whose} {name}: {told}", flush=True)
            with rows.open("a") as out:
                out.write(json.dumps({"sdk": kit.SDK_NAME, "whose": whose, "input": name, "told": told}) + "\n")


def write(rows: Path, file: Path) -> None:
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    sdks = list(dict.fromkeys(row["sdk"] for row in found))
    told = {(row["sdk"], row["whose"], row["input"]): row["told"] for row in found}
    lines = ["| input | SDK | with its own store | with replaylog |", "|---|---|---|---|"]
    for text, name in INPUTS:
        for sdk in sdks:
            own, ours = (told.get((sdk, whose, name), "-") for whose in ("own", "ours"))
            lines.append(f"| {text} | {sdk} | {own} | {ours} |")
    file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    threading.excepthook = lambda arguments: None
    if sys.argv[1] == "measure":
        measure(Path(sys.argv[2]), *sys.argv[3:])
    else:
        write(Path(sys.argv[2]), Path(sys.argv[3]))
