"""Streams of an MCP session over real HTTP: who may read what, what a refusal says, and that no reader stalls
another.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("mcp.server.streamable_http", reason="NO MCP SDK INSTALLED: the MCP adapter is not tested here")

import mcp_kit as kit
import replaylog
import replaylog.mcp
from replaylog import Retention


class Served:
    """A running server, its log and what its tools have done."""

    def __init__(self, url: str, log: Any, ran: kit.Ran) -> None:
        self.url = url
        self.log = log
        self.ran = ran

    def raw(self, revision: str = kit.REVISION, **options: Any) -> kit.Raw:
        return kit.Raw(self.url, revision, **options).initialize()


def served(**options: Any) -> Any:
    import contextlib

    @contextlib.contextmanager
    def run() -> Iterator[Served]:
        log = replaylog.open(None, durability="memory")
        server, ran = kit.make_server()
        with log, kit.serve(replaylog.mcp.resumable(server, log, **options)) as url:
            yield Served(url, log, ran)

    return run()


@pytest.fixture(scope="module")
def s() -> Iterator[Served]:
    with served(retry_interval=50) as running:
        yield running


@pytest.fixture(scope="module")
def narrow() -> Iterator[Served]:
    """A server whose streams keep ten events."""
    with served(limits=replaylog.mcp.Limits(retention=Retention(events=10))) as running:
        yield running


def read(events: kit.Sse, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for event in events:
        found.append(event)
        if len(found) == count:
            break
    return found


# -- whose events -----------------------------------------------------------------------------------------


def test_two_sessions_with_equal_request_ids_never_see_each_others_events(s: Served) -> None:
    a, b = s.raw(), s.raw()
    got: dict[str, list[dict[str, Any]]] = {}

    def run(name: str, raw: kit.Raw, to: int) -> None:
        with raw.call(7, "count", to=to, every_s=0.005) as events:
            got[name] = list(events)

    threads = [threading.Thread(target=run, args=args) for args in (("a", a, 40), ("b", b, 25))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert kit.progress_of(got["a"]) == list(range(1, 41))
    assert kit.progress_of(got["b"]) == list(range(1, 26))
    for own, foreign in ((a, "b"), (b, "a")):
        for event in got[foreign]:
            with own.get(event["id"]) as events:
                seen = list(events)
            assert events.response.headers["replay-verdict"] == "forked"
            assert len(seen) == 1
            assert "error" in seen[0]["json"]


def test_an_id_of_another_session_is_refused_in_the_words_for_one_that_never_existed(s: Served) -> None:
    a, b = s.raw(), s.raw()
    with a.call(7, "count", to=3) as events:
        foreign = list(events)[-1]["id"]
    invented = "0123456789abcdef" + foreign[16:]
    answers = []
    for cursor in (foreign, invented):
        with b.get(cursor) as events:
            body = list(events)
            headers = {k: v for k, v in events.response.headers.items() if k.startswith(("replay-", "session-"))}
            answers.append((events.response.status_code, headers, body, events.comments))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("cursor", ["41", "x", "0123456789abcdef.41", "7_" + "a" * 300, ".41.", "1_1"])
def test_what_is_no_event_id_is_malformed_or_refused_and_never_a_stream(s: Served, cursor: str) -> None:
    raw = s.raw()
    with raw.get(cursor) as events:
        assert "error" in next(iter(events))["json"]
    with raw.get(cursor, **{"replay-refuse": "status"}) as events:
        assert events.response.status_code in (400, 409)
        assert events.response.headers["replay-verdict"] in ("malformed", "forked")


def test_request_ids_keep_their_json_type_also_when_both_are_in_flight(s: Served) -> None:
    raw = s.raw()
    got: dict[str, list[dict[str, Any]]] = {}

    def run(id: Any, to: int) -> None:
        with kit.Raw(s.url).call_in(raw, id, "count", to=to, every_s=0.005) as events:
            got[repr(id)] = list(events)

    threads = [threading.Thread(target=run, args=args) for args in ((7, 40), ("7", 30), (7, 20))]
    for thread in threads[:2]:
        thread.start()
        time.sleep(0.03)
    for thread in threads[:2]:
        thread.join(20)
    assert kit.progress_of(got["7"]) == list(range(1, 41))
    assert kit.progress_of(got["'7'"]) == list(range(1, 31))
    assert got["7"][-1]["json"]["id"] == 7
    assert got["'7'"][-1]["json"]["id"] == "7"


def test_a_request_id_that_comes_again_opens_another_stream(s: Served) -> None:
    raw = s.raw()
    ids = []
    for to in (5, 6):
        with raw.call(7, "count", to=to) as events:
            seen = list(events)
        assert kit.progress_of(seen) == list(range(1, to + 1))
        ids.append(seen[0]["id"])
    with raw.get(ids[0]) as events:
        assert kit.progress_of(list(events)) == list(range(1, 6))
    with raw.get(ids[1]) as events:
        assert kit.progress_of(list(events)) == list(range(1, 7))


# -- positions and proofs ---------------------------------------------------------------------------------


def test_a_stream_begins_with_an_event_that_primes_and_says_when_to_come_back(s: Served) -> None:
    raw = s.raw()
    with raw.call(1, "count", to=2) as events:
        first = next(iter(events))
    assert first["data"] == ""
    assert first["retry"] == "50"
    assert first["id"].split(".")[1] == "0"


def test_clients_of_older_revisions_get_no_event_without_data(s: Served) -> None:
    raw = s.raw(kit.OLD_REVISION)
    with raw.call(1, "count", to=2) as events:
        seen = list(events)
    assert all(event.get("data") for event in seen)
    with raw.get(seen[0]["id"]) as events:
        assert kit.progress_of(list(events)) == [2]


def test_the_proof_comes_in_headers_and_in_one_comment_before_the_first_event(s: Served) -> None:
    raw = s.raw()
    with raw.call(1, "count", to=5) as events:
        seen = list(events)
    with raw.get(seen[2]["id"]) as events:
        assert kit.progress_of(list(events)) == [3, 4, 5]
        headers = events.response.headers
        assert events.comments[0].startswith("Replay-Verdict=resumable Replay-Proof=chain")
    assert headers["replay-verdict"] == "resumable"
    assert headers["replay-proof"] == "chain"
    assert (headers["replay-floor"], headers["replay-head"]) == ("1", "6")
    assert headers["replay-epoch"] == seen[0]["id"][:16]


def test_a_lost_cursor_fails_the_call_in_band_with_the_numbers(narrow: Served) -> None:
    raw = narrow.raw()
    with raw.call(5, "count", to=50) as events:
        seen = list(events)
    with raw.get(seen[3]["id"]) as events:
        refused = list(events)
    assert events.response.status_code == 200
    assert events.response.headers["replay-verdict"] == "below-floor"
    assert len(refused) == 1
    error = refused[0]["json"]
    assert error["id"] == 5
    assert error["error"]["data"]["lost"] == {"count": 38, "first": 4, "last": 41}
    assert error["error"]["data"]["still_running"] is False
    assert (error["error"]["data"]["floor"], error["error"]["data"]["head"]) == (42, 51)


def test_a_refusal_does_not_cancel_the_call(narrow: Served) -> None:
    raw, before, counted = narrow.raw(), narrow.ran.finished, narrow.ran.counted
    with raw.call(5, "count", to=60, every_s=0.01) as events:
        first = next(iter(events))["id"]
    kit.until(lambda: narrow.ran.counted > counted + 30)
    with raw.get(first) as events:
        assert next(iter(events))["json"]["error"]["data"]["still_running"] is True
    kit.until(lambda: narrow.ran.finished == before + 1)


@pytest.mark.parametrize("by", ["header", "option"])
def test_on_request_a_refusal_is_a_status(narrow: Served, by: str) -> None:
    def check(running: Served, headers: dict[str, str]) -> None:
        raw = running.raw()
        with raw.call(5, "count", to=50) as events:
            seen = list(events)
        with raw.get(seen[3]["id"], **headers) as events:
            body = json.loads(events.response.read())
        assert events.response.status_code == 409
        assert events.response.headers["replay-verdict"] == "below-floor"
        assert events.response.headers["content-type"] == "application/problem+json"
        assert (body["verdict"], body["lost"], body["floor"], body["head"]) == ("below-floor", 38, 42, 51)
        assert body["type"].endswith("/cursor-below-floor")

    if by == "header":
        check(narrow, {"replay-refuse": "status"})
    else:
        with served(refuse="status", limits=replaylog.mcp.Limits(retention=Retention(events=10))) as strict:
            check(strict, {})


def test_a_repeated_cursor_header_is_malformed(s: Served) -> None:
    raw = s.raw()
    with raw.call(1, "count", to=3) as events:
        seen = list(events)
    headers = [*raw.headers(**{"replay-refuse": "status"}).items()]
    headers += [("last-event-id", seen[1]["id"]), ("last-event-id", seen[2]["id"])]
    assert raw.http.get(s.url, headers=headers).status_code == 400


def test_the_verdict_comes_after_the_checks_of_the_sdk(s: Served) -> None:
    raw = s.raw()
    with raw.call(1, "count", to=3) as events:
        cursor = next(iter(events))["id"]
    headers = raw.headers(**{"last-event-id": cursor, "replay-refuse": "status"})
    assert raw.http.get(s.url, headers={**headers, "mcp-session-id": "unknown"}).status_code == 404
    assert raw.http.get(s.url, headers={**headers, "accept": "application/json"}).status_code == 406


# -- the GET stream ---------------------------------------------------------------------------------------


def test_what_was_sent_before_the_first_get_is_delivered_by_it(s: Served) -> None:
    raw = s.raw()
    raw.result(1, "announce", times=3)
    with raw.get() as events:
        seen = read(events, 3)
    assert [e["json"]["method"] for e in seen] == ["notifications/resources/list_changed"] * 3


def test_a_get_stream_that_drops_before_its_first_event_holds_a_position(s: Served) -> None:
    raw = s.raw()
    with raw.get() as events:
        (primed,) = read(events, 1)
    assert primed["data"] == ""
    raw.result(1, "announce")
    with raw.get(primed["id"]) as events:
        assert read(events, 1)[0]["json"]["method"] == "notifications/resources/list_changed"


def test_a_second_get_stream_is_409_without_a_verdict_and_a_resumed_one_counts(s: Served) -> None:
    raw, other = s.raw(), kit.Raw(s.url)
    other.session_id = raw.session_id
    raw.result(1, "announce")
    with raw.get() as events:
        (seen,) = read(events, 1)
        with other.get() as second:
            assert second.response.status_code == 409
            assert "replay-verdict" not in second.response.headers
    with raw.get(seen["id"]):
        with other.get() as second:
            assert second.response.status_code == 409


def test_a_get_stream_below_its_floor_is_told_what_to_fetch_again_and_goes_on(narrow: Served) -> None:
    raw = narrow.raw()
    raw.result(1, "announce")
    with raw.get() as events:
        (seen,) = read(events, 1)
    raw.result(2, "announce", times=30)
    with raw.get(seen["id"]) as events:
        found = read(events, 4)
        assert events.response.headers["replay-verdict"] == "below-floor"
    lost = found[0]
    assert lost["json"]["method"] == "notifications/message"
    assert lost["json"]["params"]["data"]["lost"] == {"count": 20, "first": 2, "last": 21}
    assert lost["id"].split(".")[1] == "21"
    assert any(e["json"]["method"].endswith("list_changed") and "id" not in e for e in found[1:])
    with raw.get(lost["id"]) as events:
        assert events.response.headers["replay-verdict"] == "resumable"
        assert [e["id"].split(".")[1] for e in read(events, 10)] == [str(n) for n in range(22, 32)]


def test_a_server_that_waits_for_an_answer_is_told_when_its_question_was_lost(narrow: Served) -> None:
    raw = kit.Raw(narrow.url).initialize({"roots": {}})
    raw.result(1, "announce")
    with raw.get() as events:
        (seen,) = read(events, 1)
    one = kit.Raw(narrow.url)
    answers: list[Any] = []

    def ask() -> None:
        with one.call_in(raw, 2, "ask") as events:
            answers.extend(list(events))

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.3)
    raw.result(3, "announce", times=30)
    with raw.get(seen["id"]) as events:
        assert read(events, 1)[0]["json"]["params"]["data"]["lost"]["first"] == 2
    asking.join(10)
    assert "the client lost this request" in answers[-1]["json"]["result"]["content"][0]["text"]


# -- closing and stalling ---------------------------------------------------------------------------------


def test_a_stream_that_the_server_closes_goes_on_where_it_was_when_the_client_comes_back(s: Served) -> None:
    raw = s.raw()
    with raw.call(1, "close_and_go_on", to=20) as events:
        seen = list(events)
    assert "result" not in seen[-1].get("json", {}), "the server closed the stream before the result"
    with raw.get(seen[-1]["id"]) as events:
        rest = list(events)
    assert kit.progress_of(seen + rest) == list(range(1, 21))
    assert rest[-1]["json"]["result"]["content"][0]["text"] == "went on"


def test_a_reader_that_comes_back_takes_over_from_its_former_connection(s: Served) -> None:
    raw, again = s.raw(), kit.Raw(s.url)
    again.session_id = raw.session_id
    with raw.call(1, "count", to=100, every_s=0.01) as events:
        seen = read(events, 3)
        with again.get(seen[-1]["id"]) as resumed:
            rest = list(resumed)
        left = list(events)
    assert kit.progress_of(rest)[-1] == 100
    assert not any("result" in e.get("json", {}) for e in left), "each message goes out on one connection"


def test_a_client_that_does_not_read_stalls_nobody_and_still_gets_all(s: Served) -> None:
    raw, before = s.raw(), s.ran.counted
    body = {"name": "pour", "arguments": {"events": 400, "size": 100_000}, "_meta": {"progressToken": 1}}
    sock, first = unread_post(raw, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": body})
    slowest_s, deadline_s = 0.0, time.monotonic() + 30
    while s.ran.counted < before + 400:
        began_s = time.monotonic()
        assert raw.result(2, "wait", seconds=0)["result"]["content"][0]["text"].startswith("waited")
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert began_s < deadline_s, "the call whose client does not read came to a halt"
    assert slowest_s < 1.0
    text = first + drain(sock)
    assert text.count(b"notifications/progress") == 400
    assert b"poured" in text


def unread_post(raw: kit.Raw, message: Any) -> tuple[socket.socket, bytes]:
    """Send a request and read its headers only."""
    url = raw.http.build_request("GET", raw.url).url
    body = json.dumps(message).encode()
    sock = socket.create_connection((url.host, url.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    fields = raw.headers() | {"host": f"{url.host}:{url.port}", "content-type": "application/json"}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    sock.sendall(f"POST /mcp HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return sock, sock.recv(1000)


def drain(sock: socket.socket) -> bytes:
    """Everything up to the last chunk."""
    found = bytearray()
    sock.settimeout(10)
    while not found.endswith(b"\r\n0\r\n\r\n"):
        part = sock.recv(1 << 20)
        if not part:
            break
        found += part
    sock.close()
    return bytes(found)
