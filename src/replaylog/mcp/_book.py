"""The streams of one MCP session, and the session's own record, as sessions of the log.

Guarantees: names are `mcp/<digest of the session id>/<n>`, so that nothing in them opens a session; 0 is the
record, every other n one stream, and an event id is a token of the stream's own log: its epoch finds the
stream among this session's streams and nowhere else. A call's request id and method are durable before the
call is dispatched. Finished streams are kept up to a number and an age. Storing never raises and never waits
for a client. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import anyio

from replaylog import (
    Backlogged,
    ReplayLogError,
    Retention,
    SessionEnded,
    SessionReaped,
    SessionUnknown,
    Verdict,
    aio,
)
from replaylog.mcp import _edges, _words
from replaylog.mcp._reader import Reader
from replaylog.mcp._state import Calls, State

__all__ = ["PREFIX", "Book", "Limits", "Stream", "digest_of"]

logger = logging.getLogger("replaylog.mcp")

PREFIX: Final = "mcp/"
METHOD_CHARS_MAX: Final = 200
REMEMBERED_MAX: Final = 256  # reaped streams whose request id is still known
RECORD: Final = Retention(events=4)


def digest_of(session_id: str) -> str:
    """The name of an MCP session in the log. Its id is what a client authenticates with: it stays out."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Limits:
    """What a session may keep. `retention`: of each stream; `finished_*`: streams of ended calls."""

    retention: Retention | None = None
    finished_max: int = 64
    finished_age_s: float = 900.0


class Stream:
    """One SSE stream: the messages of one call, or what the server sends unasked (`is_get`)."""

    def __init__(
        self,
        session: aio.Session,
        key: str,
        request_id: Any,
        method: str,
        *,
        is_get: bool = False,
        is_guess: bool = False,
    ) -> None:
        self.session = session
        self.key = key
        self.request_id = request_id
        self.method = method
        self.is_get = is_get
        self.is_guess = is_guess  # the id's JSON type is not known: answers keep the one they have
        self.params: dict[str, Any] = {}
        self.done = False
        self.done_at_s = 0.0
        self.failed = ""
        # The last event handed to a reader: where a GET stream without a cursor goes on. The SDK begins it
        # with whatever comes next, and what was sent before the client's first GET is never seen.
        self.sent = 0
        self._reader: Reader | None = None

    def hand_to(self, reader: Reader) -> None:
        """One reader: a client that comes back has lost its former connection, whatever the socket says."""
        former, self._reader = self._reader, reader
        if former is not None:
            former.close()

    def let_go(self, reader: Reader) -> None:
        """The reader is done."""
        if self._reader is reader:
            self._reader = None

    @property
    def reader(self) -> Reader | None:
        """Who reads now."""
        return self._reader

    def fail(self, why: str) -> None:
        """No event can be stored any more: whoever reads is told, and whoever resumes."""
        self.failed = self.failed or why
        if self._reader is not None:
            self._reader.wake()


class Book:
    """All of one MCP session that is in the log."""

    def __init__(self, log: aio.Log, session_id: str, limits: Limits) -> None:
        self.log = log
        self.limits = limits
        self.prefix = f"{PREFIX}{digest_of(session_id)}/"
        self.state = State()
        self.calls = Calls()
        self.is_muted = False  # while a former session is driven up to where it was
        self.is_reaped = False
        self.fail_request: Callable[[int, str], None] = lambda local_id, why: None
        self._by_key: dict[str, Stream | None] = {}
        self._by_epoch: dict[int, Stream] = {}
        self._get: Stream | None = None
        self._opening_get = asyncio.Lock()
        self._record: aio.Session | None = None
        self._next = 1
        self._finished: deque[Stream] = deque()
        self._doomed: deque[Stream] = deque()
        self._reaped: OrderedDict[int, Any] = OrderedDict()
        self._unsettled: deque[tuple[Stream, aio.Ticket]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[str] = set()

    # -- the record ----------------------------------------------------------------------------------

    async def begin(self, initialize: str, owner: dict[str, Any] | None) -> None:
        """The session exists from here on."""
        self.state = State(initialize=initialize, owner=owner)
        self._record = await self.log.create(f"{self.prefix}0", retention=RECORD, wait=False)
        await asyncio.gather(self.write_record(), self.get_stream())

    async def write_record(self) -> None:
        """Each record is the whole state: the last one counts, and the others may go."""
        if self._record is not None:
            await self._record.append(self.state.as_json())

    async def load(self) -> bool:
        """Read a former process's session. False when there is none."""
        try:
            self._record = await self.log.session(f"{self.prefix}0")
            newest = await self._record.resume(max(0, self._record.head - 1))
        except (SessionUnknown, SessionReaped):
            return False
        async with newest:
            async for event in newest:
                self.state = State.from_json(event.payload)
        if not self.state.initialize:
            return False
        for info in await self.log.sessions(self.prefix):
            try:
                await self._adopt(info)
            except (SessionUnknown, SessionReaped):
                pass  # reaped since the listing
        return True

    async def _adopt(self, info: Any) -> None:
        number = int(info.name.rpartition("/")[2])
        self._next = max(self._next, number + 1)
        if number == 0:
            return
        session = await self.log.session(info.name)
        meta = info.meta
        stream = Stream(session, "", meta.get("request"), meta["method"], is_get=meta["method"] == "")
        stream.sent = session.head
        stream.done = info.state == "ended"
        self._by_epoch[session.epoch] = stream
        if stream.is_get:
            self._get, stream.key = stream, _edges.GET_STREAM_KEY
        elif stream.done:
            self._retire(stream)

    async def bury(self) -> None:
        """Calls that a former process was running get their error, as the last event of their stream."""
        for stream in [s for s in self._by_epoch.values() if not s.done and not s.is_get]:
            text = _words.error_text(stream.request_id, _words.INTERRUPTED, {"interrupted": True})
            await stream.session.end(text, kind="response", reason="interrupted")
            self._retire(stream)

    async def reap(self, reason: str) -> None:
        """DELETE, or idle for too long: the session and all its streams go in one commit."""
        self.is_reaped = True
        try:
            await self.log.reap(prefix=self.prefix, reason=reason)
        except BaseException:
            self.is_reaped = False
            raise

    # -- streams -------------------------------------------------------------------------------------

    def reserve(self, request_id: Any) -> str:
        """The SDK's key for a request: the id as text, unless "7" is in flight and 7 comes, or 7 again."""
        key = str(request_id)
        n = self._next
        while key in self._by_key:
            key = f"replaylog-{n}"
            n += 1
        self._by_key[key] = None
        return key

    def release(self, key: str) -> None:
        """The request was refused before its stream was opened."""
        if self._by_key.get(key, False) is None:
            del self._by_key[key]

    def key_of(self, request_id: Any) -> str:
        """The key under which a request in flight is known to the SDK."""
        for key, stream in self._by_key.items():
            if stream is not None and _edges.same_id(stream.request_id, request_id):
                return key
        return str(request_id)

    async def open(self, key: str, request_id: Any, method: str, *, is_guess: bool = False) -> Stream:
        """A new stream, durable. A request id that comes again opens another one."""
        session = await self._create({"request": request_id, "method": method[:METHOD_CHARS_MAX]})
        stream = Stream(session, key, request_id, method, is_guess=is_guess)
        self._by_key[key] = self._by_epoch[session.epoch] = stream
        return stream

    async def get_stream(self) -> Stream:
        """The stream of what no call asked for. After a failure of the log it is a new one: the old has a
        hole.
        """
        async with self._opening_get:
            if self._get is None or self._get.failed:
                session = await self._create({"method": ""})
                self._get = Stream(session, _edges.GET_STREAM_KEY, None, "", is_get=True)
                self._by_epoch[session.epoch] = self._get
            return self._get

    async def mend(self) -> None:
        """A session that exists has a GET stream without a hole, as soon as the log can take one."""
        if self._record is not None and not self.is_reaped:
            try:
                await self.get_stream()
            except ReplayLogError as error:
                logger.error("the GET stream of %s cannot be opened: %s", self.prefix, error)

    async def _create(self, meta: dict[str, Any]) -> aio.Session:
        number, self._next = self._next, self._next + 1
        return await self.log.create(f"{self.prefix}{number}", meta=meta, retention=self.limits.retention)

    def reader_for(self, key: str) -> Reader | None:
        """What reads the stream that the SDK has just opened under `key`; None: it reads its own queue."""
        if self.is_muted:
            return None
        if key == _edges.GET_STREAM_KEY:
            stream = self._get
            return None if stream is None else Reader(self, stream, stream.sent, first=self._priming(stream))
        found = self._by_key.get(key)
        return None if found is None else Reader(self, found, 0)

    def _priming(self, stream: Stream) -> list[_words.Outgoing]:
        """Tells a client its position before anything has happened."""
        if not _edges.has_priming(self.state.version) or stream.sent != stream.session.head:
            return []
        return [_words.Outgoing("", stream.session.cursor)]

    def has_get_reader(self) -> bool:
        """Somebody reads the GET stream."""
        return self._get is not None and self._get.reader is not None

    def close_readers(self, key: str | None = None) -> None:
        """End the connections of one stream, or of all; the streams themselves go on."""
        for stream in list(self._by_epoch.values()):
            if stream.reader is not None and key in (None, stream.key):
                stream.reader.close()

    # -- storing -------------------------------------------------------------------------------------

    def start_token(self, key: str) -> str:
        """The position before a stream's first event: what primes a client."""
        stream = self._get if key == _edges.GET_STREAM_KEY else self._by_key.get(key)
        return "" if stream is None else stream.session.cursor

    def is_open(self, key: str) -> bool:
        """A call is in flight under `key`."""
        return self._by_key.get(key) is not None

    async def store(self, key: str, message: Any) -> tuple[Stream, aio.Ticket | None] | None:
        """Queue a message for its stream: (stream, ticket; None = durable already), or None when it has no
        stream or the log refused. Never raises.
        """
        if self.is_muted or self.is_reaped:
            return None
        kind = _edges.kind_of(message)
        try:
            stream = await self.get_stream() if key == _edges.GET_STREAM_KEY else self._by_key.get(key)
        except ReplayLogError as error:
            logger.error("an event of the GET stream of %s could not be stored: %s", self.prefix, error)
            return None
        if stream is None or stream.failed:
            logger.debug("no stream takes a %s of request %s", kind, key)
            return None
        try:
            ticket = await self._append(stream, self.calls.wire_text(message, kind, stream), kind)
        except (SessionEnded, SessionReaped):
            return None  # late, after its call was answered or the session deleted
        except (ReplayLogError, ValueError) as error:
            self.fail(stream, error)
            return None
        if kind == "response" and not stream.is_get:
            await self._answered(stream, message)
        return stream, ticket

    async def _append(self, stream: Stream, text: str, kind: str) -> aio.Ticket | None:
        session, ends = stream.session, kind == "response" and not stream.is_get
        ticket = None
        try:
            if ends:
                ticket = aio.Ticket(self.log, session.sync.end_nowait(text, kind=kind, reason="answered"))
            else:
                ticket = session.append_nowait(text, kind=kind)
        except Backlogged:
            # The disk is behind: wait here, and with it the session that is too fast for it.
            if ends:
                await session.end(text, kind=kind, reason="answered")
            else:
                await session.append(text, kind=kind)
        if kind == "request":
            self.calls.asked(stream, session.head if ticket is None else ticket.id)
        return ticket

    def settle(self, stream: Stream, ticket: aio.Ticket | None) -> None:
        """Learn the outcome later: the event is visible to nobody before."""
        if ticket is not None:
            self._unsettled.append((stream, ticket))
            self._run("settle", self._settle)

    async def _settle(self) -> None:
        while self._unsettled:
            stream, ticket = self._unsettled.popleft()
            try:
                await ticket.wait()
            except ReplayLogError as error:
                self.fail(stream, error)

    def fail(self, stream: Stream, error: Exception) -> None:
        """The log refused an event: the stream has a hole from here on, and says so instead of going on."""
        logger.error("stream %s fails: %s", stream.session.name, error)
        stream.fail(str(error))
        if not stream.is_get:
            self._retire(stream, done=stream.done)

    async def _answered(self, stream: Stream, message: Any) -> None:
        root = getattr(message, "root", message)
        result = getattr(root, "result", None)
        if result is not None and self.state.learn(stream.method, stream.params, result):
            try:
                await self.write_record()
            except ReplayLogError as error:
                logger.error("the record of %s could not be written: %s", self.prefix, error)
        self._retire(stream)

    def fail_requests(self, stream: Stream, verdict: Verdict) -> None:
        """The client will never see these requests of the server: whoever waits for an answer is told."""
        floor = verdict.floor if stream.is_get else None
        for local_id in self.calls.lost(stream, floor):
            self.fail_request(local_id, "the client lost this request: its event is gone")

    # -- resuming ------------------------------------------------------------------------------------

    def find(self, event_id: str) -> Stream | None:
        """The stream of this session that an event id belongs to."""
        head, _, _ = event_id.partition(".")
        try:
            return self._by_epoch.get(int(head, 16)) if len(head) == 16 else None
        except ValueError:
            return None

    def unknown(self, event_id: str) -> _words.Outgoing:
        """The words for an id of no stream here."""
        head, _, _ = event_id.partition(".")
        request_id = next((r for e, r in self._reaped.items() if f"{e:016x}" == head), _edges.NO_ID)
        return _words.unknown_id(request_id, None if self._get is None else self._get.session.cursor)

    # -- finished streams ----------------------------------------------------------------------------

    def _retire(self, stream: Stream, *, done: bool = True) -> None:
        stream.done = done
        self.calls.lost(stream, None)
        stream.done_at_s = time.monotonic()
        if self._by_key.get(stream.key) is stream:
            del self._by_key[stream.key]
        self._finished.append(stream)
        self.expire()

    def expire(self) -> None:
        """Finished streams past the number or the age are reaped; not while somebody reads them."""
        oldest_s = time.monotonic() - self.limits.finished_age_s
        surplus = len(self._finished) - self.limits.finished_max
        for _ in range(len(self._finished)):
            stream = self._finished[0]
            if surplus <= 0 and stream.done_at_s > oldest_s:
                break
            self._finished.popleft()
            if stream.reader is not None:
                self._finished.append(stream)
                continue
            surplus -= 1
            self._forget(stream)
        if self._doomed:
            self._run("reap", self._reap_doomed)

    def _forget(self, stream: Stream) -> None:
        self._by_epoch.pop(stream.session.epoch, None)
        self._reaped[stream.session.epoch] = stream.request_id
        while len(self._reaped) > REMEMBERED_MAX:
            self._reaped.popitem(last=False)
        self._doomed.append(stream)

    async def _reap_doomed(self) -> None:
        while self._doomed and not self.is_reaped:
            stream = self._doomed[0]
            try:
                await self.log.reap(stream.session.name, reason="finished")
            except (SessionReaped, SessionUnknown):
                pass  # the whole session was reaped meanwhile
            except ReplayLogError as error:
                logger.warning("%s is not reaped yet: %s", stream.session.name, error)
                return  # the next finished call tries again
            self._doomed.popleft()

    def run_soon(self, work: Callable[..., Any], *args: Any) -> None:
        """Once, in a task of its own; errors of a server that has gone are nobody's."""

        async def run() -> None:
            try:
                await work(*args)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                pass  # the session ended meanwhile

        self._spawn(run())

    def _run(self, name: str, work: Callable[[], Any]) -> None:
        """One task per kind of work, while there is some."""
        if name in self._busy:
            return
        self._busy.add(name)

        async def run() -> None:
            try:
                await work()
            finally:
                self._busy.discard(name)

        self._spawn(run())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
