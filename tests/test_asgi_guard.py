"""Who may ask: Host, Origin, bearer token, tickets, and what pages of other origins may see."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import quote

import pytest

from replaylog.asgi import App, RedactTickets, Settings
from replaylog.asgi._guard import redact
from replaylog.asgi._server import hosts_for, is_loopback
from web import Call
from web import ask as ask_once

EVENTS = "/sessions/s/events"
TOKEN = "correct horse battery staple"
BEARER = [("Authorization", f"Bearer {TOKEN}")]


class Clock:
    now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def log(memory_log: Any) -> Any:
    for name in ("s", "other"):
        memory_log.create(name).append("x")
        memory_log.session(name).end()
    memory_log.create("open")
    return memory_log


def ask(log: Any, method: str, path: str, headers: Any = None, **named: Any) -> Call:
    host = named.pop("host", "127.0.0.1")
    body = named.pop("body", b"")

    async def scenario() -> Call:
        return await ask_once(App(log, **named), method, path, headers, host=host, body=body)

    return asyncio.run(scenario())


# --- Host -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
        ("localhost@evil.example", 421),
        ("192.0.2.7", 421),
        ("", 421),
        ("[::1", 421),
    ],
)
def test_a_host_that_nobody_named_is_421(log: Any, host: str, status: int) -> None:
    for path in ("/health", EVENTS, "/sessions"):
        assert ask(log, "GET", path, host=host).status == status


def test_further_hosts_can_be_named(log: Any) -> None:
    named = {"allowed_hosts": ("logs.example",)}
    assert ask(log, "GET", "/health", host="logs.example:443", **named).status == 200
    assert ask(log, "GET", "/health", host="localhost", **named).status == 421
    assert ask(log, "GET", "/health", host="any.example", allowed_hosts=("*",)).status == 200


def test_off_loopback_an_address_literal_is_known_and_a_name_is_not(log: Any) -> None:
    hosts = hosts_for("0.0.0.0", ("logs.example",))
    for host, status in [
        ("192.0.2.7:80", 200),
        ("[2001:db8::1]", 200),
        ("logs.example", 200),
        ("evil.example", 421),
    ]:
        assert ask(log, "GET", "/health", host=host, allowed_hosts=hosts).status == status


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
    ],
)
def test_only_loopback_counts_as_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


# --- Origin ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "http://", ""])
def test_a_write_from_a_foreign_page_is_403(log: Any, origin: str) -> None:
    headers = [("Origin", origin)]
    for method, path in [
        ("PUT", "/sessions/new"),
        ("POST", "/sessions/open/events"),
        ("POST", "/sessions/open/end"),
        ("DELETE", "/sessions/s"),
    ]:
        assert ask(log, method, path, headers, body=b"").status == 403
    assert {row.name: row.state for row in log.sessions()} == {"s": "ended", "other": "ended", "open": "open"}
    assert ask(log, "GET", EVENTS, headers).status == 200


def test_a_write_of_our_own_pages_and_of_named_origins_goes_through(log: Any) -> None:
    path = "/sessions/open/events"
    assert ask(log, "POST", path, [("Origin", "http://127.0.0.1:8080")], host="127.0.0.1:8080").status == 201
    page = [("Origin", "https://app.example")]
    assert ask(log, "POST", path, page, cors=("https://app.example",)).status == 201
    assert ask(log, "POST", path, page, cors=("*",)).status == 403, "* opens reads only"


def test_cors_names_what_a_page_may_see_and_send(log: Any) -> None:
    page = [("Origin", "https://app.example")]
    answer = ask(log, "HEAD", EVENTS, page, cors=("https://app.example",))
    exposed = answer.headers["access-control-expose-headers"]
    for header in (
        "Replay-Verdict",
        "Replay-Floor",
        "Replay-Head",
        "Replay-Epoch",
        "Replay-State",
        "Replay-Proof",
    ):
        assert header in exposed
    for header in ("Session-Durable", "Replay-Keepalive", "Replay-Stall-Max"):
        assert header in exposed
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert answer.headers["vary"] == "Origin"
    preflight = ask(log, "OPTIONS", EVENTS, page, cors=("https://app.example",), token=TOKEN)
    assert preflight.status == 204
    allowed = preflight.headers["access-control-allow-headers"]
    for header in ("Last-Event-ID", "Authorization", "If-Match", "Idempotency-Key", "Replay-Refuse"):
        assert header in allowed


def test_without_cors_no_page_sees_anything(log: Any) -> None:
    page = [("Origin", "https://app.example")]
    for cors in ((), ("https://other.example",)):
        answer = ask(log, "GET", EVENTS, page, cors=cors)
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_refusals_carry_cors_too(log: Any) -> None:
    answer = ask(log, "GET", EVENTS, [("Origin", "https://a.example"), ("Last-Event-ID", "9")], cors=("*",))
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (409, "*")


# --- token and tickets ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer wrong")],
        [("Authorization", f"Basic {TOKEN}")],
        [("Authorization", f"Bearer {TOKEN}x")],
        [("Authorization", "Bearer \xff")],
    ],
)
def test_without_the_token_nothing_is_told(log: Any, headers: Any) -> None:
    before = log.sessions()
    for method, path in [
        ("GET", EVENTS),
        ("HEAD", EVENTS),
        ("GET", "/sessions"),
        ("PUT", "/sessions/new"),
        ("POST", "/tickets"),
        ("DELETE", "/sessions/s"),
    ]:
        answer = ask(log, method, path, headers, token=TOKEN)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "replay-verdict" not in answer.headers
    assert log.sessions() == before
    never = ask(log, "GET", "/sessions/never/events", headers, token=TOKEN)
    there = ask(log, "GET", EVENTS, headers, token=TOKEN)
    assert never.document == there.document, "401 does not tell what exists"
    assert ask(log, "GET", "/health", headers, token=TOKEN).status == 200


def test_with_the_token_everything_is_open(log: Any) -> None:
    assert ask(log, "GET", EVENTS, BEARER, token=TOKEN).status == 200
    assert ask(log, "PUT", "/sessions/new", [("Authorization", f"bearer {TOKEN}")], token=TOKEN).status == 201


def test_a_ticket_reads_its_session_for_a_short_time_and_nothing_else(log: Any) -> None:
    clock = Clock()

    async def scenario() -> None:
        app = App(log, token=TOKEN, ticket_ttl_s=60, now_s=clock)
        body = b'{"session": "s"}'
        answer = await ask_once(app, "POST", "/tickets", BEARER, body=body)
        assert answer.status == 201
        assert answer.document["ttl_s"] == 60
        ticket = quote(answer.document["ticket"])
        for method, path, status in [
            ("GET", f"{EVENTS}?ticket={ticket}", 200),
            ("HEAD", f"{EVENTS}?ticket={ticket}", 200),
            ("GET", f"/sessions/s?ticket={ticket}", 200),
            ("GET", f"/sessions/other/events?ticket={ticket}", 401),
            ("GET", f"/sessions?ticket={ticket}", 401),
            ("POST", f"/sessions/open/events?ticket={ticket}", 401),
            ("DELETE", f"/sessions/s?ticket={ticket}", 401),
            ("POST", f"/tickets?ticket={ticket}", 401),
            ("GET", f"{EVENTS}?ticket={ticket[:-1]}", 401),
            ("GET", f"{EVENTS}?ticket={ticket}0", 401),
            ("GET", f"{EVENTS}?ticket=9{ticket}", 401),
            ("GET", f"{EVENTS}?ticket=", 401),
            ("GET", f"{EVENTS}?ticket=%C3%BC.x.y", 401),
        ]:
            assert (await ask_once(app, method, path)).status == status, (method, path)
        clock.now_s += 59
        assert (await ask_once(app, "GET", f"{EVENTS}?ticket={ticket}")).status == 200
        clock.now_s += 1
        assert (await ask_once(app, "GET", f"{EVENTS}?ticket={ticket}")).status == 401

    asyncio.run(scenario())


def test_another_process_with_the_same_token_honours_a_ticket(log: Any) -> None:
    async def scenario() -> None:
        one, two, other = App(log, token=TOKEN), App(log, token=TOKEN), App(log, token="another")
        ticket = (await ask_once(one, "POST", "/tickets", BEARER)).document["ticket"]
        assert (await ask_once(two, "GET", f"{EVENTS}?ticket={ticket}")).status == 200
        assert (await ask_once(other, "GET", f"{EVENTS}?ticket={ticket}")).status == 401

    asyncio.run(scenario())


def test_the_life_of_a_ticket_is_bounded(log: Any) -> None:
    answer = ask(log, "POST", "/tickets", BEARER, body=b'{"ttl_s": 1e9}', token=TOKEN)
    assert answer.document["ttl_s"] == 3600
    for body in (b'{"ttl_s": "60"}', b'{"ttl_s": true}', b'{"session": 1}', b'{"scope": "s"}', b"[]"):
        assert ask(log, "POST", "/tickets", BEARER, body=body, token=TOKEN).status == 400


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("/sessions/s/events?ticket=abc", "/sessions/s/events?ticket=..."),
        ("/e?from=head&ticket=abc&refuse=event", "/e?from=head&ticket=...&refuse=event"),
        ("/e?%74icket=abc", "/e?%74icket=..."),
        ("/e?from=head", "/e?from=head"),
        ("/e", "/e"),
    ],
)
def test_tickets_never_reach_an_access_log(target: str, shown: str) -> None:
    assert redact(target) == shown
    record = logging.LogRecord(
        "uvicorn.access", logging.INFO, "", 0, '%s - "%s %s"', ("c", "GET", target), None
    )
    RedactTickets().filter(record)
    assert shown in record.getMessage()
    assert "abc" not in record.getMessage()


@pytest.mark.parametrize("named", [{"token": ""}, {"token": "a\nb"}, {"keepalive_s": 0}, {"stall_max_s": -1}])
def test_settings_that_cannot_be_kept_are_refused(named: Any) -> None:
    with pytest.raises(ValueError):
        Settings(**named)
