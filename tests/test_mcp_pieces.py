"""Failures of the log, bounds, the single pieces, and what must stay as the SDK has it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp.server.streamable_http", reason="NO MCP SDK INSTALLED: the MCP adapter is not tested here")

import httpx

import mcp_kit as kit
import replaylog
import replaylog.mcp
from replaylog import Retention
from replaylog.mcp import Limits, _edges
from support import FULL


@contextlib.contextmanager
def served(log: Any, **options: Any) -> Iterator[tuple[str, kit.Ran]]:
    server, ran = kit.make_server()
    with log, kit.serve(replaylog.mcp.resumable(server, log, **options)) as url:
        yield url, ran


# -- a new release of an SDK fails here first ------------------------------------------------------------


def test_every_private_name_that_we_touch_is_there() -> None:
    transport = _edges.StreamableHTTPServerTransport(mcp_session_id="s")
    manager = _edges.StreamableHTTPSessionManager(app=None)
    for owner in (transport, manager):
        kind = next(k for k in _edges.PRIVATE if isinstance(owner, k))
        missing = [name for name in _edges.PRIVATE[kind] if not hasattr(owner, name)]
        assert not missing, f"{kit.SDK_NAME}: {kind.__name__} has no {missing}"


def test_the_list_of_private_names_is_complete() -> None:
    import re

    listed = {name for names in _edges.PRIVATE.values() for name in names}
    used: set[str] = set()
    for kind in _edges.PRIVATE:
        theirs = {name for name in (*vars(kind), *_attributes(kind)) if name.startswith("_")}
        for path in Path(replaylog.mcp.__file__).parent.glob("*.py"):
            if path.name == "_edges.py":
                continue
            words = set(re.findall(r"(?:super\(\)|self|manager|transport|def)[. ](_[a-z]\w*)", path.read_text()))
            used |= {name for name in words & theirs if not name.startswith("__")}
    assert used - listed - OURS == set()


OURS = {"_run"}


def _attributes(kind: type) -> set[str]:
    import inspect
    import re

    return set(re.findall(r"self\.(_\w+)", inspect.getsource(kind)))


# -- failures of the log ----------------------------------------------------------------------------------


def test_a_full_log_fails_the_call_and_the_session_goes_on_when_there_is_room() -> None:
    log = replaylog.open(None, durability="memory", memory_bytes=4 << 20, event_bytes_max=1 << 20)
    with served(log, limits=Limits(finished_max=2)) as (url, _):
        raw = kit.Raw(url).initialize()
        began_s = time.monotonic()
        answer = raw.result(1, "pour", events=100, size=100_000)
        assert time.monotonic() - began_s < 5
        assert "could not be stored" in answer["error"]["message"]
        assert "memory_bytes" in answer["error"]["message"]
        assert answer["id"] == 1
        # the router lives; room comes back as the failed stream is reaped
        kit.until(lambda: "result" in raw.result(2, "count", to=3))


def test_a_failed_call_is_failed_for_who_resumes_it_too() -> None:
    log = replaylog.open(None, durability="memory", memory_bytes=4 << 20, event_bytes_max=1 << 20)
    with served(log) as (url, _):
        raw = kit.Raw(url).initialize()
        with raw.call(1, "pour", events=100, size=100_000) as events:
            seen = list(events)
        with raw.get(seen[0]["id"]) as events:
            assert "could not be stored" in list(events)[-1]["json"]["error"]["message"]


def test_a_get_stream_with_a_hole_says_so_and_goes_on_in_a_new_one() -> None:
    log = replaylog.open(None, durability="memory", memory_bytes=2 << 20, event_bytes_max=1 << 20)
    with served(log) as (url, _):
        raw = kit.Raw(url).initialize()
        raw.result(1, "announce")
        with raw.get() as events:
            seen = next(iter(events))
        filling = log.create("filler")
        with contextlib.suppress(replaylog.LogFull):
            while True:
                filling.append("x" * 2000)
        raw.result(2, "announce", times=50)
        log.reap("filler")
        raw.result(3, "announce")
        with raw.get(seen["id"]) as events:
            lost = next(iter(events))
        assert "could not be stored" in lost["json"]["params"]["data"]["message"]
        assert lost["id"][:16] != seen["id"][:16]
        with raw.get(lost["id"]) as events:
            assert events.response.headers["replay-verdict"] in ("resumable", "at-head")


def test_a_log_that_cannot_store_refuses_new_calls_in_words_and_does_not_run_them(tmp_path: Path) -> None:
    log = replaylog.open(tmp_path / "log")
    with served(log) as (url, ran):
        raw = kit.Raw(url).initialize()
        assert "result" in raw.result(1, "count", to=3)
        counted = ran.counted
        log._journal.inject_error(5)
        answers = [raw.result(n, "count", to=3) for n in (2, 3)]
        for answer in answers:
            assert "the log cannot record it" in answer["error"]["message"]
        assert ran.counted == counted
        with pytest.raises(AssertionError):
            kit.Raw(url).initialize()
        log._journal.inject_error(0)


def test_a_disk_that_fails_under_a_running_call_fails_the_call(tmp_path: Path) -> None:
    log = replaylog.open(tmp_path / "log")
    with served(log) as (url, _):
        raw = kit.Raw(url).initialize()
        threading.Timer(0.3, log._journal.inject_error, (5,)).start()
        began_s = time.monotonic()
        answer = raw.result(1, "count", to=3000, every_s=0.005)
        assert time.monotonic() - began_s < 5
        assert "could not be stored" in answer["error"]["message"]


# -- bounds -----------------------------------------------------------------------------------------------


CALLS = 10_000 if kit.SDK == "mcp2" or FULL else 2_000  # what is bounded here is the same code for each SDK


def test_ten_thousand_finished_calls_leave_memory_and_log_bounded(tmp_path: Path) -> None:
    log = replaylog.open(tmp_path / "log", durability="relaxed", tombstones_max=100, journal_extent_bytes=1 << 20)
    server, _ = kit.make_server()
    app = replaylog.mcp.resumable(server, log, limits=Limits(finished_max=20))

    def objects() -> int:
        log.checkpoint()
        gc.collect()
        return len(gc.get_objects())

    def stored() -> int:
        return sum(path.stat().st_blocks * 512 for path in (tmp_path / "log").rglob("*"))

    async def run() -> None:
        async with app.router.lifespan_context(app), Pings(app) as pings:
            await pings.many(CALLS // 5)
            objects_early, stored_early = objects(), stored()
            await pings.many(CALLS - CALLS // 5)
            grown, stored_late = objects() - objects_early, stored()
            assert len(log.sessions("mcp/")) <= 2 + 20 + 1
            assert grown < 2000, f"{grown} objects more after {CALLS * 4 // 5} more calls"
            assert stored_late < stored_early + (8 << 20)

    with log:
        asyncio.run(run())


class Pings:
    """Calls without a socket: the app itself."""

    def __init__(self, app: Any) -> None:
        transport = httpx.ASGITransport(app)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")
        self._headers = {"accept": "application/json, text/event-stream"}

    async def __aenter__(self) -> Pings:
        params = {"protocolVersion": kit.REVISION, "capabilities": {}, "clientInfo": {"name": "p", "version": "1"}}
        answer = await self._post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self._headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        self._headers["mcp-protocol-version"] = kit.REVISION
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self._n = 0
        return self

    async def many(self, count: int) -> None:
        for _ in range(count):
            self._n += 1
            answer = await self._post({"jsonrpc": "2.0", "id": self._n, "method": "ping"})
            assert '"result"' in answer.text

    async def _post(self, message: Any) -> httpx.Response:
        return await self._http.post("/mcp", json=message, headers=self._headers)

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()


def test_streams_of_finished_calls_are_reaped_by_age() -> None:
    log = replaylog.open(None, durability="memory")
    with served(log, limits=Limits(finished_age_s=0.4)) as (url, _):
        raw = kit.Raw(url).initialize()
        for n in range(1, 6):
            raw.result(n, "count", to=3)
        assert len(log.sessions("mcp/")) > 4
        kit.until(lambda: len(log.sessions("mcp/")) == 2)
        assert "result" in raw.result(9, "count", to=3)


def test_an_idle_session_is_reaped_with_all_its_streams() -> None:
    log = replaylog.open(None, durability="memory")
    server, _ = kit.make_server()
    options = {"session_idle_timeout": 0.5}
    if kit.SDK == "mcp1":  # takes it from the server's own settings
        server.settings.session_idle_timeout = options.pop("session_idle_timeout")
    with log, kit.serve(replaylog.mcp.resumable(server, log, **options)) as url:
        raw = kit.Raw(url).initialize()
        raw.result(1, "count", to=3)
        assert log.sessions("mcp/")
        kit.until(lambda: not log.sessions("mcp/"))
        assert raw.post({"jsonrpc": "2.0", "id": 2, "method": "ping"}).status_code == 404


def test_a_deleted_session_leaves_nothing() -> None:
    log = replaylog.open(None, durability="memory")
    with served(log) as (url, _):
        raw = kit.Raw(url).initialize()
        with raw.call(1, "count", to=3) as events:
            seen = list(events)
        assert raw.delete().status_code == 200
        assert not log.sessions("mcp/")
        with raw.get(seen[0]["id"]) as events:
            assert events.response.status_code == 404


def test_deleting_a_session_ends_its_streams_without_a_word() -> None:
    log = replaylog.open(None, durability="memory")
    with served(log) as (url, _):
        raw, other = kit.Raw(url).initialize(), kit.Raw(url)
        other.session_id = raw.session_id
        seen: list[Any] = []

        def read(stream: Any) -> None:
            with stream as events:
                seen.extend(event["json"] for event in events if "json" in event)

        streams = [kit.Raw(url).call_in(raw, 1, "count", to=3000, every_s=0.01), other.get()]
        readers = [threading.Thread(target=read, args=(stream,)) for stream in streams]
        for reader in readers:
            reader.start()
        time.sleep(0.3)
        assert raw.delete().status_code == 200
        for reader in readers:
            reader.join(5)
            assert not reader.is_alive()
        assert {message["method"] for message in seen} == {"notifications/progress"}


def test_a_name_in_the_log_does_not_give_a_session_away() -> None:
    log = replaylog.open(None, durability="memory")
    with served(log) as (url, _):
        raw = kit.Raw(url).initialize()
        raw.result(1, "count", to=3)
        assert not any(raw.session_id in info.name for info in log.sessions())


def test_what_a_server_was_told_about_a_session_is_in_its_record() -> None:
    from replaylog.mcp._state import State

    state = State(initialize="{}", owner={"client_id": "ann"})
    assert state.learn("logging/setLevel", {"level": "debug"}, {})
    for uri in ("test://a", "test://b", "test://a"):
        assert state.learn("resources/subscribe", {"uri": uri}, {})
    assert state.learn("resources/unsubscribe", {"uri": "test://b"}, {})
    assert not state.learn("tools/call", {}, {})
    again = State.from_json(state.as_json())
    assert again == state
    assert again.replayed() == [
        ("logging/setLevel", {"level": "debug"}),
        ("resources/subscribe", {"uri": "test://a"}),
    ]


# -- the single pieces ------------------------------------------------------------------------------------


def test_a_store_of_each_session_for_a_manager_of_ones_own() -> None:
    log = replaylog.open(None, durability="memory")

    class Manager(_edges.StreamableHTTPSessionManager):  # type: ignore[misc, unused-ignore]
        event_store = replaylog.mcp.per_session(log, retention=Retention(events=10))

    server, _ = kit.make_server()
    app = kit.own_app(server, None)
    if kit.SDK == "fastmcp":
        pytest.skip("fastmcp makes its own manager: there, resumable() is the piece")
    server.session_manager.__class__ = Manager
    with log, kit.serve(app) as url:
        a, b = kit.Raw(url).initialize(), kit.Raw(url).initialize()
        with a.call(7, "count", to=8) as events:
            seen = list(events)
        with a.get(seen[3]["id"]) as events:
            assert kit.progress_of(list(events)) == [4, 5, 6, 7, 8]
        with b.call(7, "count", to=3) as events:
            assert kit.progress_of(list(events)) == [1, 2, 3]
        with b.get(seen[3]["id"]) as events:
            (refused,) = list(events)
        assert "does not belong to this session" in refused["json"]["error"]["message"]
        with a.call(8, "count", to=40) as events:
            lost = list(events)
        with a.get(lost[3]["id"]) as events:
            (refused,) = list(events)
        assert "resumption failed" in refused["json"]["error"]["message"]


def test_the_session_manager_alone() -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    log = replaylog.open(None, durability="memory")
    server, _ = kit.make_server()
    lowlevel = next(found for name in ("_mcp_server", "_lowlevel_server") if (found := getattr(server, name, None)))
    manager = replaylog.mcp.SessionManager(lowlevel, log=log)
    routes = [Mount("/mcp", app=manager.handle_request)]
    with log, kit.serve(Starlette(routes=routes, lifespan=lambda app: manager.run())) as url:
        raw = kit.Raw(url + "/").initialize()
        with raw.call(1, "count", to=3) as events:
            seen = list(events)
        with raw.get(seen[0]["id"]) as events:
            assert kit.progress_of(list(events)) == [1, 2, 3]


def test_a_lowlevel_server_is_served_too() -> None:
    if kit.SDK == "fastmcp":
        pytest.skip("fastmcp has no low-level server of its own")
    server, _ = kit.make_server()
    lowlevel = getattr(server, "_mcp_server", None) or server._lowlevel_server
    log = replaylog.open(None, durability="memory")
    with log, kit.serve(replaylog.mcp.resumable(lowlevel, log)) as url:
        raw = kit.Raw(url).initialize()
        with raw.call(1, "count", to=3) as events:
            seen = list(events)
        with raw.get(seen[0]["id"]) as events:
            assert kit.progress_of(list(events)) == [1, 2, 3]


def test_plain_json_answers_stay_plain_and_their_sessions_are_kept() -> None:
    log = replaylog.open(None, durability="memory")
    server, _ = kit.make_server()
    options = {} if kit.SDK == "mcp1" else {"json_response": True}
    if kit.SDK == "mcp1":
        server.settings.json_response = True
    with log, kit.serve(replaylog.mcp.resumable(server, log, **options)) as url:
        raw = kit.Raw(url)
        params = {"protocolVersion": kit.REVISION, "capabilities": {}, "clientInfo": {"name": "j", "version": "1"}}
        answer = raw.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        raw.session_id = answer.headers["mcp-session-id"]
        raw.notify("notifications/initialized")
        call = {"name": "wait", "arguments": {"seconds": 0}}
        answer = raw.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["result"]["content"][0]["text"].startswith("waited")
        assert len(log.sessions("mcp/")) == 2


# -- the revision without sessions ------------------------------------------------------------------------


@pytest.mark.skipif(kit.SDK == "mcp1", reason="mcp 1.x does not know the revision of 2026-07-28")
def test_a_client_of_the_revision_without_sessions_gets_what_it_gets_without_us() -> None:
    modern = "2026-07-28"
    meta = {
        "io.modelcontextprotocol/protocolVersion": modern,
        "io.modelcontextprotocol/clientInfo": {"name": "m", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": 1,
    }
    asked = [
        ("server/discover", {"_meta": meta}, {}),
        ("tools/list", {"_meta": meta}, {}),
        ("tools/call", {"_meta": meta, "name": "count", "arguments": {"to": 3}}, {"mcp-name": "count"}),
        ("tools/call", {"_meta": meta, "name": "wait", "arguments": {"seconds": 0}}, {"mcp-name": "wait"}),
        ("no/such", {"_meta": meta}, {}),
    ]

    def answers(url: str) -> list[Any]:
        found = []
        for n, (method, params, more) in enumerate(asked):
            headers = {
                "accept": "application/json, text/event-stream",
                "mcp-protocol-version": modern,
                "mcp-method": method,
                "last-event-id": "0123456789abcdef.1.00000000",
                **more,
            }
            message = {"jsonrpc": "2.0", "id": n, "method": method, "params": params}
            answer = httpx.post(url, json=message, headers=headers, timeout=10)
            kept = {k: v for k, v in answer.headers.items() if k != "date"}
            found.append((answer.status_code, kept, answer.text))
        return found

    log = replaylog.open(None, durability="memory")
    with served(log) as (url, _):
        with_us = answers(url)
        assert not log.sessions()
    plain, _ = kit.make_server()
    with kit.serve(kit.own_app(plain, None)) as url:
        without_us = answers(url)
    assert with_us == without_us
    assert [status for status, _, _ in with_us][:4] == [200] * 4
    assert "counted to 3" in json.dumps(with_us)
