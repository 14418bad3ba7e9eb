"""Creating, appending, ending and reaping over HTTP: what is answered, and what is then in the log."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgpack
import pytest

import replaylog
from replaylog import _errors as errors
from replaylog._verdict import PROBLEM_BASE
from replaylog.asgi import App
from replaylog.asgi._problems import of_error
from web import Call
from web import ask as ask_once

JSON = [("Content-Type", "application/json")]
TEXT = [("Content-Type", "text/plain; charset=utf-8")]
MSGPACK = [("Content-Type", "application/msgpack")]
EVENTS = "/sessions/s/events"


def ask(log: Any, method: str, path: str, body: bytes = b"", headers: Any = None) -> Call:
    return asyncio.run(_ask(log, method, path, body, headers))


async def _ask(log: Any, method: str, path: str, body: bytes, headers: Any) -> Call:
    return await ask_once(App(log), method, path, headers, body=body)


@pytest.fixture
def session(memory_log: Any) -> Any:
    return memory_log.create("s")


def payloads(log: Any, name: str = "s") -> list[tuple[Any, str]]:
    with log.resume(name) as replay:
        return [(event.payload, event.kind) for event in replay]


def is_problem(answer: Call, status: int, slug: str) -> bool:
    return (answer.status, answer.document["type"]) == (status, PROBLEM_BASE + slug)


# --- sessions -------------------------------------------------------------------------------------


def test_put_creates_once(memory_log: Any) -> None:
    made = ask(memory_log, "PUT", "/sessions/agent-7", b'{"meta": {"user": "u1"}}')
    assert made.status == 201
    session = memory_log.session("agent-7")
    assert made.document == {
        "name": "agent-7",
        "state": "open",
        "epoch": f"{session.epoch:016x}",
        "floor": 1,
        "head": 0,
        "cursor": session.cursor,
        "meta": {"user": "u1"},
    }
    again = ask(memory_log, "PUT", "/sessions/agent-7")
    assert is_problem(again, 409, "session-exists")
    assert again.document["epoch"] == f"{session.epoch:016x}"


def test_a_session_can_have_its_own_window(memory_log: Any) -> None:
    assert ask(memory_log, "PUT", "/sessions/s", b'{"retention": {"events": 3}}').status == 201
    memory_log.session("s").extend([("x", "message")] * 10)
    assert memory_log.session("s").floor == 8


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b'{"retention": {"depth": 1}}',
        b'{"retention": 3}',
        b'{"x": 1}',
        b'{"retention": {"events": -1}}',
    ],
)
def test_what_is_not_understood_creates_nothing(memory_log: Any, body: bytes) -> None:
    assert ask(memory_log, "PUT", "/sessions/s", body).status == 400
    assert memory_log.sessions() == []


@pytest.mark.parametrize("name", ["", "%ff", "%00", "a" * 256, "%0d%0a"])
def test_a_name_that_is_none_is_refused(memory_log: Any, name: str) -> None:
    assert ask(memory_log, "PUT", f"/sessions/{name}").status == 400
    assert memory_log.sessions() == []


@pytest.mark.parametrize(
    "name", ["a/b", "a/events", "ünï", "a b", "a%b", "?", "..", "💩", "events", "x" * 255]
)
def test_any_other_name_is_one_path_segment(memory_log: Any, name: str) -> None:
    from urllib.parse import quote

    path = f"/sessions/{quote(name, safe='')}"
    assert ask(memory_log, "PUT", path).status == 201
    assert memory_log.session(name).name == name
    assert ask(memory_log, "POST", f"{path}/events", b"x").document["id"] == 1
    assert ask(memory_log, "GET", path).document["name"] == name
    assert ask(memory_log, "HEAD", f"{path}/events").headers["replay-head"] == "1"
    assert ask(memory_log, "DELETE", path).status == 204
    assert ask(memory_log, "GET", path).status == 410


def test_get_session_has_an_etag_that_moves_with_the_head(memory_log: Any, session: Any) -> None:
    first = ask(memory_log, "GET", "/sessions/s")
    assert first.headers["etag"] == f'"{session.cursor}"'
    same = ask(memory_log, "GET", "/sessions/s", headers=[("If-None-Match", first.headers["etag"])])
    assert (same.status, same.body) == (304, b"")
    session.append("x")
    moved = ask(memory_log, "GET", "/sessions/s", headers=[("If-None-Match", first.headers["etag"])])
    assert (moved.status, moved.document["head"]) == (200, 1)


def test_sessions_are_paged_by_name(memory_log: Any) -> None:
    for n in range(25):
        memory_log.create(f"a{n:02}")
    memory_log.create("b")
    names: list[str] = []
    after = ""
    while True:
        page = ask(memory_log, "GET", f"/sessions?prefix=a&limit=10{after}").document
        names += [row["name"] for row in page["sessions"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert names == [f"a{n:02}" for n in range(25)]
    for limit in ("0", "-1", "x", "100000", "٣"):
        assert ask(memory_log, "GET", f"/sessions?limit={limit}").status == 400


def test_reap_leaves_a_tombstone(memory_log: Any, session: Any) -> None:
    session.append("x")
    assert ask(memory_log, "DELETE", "/sessions/s?reason=idle").status == 204
    answer = ask(memory_log, "GET", "/sessions/s")
    assert is_problem(answer, 410, "session-reaped")
    assert answer.document["reason"] == "idle"
    assert is_problem(ask(memory_log, "DELETE", "/sessions/never"), 404, "session-unknown")


# --- append ---------------------------------------------------------------------------------------


def test_the_media_type_decides_the_payload(memory_log: Any, session: Any) -> None:
    bodies: list[tuple[bytes, Any, Any]] = [
        (b'{"pct": 10}', JSON, {"pct": 10}),
        (b"[1, 2.5, null]", [("Content-Type", "Application/JSON; charset=utf-8")], [1, 2.5, None]),
        ("grüße".encode(), TEXT, "grüße"),
        (b"", TEXT, ""),
        (b"\x00\xff", None, b"\x00\xff"),
        (b"{}", [("Content-Type", "application/octet-stream")], b"{}"),
    ]
    for body, headers, _ in bodies:
        assert ask(memory_log, "POST", f"{EVENTS}?kind=k", body, headers).status == 201
    assert payloads(memory_log) == [(payload, "k") for _, _, payload in bodies]


def test_201_names_the_id_and_its_cursor(memory_log: Any, session: Any) -> None:
    answer = ask(memory_log, "POST", EVENTS, b"x")
    assert answer.status == 201
    assert answer.document == {"id": 1, "cursor": session.cursor}
    assert payloads(memory_log) == [(b"x", "message")]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{", JSON),
        (b"NaN", JSON),
        (b"[Infinity]", JSON),
        (b'"\\ud800"', JSON),
        ('"x"'.encode("utf-16"), JSON),
        (b"9223372036854775808", JSON),
        (b"1e999", JSON),
        (b"[" * 100_000, JSON),
        (b"", JSON),
        (b"\xff", TEXT),
        (b"\xc1", MSGPACK),
        (msgpack.packb({"a": 1}), MSGPACK),
        (msgpack.packb([]), MSGPACK),
        (msgpack.packb(["x"]), MSGPACK),
        (msgpack.packb([["x", "message", 1]]), MSGPACK),
        (msgpack.packb([["x", 1]]), MSGPACK),
        (msgpack.packb([["fine", "message"], [msgpack.ExtType(1, b""), "message"]]), MSGPACK),
        (msgpack.packb([["fine", "message"], ["x", "replay-end"]]), MSGPACK),
    ],
)
def test_a_body_that_is_not_what_it_says_appends_nothing(
    memory_log: Any, session: Any, body: bytes, headers: Any
) -> None:
    answer = ask(memory_log, "POST", EVENTS, body, headers)
    assert answer.status == 400, answer.document
    assert session.head == 0


@pytest.mark.parametrize("kind", ["x%0Aid: 1", "a;b", "replay", "replay-end", "%00", "a%0D", "k" * 256])
def test_a_kind_that_is_none_appends_nothing(memory_log: Any, session: Any, kind: str) -> None:
    answer = ask(memory_log, "POST", f"{EVENTS}?kind={kind.replace(' ', '%20')}", b"x")
    assert is_problem(answer, 400, "event-invalid")
    assert session.head == 0


def test_a_batch_is_one_commit(memory_log: Any, session: Any) -> None:
    items = [[b"\x00", "a"], ["text", "b"], [{"n": 1}, "c"]]
    answer = ask(memory_log, "POST", EVENTS, msgpack.packb(items), MSGPACK)
    assert answer.status == 201
    assert answer.document == {"id": 3, "first": 1, "cursor": session.cursor}
    assert payloads(memory_log) == [(payload, kind) for payload, kind in items]


def test_a_batch_is_bounded_and_takes_no_key(memory_log: Any, session: Any) -> None:
    many = msgpack.packb([["x", "message"]] * 10_001)
    assert is_problem(ask(memory_log, "POST", EVENTS, many, MSGPACK), 413, "event-too-large")
    one = msgpack.packb([["x", "message"]])
    answer = ask(memory_log, "POST", EVENTS, one, [*MSGPACK, ("Idempotency-Key", "k")])
    assert is_problem(answer, 400, "batch-with-key")
    assert session.head == 0


def test_a_batch_takes_if_match(memory_log: Any, session: Any) -> None:
    two = msgpack.packb([["x", "message"], ["y", "message"]])
    at_start = [*MSGPACK, ("If-Match", f'"{session.cursor}"')]
    assert ask(memory_log, "POST", EVENTS, two, at_start).status == 201
    assert ask(memory_log, "POST", EVENTS, two, at_start).status == 412
    assert session.head == 2


def test_if_match_appends_only_at_that_head(memory_log: Any, session: Any) -> None:
    at_start = session.cursor
    first = ask(memory_log, "POST", EVENTS, b"1", [("If-Match", f'"{at_start}"')])
    assert first.status == 201
    late = ask(memory_log, "POST", EVENTS, b"2", [("If-Match", f'"{at_start}"')])
    assert is_problem(late, 412, "head-moved")
    assert (late.document["expected"], late.document["head"]) == (0, 1)
    for other in ('"0123456789abcdef.1.00000000"', '"1"', "x", '""'):
        assert ask(memory_log, "POST", EVENTS, b"2", [("If-Match", other)]).status == 412
    assert session.head == 1
    assert ask(memory_log, "POST", EVENTS, b"2", [("If-Match", f'"x", "{session.cursor}"')]).status == 201
    assert ask(memory_log, "POST", EVENTS, b"3", [("If-Match", "*")]).status == 201


def test_an_idempotency_key_appends_once(memory_log: Any, session: Any) -> None:
    key = [("Idempotency-Key", "k1")]
    first = ask(memory_log, "POST", EVENTS, b"x", key)
    again = ask(memory_log, "POST", EVENTS, b"x", key)
    assert (first.status, again.status) == (201, 201)
    assert first.document == again.document
    reused = ask(memory_log, "POST", EVENTS, b"y", key)
    assert is_problem(reused, 422, "key-reused")
    assert reused.document["id"] == 1
    assert session.head == 1


def test_too_large_is_413_before_it_is_read() -> None:
    with replaylog.open(None, durability="memory", event_bytes_max=1000) as log:
        log.create("s")
        declared = ask(log, "POST", EVENTS, b"", [("Content-Length", "1000000000000")])
        assert is_problem(declared, 413, "event-too-large")
        assert declared.headers["connection"] == "close"
        assert declared.document["limit"] == 1000
        undeclared = ask(log, "POST", EVENTS, b"x" * 1001)
        assert is_problem(undeclared, 413, "event-too-large")
        assert log.session("s").head == 0


def test_appending_never_creates(memory_log: Any) -> None:
    assert is_problem(ask(memory_log, "POST", EVENTS, b"x"), 404, "session-unknown")
    assert memory_log.sessions() == []


# --- end ------------------------------------------------------------------------------------------


def test_end_takes_a_last_event_or_none(memory_log: Any) -> None:
    memory_log.create("a")
    memory_log.create("b")
    last = ask(memory_log, "POST", "/sessions/a/end?kind=result&reason=done", b'{"ok": true}', JSON)
    assert (last.status, last.document["state"], last.document["head"]) == (200, "ended", 1)
    assert payloads(memory_log, "a") == [({"ok": True}, "result")]
    assert ask(memory_log, "POST", "/sessions/b/end").document["head"] == 0
    for path in ("/sessions/a/end", "/sessions/a/events"):
        assert is_problem(ask(memory_log, "POST", path, b"x"), 409, "session-ended")


# --- errors ---------------------------------------------------------------------------------------

FACTS: dict[type[errors.ReplayLogError], tuple[dict[str, Any], int, str]] = {
    errors.SessionEnded: ({"name": "s", "head": 3}, 409, "session-ended"),
    errors.SessionExists: ({"name": "s", "epoch": 1, "head": 3}, 409, "session-exists"),
    errors.SessionUnknown: ({"name": "s"}, 404, "session-unknown"),
    errors.HeadMoved: ({"name": "s", "expected": 1, "head": 3}, 412, "head-moved"),
    errors.EventTooLarge: ({"size": 9, "limit": 8, "bound": "event_bytes_max"}, 413, "event-too-large"),
    errors.KeyReused: ({"name": "s", "key": "k", "id": 1}, 422, "key-reused"),
    errors.SessionBusy: ({"name": "s", "owner": "pid 1", "waited_s": 1.0}, 503, "session-busy"),
    errors.Fenced: ({"name": "s", "fence": 2}, 503, "fenced"),
    errors.LogPoisoned: ({"cause": "EIO"}, 503, "log-poisoned"),
    errors.Backlogged: ({"queued": 9, "limit": 8, "bound": "backlog_bytes"}, 503, "backlogged"),
    errors.LogFull: ({"used": 9, "limit": 8, "bound": "map_bytes"}, 507, "log-full"),
    errors.OutcomeUnknown: ({"cause": "EIO"}, 500, "outcome-unknown"),
}


@pytest.mark.parametrize("kind", FACTS, ids=lambda kind: kind.__name__)
def test_each_error_has_its_status_and_carries_its_numbers(kind: type[errors.ReplayLogError]) -> None:
    facts, status, slug = FACTS[kind]
    problem = of_error(kind(**facts))
    document = json.loads(bytes(problem.body))
    assert (problem.status_code, document["type"]) == (status, PROBLEM_BASE + slug)
    assert ("retry-after" in problem.headers) == (status == 503)
    assert document["detail"] == str(kind(**facts))
    for name in set(facts) - {"owner", "epoch"}:
        assert document[name] == facts[name]


def test_where_the_log_lies_is_nobodys_business() -> None:
    problem = of_error(errors.LogLocked(path="/srv/secret", holder="pid 7"))
    assert not set(problem.document) & {"path", "holder"}


class _Failing:
    """A log whose appends fail as told."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def session(self, name: str) -> Any:
        return self

    async def append(self, *_: Any, **__: Any) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.OutcomeUnknown(cause="EIO"), 500),
        (errors.LogFull(used=9, limit=8, bound="map_bytes"), 507),
        (errors.Fenced(name="s", fence=2), 503),
        (TimeoutError("10 s"), 500),
    ],
)
def test_a_failed_append_is_never_a_201(memory_log: Any, error: Exception, status: int) -> None:
    async def scenario() -> Call:
        app = App(memory_log)
        failing: Any = _Failing(error)
        failing.event_bytes_max = 1000
        app._log = failing
        return await ask_once(app, "POST", EVENTS, body=b"x")

    answer = asyncio.run(scenario())
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"


# --- the rest of the face -------------------------------------------------------------------------


def test_what_is_no_resource_is_404_and_no_method_is_405(memory_log: Any, session: Any) -> None:
    for path in ("/", "/session", "/sessions/s/", "/sessions/s/events/1", "/sessions/", "/health/x"):
        assert ask(memory_log, "GET", path).status in (400, 404)
    wrong = ask(memory_log, "PATCH", EVENTS, b"x")
    assert wrong.status == 405
    assert wrong.headers["allow"] == "GET, HEAD, POST, OPTIONS"
    assert session.head == 0


def test_health_says_when_the_log_is_closed(memory_log: Any) -> None:
    assert ask(memory_log, "GET", "/health").document["status"] == "ok"
    memory_log.close()
    assert ask(memory_log, "GET", "/health").status == 503


def test_mounted_under_a_prefix_names_keep_their_slashes(memory_log: Any) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    mounted = Starlette(routes=[Mount("/an öde/logs", app=App(memory_log))])

    async def scenario() -> None:
        prefix = "/an%20%C3%B6de/logs"
        assert (await ask_once(mounted, "PUT", f"{prefix}/sessions/a%2Fb")).status == 201
        assert (await ask_once(mounted, "GET", f"{prefix}/sessions/a%2Fb")).document["name"] == "a/b"
        assert (await ask_once(mounted, "GET", f"{prefix}/health")).status == 200

    asyncio.run(scenario())
