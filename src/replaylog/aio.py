"""The asyncio face: the same names, awaited where anything may wait. It decides nothing.

Guarantees: what is in memory is answered without a thread; what needs the disk runs in a thread and never on
the loop; cancelling an await loses and consumes nothing. One bell (an eventfd) per loop and log tells the loop
that something moved or was flushed; there is no queue per reader.

Every object belongs to the loop that made it; `close()` of a Follow may come from any thread.
"""

from __future__ import annotations

import asyncio
import functools
import os
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeVar

import replaylog._log as _log_module
from replaylog._errors import Backlogged
from replaylog._journal import Bell
from replaylog._judge import Verdict
from replaylog._log import Log as SyncLog
from replaylog._log import SessionInfo
from replaylog._ring import Event
from replaylog._session import Follow as SyncFollow
from replaylog._session import Replay as SyncReplay
from replaylog._session import Session as SyncSession
from replaylog._session import Ticket as SyncTicket
from replaylog._watch import Moved

__all__ = ["Follow", "Log", "Replay", "Session", "Ticket", "Watch", "open"]

FRAMES_BYTES = 262_144

T = TypeVar("T")


async def open(path: str | os.PathLike[str] | None, **settings: Any) -> Log:
    """`replaylog.open()` in a thread; the same settings."""
    return Log(await asyncio.to_thread(_log_module.open, path, **settings))


async def _in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run in a thread to the end, whatever happens to the await: a cancelled append is still one append."""
    call = functools.partial(function, *args, **kwargs)
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, call))


# -- the bell of a loop ---------------------------------------------------------------------------------


class _Exchange:
    """One per loop and log: wakes whoever waits for a session to move or for a batch to be flushed."""

    def __init__(self, log: SyncLog, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self.loop = self._loop = loop
        self._bell = Bell(log._hub)
        self._bit = self._bell_bit()
        self._movers: dict[SyncSession, set[asyncio.Future[None]]] = {}
        self._flushes: dict[int, list[asyncio.Future[None]]] = {}
        loop.add_reader(self._bell.fileno(), self._rung)
        self._bell.arm()

    def _bell_bit(self) -> int:
        return int(self._bell.bit)

    def _rung(self) -> None:
        for session in self._bell.drain():
            for future in self._movers.get(session, ()):
                _resolve(future)
        if self._flushes:
            done = self._log._journal.seq_done()
            for seq in [seq for seq in self._flushes if seq <= done or self._log.closed]:
                for future in self._flushes.pop(seq):
                    _resolve(future)
        if self._log.closed:
            for futures in self._movers.values():
                for future in futures:
                    _resolve(future)

    async def flushed(self, seq: int) -> None:
        """Until a batch has its outcome; raises what it is. A future per waiter: cancelling one cancels nobody else."""
        while self._log._peek_seq(seq) is None:
            future: asyncio.Future[None] = self._loop.create_future()
            self._flushes.setdefault(seq, []).append(future)
            if self._log._journal.seq_done() < seq:  # else it was rung before we were listed
                await future

    async def moved(
        self,
        session: SyncSession,
        is_over: Callable[[], bool],
        timeout_s: float | None,
        mine: set[asyncio.Future[None]],
    ) -> bool:
        """Until the session publishes something, or `is_over`; False when the time passed. `mine`: for `wake`."""
        future: asyncio.Future[None] = self._loop.create_future()
        mine.add(future)
        waiting = self._movers.setdefault(session, set())
        waiting.add(future)
        session._listen(self._bit, True)
        try:
            if is_over():  # published between the caller's look and our listening
                return True
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            mine.discard(future)
            waiting.discard(future)
            if not waiting and self._movers.get(session) is waiting:
                del self._movers[session]
                session._listen(self._bit, False)
        return True

    def wake(self, waiting: set[asyncio.Future[None]]) -> None:
        """From any thread: one reader's waits look again."""

        def look() -> None:
            for future in list(waiting):
                _resolve(future)

        if not self._loop.is_closed() and waiting:
            self._loop.call_soon_threadsafe(look)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._bell.fileno())
        self._bell.close()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_exchanges: weakref.WeakKeyDictionary[SyncLog, dict[asyncio.AbstractEventLoop, _Exchange]] = (
    weakref.WeakKeyDictionary()
)


def _exchange(log: SyncLog) -> _Exchange:
    loop = asyncio.get_running_loop()
    of_log = _exchanges.setdefault(log, {})
    found = of_log.get(loop)
    if found is None:
        for old in [other for other in of_log if other.is_closed()]:
            of_log.pop(old).close()
        found = of_log[loop] = _Exchange(log, loop)
    return found


# -- the log --------------------------------------------------------------------------------------------


class Log:
    """A log for asyncio. `sync` is the Log underneath; both may be used at once."""

    def __init__(self, log: SyncLog) -> None:
        self.sync = log
        self._found: _Exchange | None = None

    def _exchange(self) -> _Exchange:
        """The bell of this log for the running loop."""
        found = self._found
        if found is None or found.loop is not asyncio.get_running_loop():
            found = self._found = _exchange(self.sync)
        return found

    @property
    def path(self) -> Any:
        """The directory, None in memory."""
        return self.sync.path

    @property
    def durability(self) -> str:
        """"sync", "relaxed" or "memory"."""
        return self.sync.durability

    @property
    def event_bytes_max(self) -> int:
        """The largest payload."""
        return int(self.sync.event_bytes_max)

    @property
    def closed(self) -> bool:
        """close() was called."""
        return self.sync.closed

    async def create(self, name: str, **kwargs: Any) -> Session:
        """As Log.create."""
        return self._wrap(await self._run(self.sync.create, name, **kwargs))

    async def session(self, name: str) -> Session:
        """As Log.session."""
        if name in self.sync._sessions:
            return self._wrap(self.sync.session(name))
        return self._wrap(await _in_thread(self.sync.session, name))

    def _wrap(self, session: SyncSession) -> Session:
        return Session(self, session)

    async def _run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Directly in memory mode, where nothing waits; in a thread otherwise."""
        if self.sync._journal is None:
            return function(*args, **kwargs)
        return await _in_thread(function, *args, **kwargs)

    def check_nowait(self, name: str, cursor: Any = None) -> Verdict | None:
        """The verdict from memory, or None where the disk would have to be read."""
        verdict: Verdict | None = self.sync.check_nowait(name, cursor)
        return verdict

    async def check(self, name: str, cursor: Any = None) -> Verdict:
        """As Log.check."""
        verdict = self.sync.check_nowait(name, cursor)
        return verdict if verdict is not None else await self._run(self.sync.check, name, cursor)

    async def resume(self, name: str, cursor: Any = None) -> Replay:
        """As Log.resume."""
        if self.sync.check_nowait(name, cursor) is not None:
            return Replay(self, self.sync.resume(name, cursor))
        return Replay(self, await self._run(self.sync.resume, name, cursor))

    async def sessions(self, prefix: str = "", after: str | None = None, limit: int | None = None) -> list[SessionInfo]:
        """As Log.sessions."""
        return await self._run(self.sync.sessions, prefix, after, limit)

    def watch(self, prefix: str = "", *, timeout_s: float | None = None) -> Watch:
        """As Log.watch, `async for`."""
        return Watch(self, prefix, timeout_s)

    async def reap(self, name: str | None = None, *, prefix: str | None = None, reason: str = "") -> int:
        """As Log.reap."""
        return await self._run(self.sync.reap, name, prefix=prefix, reason=reason)

    async def flush(self, timeout_s: float | None = None) -> None:
        """As Log.flush."""
        await self._run(self.sync.flush, timeout_s)

    async def stats(self) -> dict[str, Any]:
        """As Log.stats."""
        return await self._run(self.sync.stats)

    async def backup(self, to: str | os.PathLike[str]) -> None:
        """As Log.backup."""
        await _in_thread(self.sync.backup, to)

    async def verify(self) -> list[str]:
        """As Log.verify."""
        return await self._run(self.sync.verify)

    async def close(self, timeout_s: float | None = None) -> None:
        """As Log.close; readers on this and other loops are woken."""
        await _in_thread(self.sync.close, timeout_s)
        exchange = _exchanges.get(self.sync, {}).pop(asyncio.get_running_loop(), None)
        self._found = None
        if exchange is not None:
            exchange._rung()
            exchange.close()

    async def __aenter__(self) -> Log:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


# -- a session ------------------------------------------------------------------------------------------


class Ticket:
    """`append_nowait`'s promise: `id` is provisional until `await wait()` returns."""

    def __init__(self, log: Log, ticket: SyncTicket) -> None:
        self._log = log
        self._ticket = ticket

    @property
    def id(self) -> int:
        """The provisional id."""
        return int(self._ticket.id)

    @property
    def done(self) -> bool:
        """The outcome is known."""
        return bool(self._ticket.done)

    async def wait(self, timeout_s: float | None = None) -> int:
        """The id, once it is durable. Cancelling it takes nothing back."""
        if self._ticket._seq:
            async with asyncio.timeout(timeout_s):
                await self._log._exchange().flushed(self._ticket._seq)
        return self.id


class Session:
    """A session for asyncio. `head` and `floor` are the last known values."""

    def __init__(self, log: Log, session: SyncSession) -> None:
        self._log = log
        self.sync = session

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.sync.name)

    @property
    def epoch(self) -> int:
        """64-bit identity of its numbering."""
        return int(self.sync.epoch)

    @property
    def head(self) -> int:
        """The last id that readers may see."""
        return int(self.sync.head)

    @property
    def floor(self) -> int:
        """The lowest id that can still be replayed."""
        return int(self.sync.floor)

    @property
    def state(self) -> str:
        """"open", "ended" or "reaped"."""
        return str(self.sync.state)

    @property
    def meta(self) -> Any:
        """What create() was given."""
        return self.sync.meta

    @property
    def cursor(self) -> str:
        """The token of the head."""
        return str(self.sync.cursor)

    async def append(
        self,
        payload: Any,
        *,
        kind: str = "message",
        key: str | None = None,
        expect_head: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """As Session.append. Cancelled or timed out, the event may still become durable, once."""
        try:
            ticket = self.sync.append_nowait(payload, kind=kind, key=key, expect_head=expect_head)
        except Backlogged:
            ticket = await self._queue(payload, kind, key, expect_head)
        if not ticket._seq:
            return int(ticket.id)
        if timeout is not None:
            return await Ticket(self._log, ticket).wait(timeout)
        await self._log._exchange().flushed(ticket._seq)
        return int(ticket.id)

    async def _queue(self, payload: Any, kind: str, key: str | None, expect_head: int | None) -> SyncTicket:
        while True:
            await _in_thread(self._log.sync._wait_for_room)
            try:
                return self.sync.append_nowait(payload, kind=kind, key=key, expect_head=expect_head)
            except Backlogged:
                continue

    def append_nowait(
        self, payload: Any, *, kind: str = "message", key: str | None = None, expect_head: int | None = None
    ) -> Ticket:
        """As Session.append_nowait; Backlogged when too much is queued."""
        ticket = self.sync.append_nowait(payload, kind=kind, key=key, expect_head=expect_head)
        return Ticket(self._log, ticket)

    async def extend(
        self, events: Iterable[tuple[Any, str]], *, expect_head: int | None = None, timeout: float | None = None
    ) -> range:
        """As Session.extend."""
        items = list(events)
        return await self._log._run(self.sync.extend, items, expect_head=expect_head, timeout=timeout)

    async def end(
        self, payload: Any = None, *, kind: str = "message", reason: str = "", timeout: float | None = None
    ) -> int:
        """As Session.end."""
        return await Ticket(self._log, self.sync.end_nowait(payload, kind=kind, reason=reason)).wait(timeout)

    async def trim(self, floor: int, *, timeout: float | None = None) -> int:
        """As Session.trim."""
        return await self._log._run(self.sync.trim, floor, timeout=timeout)

    async def wait_durable(self, id: int, timeout: float | None = None) -> None:
        """As Session.wait_durable."""
        await self._log._run(self.sync.wait_durable, id, timeout)

    async def check(self, cursor: Any = None) -> Verdict:
        """As Session.check."""
        verdict: Verdict | None = self.sync.judge_in_memory(cursor)
        return verdict if verdict is not None else await self._log._run(self.sync.check, cursor)

    def check_nowait(self, cursor: Any = None) -> Verdict | None:
        """The verdict from memory, or None."""
        verdict: Verdict | None = self.sync.judge_in_memory(cursor)
        return verdict

    async def resume(self, cursor: Any = None) -> Replay:
        """As Session.resume."""
        if self.check_nowait(cursor) is not None:
            return Replay(self._log, self.sync.resume(cursor))
        return Replay(self._log, await self._log._run(self.sync.resume, cursor))

    async def replay(self, cursor: Any = None) -> Replay:
        """The same as resume."""
        return await self.resume(cursor)

    def follow(self, cursor: Any = None, *, timeout_s: float | None = None, until: int | None = None) -> Follow:
        """As Session.follow: checked when the `async with` (or the iteration) begins."""
        return Follow(self._log, self.sync, cursor, timeout_s, until)

    async def stats(self) -> dict[str, Any]:
        """As Session.stats."""
        return await self._log._run(self.sync.stats)

    def __repr__(self) -> str:
        return repr(self.sync)


# -- readers --------------------------------------------------------------------------------------------


class Replay:
    """A finite reading: `async for` events, or `frames()`."""

    def __init__(self, log: Log, replay: SyncReplay) -> None:
        self._log = log
        self.sync = replay

    @property
    def verdict(self) -> Verdict:
        """What was promised."""
        verdict: Verdict = self.sync.verdict
        return verdict

    @property
    def cursor(self) -> str:
        """The token of the last event delivered."""
        return str(self.sync.cursor)

    def __aiter__(self) -> Replay:
        return self

    async def __anext__(self) -> Event:
        if self.sync.in_memory():
            event = next(self.sync, None)
        else:
            event = await _in_thread(next, self.sync, None)
        if event is None:
            raise StopAsyncIteration
        return event

    async def frames(self, chunk_bytes_max: int = FRAMES_BYTES) -> AsyncIterator[bytes]:
        """The same events as SSE bytes, in few large chunks."""
        while True:
            if self.sync.in_memory():
                part = self.sync.take_frames(chunk_bytes_max)
            else:
                part = await _in_thread(self.sync.take_frames, chunk_bytes_max)
            if not part:
                return
            yield part

    def close(self) -> None:
        """Give the reservation back."""
        self.sync.close()

    async def __aenter__(self) -> Replay:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


class Follow:
    """Replay, then live. `async with` checks the cursor (NotResumable), `async for` delivers."""

    def __init__(
        self, log: Log, session: SyncSession, cursor: Any, timeout_s: float | None, until: int | None
    ) -> None:
        self._log = log
        self._session = session
        self._asked = (cursor, until)
        self._timeout_s = timeout_s
        self._follow: SyncFollow | None = None
        self._exchange: _Exchange | None = None
        self._waits: set[asyncio.Future[None]] = set()
        self._closed = False

    async def _begin(self) -> SyncFollow:
        if self._follow is None:
            cursor, until = self._asked
            self._exchange = self._log._exchange()
            if self._session.judge_in_memory(cursor) is not None:
                self._follow = self._session.follow(cursor, until=until)
            else:
                self._follow = await self._log._run(self._session.follow, cursor, until=until)
            if self._closed:
                self._follow.close()
        return self._follow

    @property
    def sync(self) -> SyncFollow:
        """The Follow underneath; it begins with `async with`, `async for` or `take`."""
        if self._follow is None:
            raise RuntimeError("the reader has not begun: use `async with session.follow(...)`")
        return self._follow

    @property
    def verdict(self) -> Verdict:
        """What was promised at the begin."""
        verdict: Verdict = self.sync.verdict
        return verdict

    @property
    def cursor(self) -> str:
        """The token of the last event delivered."""
        return str(self.sync.cursor)

    @property
    def head(self) -> int:
        """The session's head."""
        return int(self.sync.head)

    @property
    def head_token(self) -> str:
        """The token of the session's head."""
        return str(self.sync.head_token)

    @property
    def caught_up(self) -> bool:
        """Everything visible was delivered."""
        return bool(self.sync.caught_up)

    @property
    def ended(self) -> bool:
        """The session has ended and its last event was delivered."""
        return bool(self.sync.ended)

    def __aiter__(self) -> Follow:
        return self

    async def __anext__(self) -> Event:
        follow = await self._begin()
        while True:
            event = follow.next_nowait() if follow.in_memory() else await _in_thread(follow.next_nowait)
            if event is not None:
                return event
            if follow.finished:
                raise StopAsyncIteration
            if not await self._wait(follow, self._timeout_s):
                raise TimeoutError(f"no event for {self._timeout_s} s; the reader is still usable")

    async def take(self, bytes_max: int = FRAMES_BYTES, timeout_s: float | None = None) -> bytes:
        """SSE text of the next events; waits for them. b"" when the time passed, or with `ended`."""
        follow = await self._begin()
        while True:
            part = follow.take(bytes_max) if follow.in_memory() else await _in_thread(follow.take, bytes_max)
            if part or follow.finished or not await self._wait(follow, timeout_s):
                return bytes(part)

    async def frames(self, chunk_bytes_max: int = FRAMES_BYTES) -> AsyncIterator[bytes]:
        """The events as SSE bytes, until the session has ended."""
        while part := await self.take(chunk_bytes_max, self._timeout_s):
            yield part
        if not self.sync.finished:
            raise TimeoutError(f"no event for {self._timeout_s} s; the reader is still usable")

    async def _wait(self, follow: SyncFollow, timeout_s: float | None) -> bool:
        assert self._exchange is not None

        def is_over() -> bool:
            return not follow.caught_up or follow.finished or self._log.closed or follow.is_lost()

        return await self._exchange.moved(self._session, is_over, timeout_s, self._waits)

    def close(self) -> None:
        """End the iteration, from any thread. Idempotent."""
        self._closed = True
        if self._follow is not None:
            self._follow.close()
        if self._exchange is not None:
            self._exchange.wake(self._waits)

    async def __aenter__(self) -> Follow:
        await self._begin()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


class Watch:
    """Heads that moved under a prefix: `async for name, head in log.watch("mcp/")`."""

    def __init__(self, log: Log, prefix: str, timeout_s: float | None) -> None:
        self._log = log
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._bell = Bell(log.sync._hub, every=True)
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._ready: list[Moved] = []
        self._closed = False
        self._loop.add_reader(self._bell.fileno(), self._collect)
        self._bell.arm()

    def _collect(self) -> None:
        moved = [s for s in self._bell.drain() if s.name.startswith(self._prefix)]
        self._ready.extend(Moved(session.name, session.head) for session in moved)
        if moved or self._log.closed:
            self._rung.set()

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Moved:
        while not self._ready:
            if self._closed or self._log.closed:
                self.close()
                raise StopAsyncIteration
            self._rung.clear()
            async with asyncio.timeout(self._timeout_s):
                await self._rung.wait()
        return self._ready.pop(0)

    def close(self) -> None:
        """End the iteration. Idempotent."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._bell.fileno())
            self._bell.close()
            self._rung.set()

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()
