"""`record`: a producer that nobody's connection holds: what it yields is appended, its end ends the session.

Guarantees: the producer runs to its end whoever reads, comes back or leaves; each item is in the log,
durable, before the next is asked for; the session ends in every case, with the result, the error, or
the cancellation, so no reader waits for a producer that is gone. After a kill nobody is left to write
that: `end_orphans` says it at the next start.

Called on an event loop, which the producer runs on.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from replaylog import aio
from replaylog._errors import ReplayLogError, SessionEnded
from replaylog._session import Session as SyncSession
from replaylog.asgi._event_stream import log_and_name

if TYPE_CHECKING:
    from replaylog import Log, Session

__all__ = ["Recording", "Result", "end_orphans", "record"]

Producer = AsyncIterable[Any] | Iterable[Any] | Awaitable[Any]

RESULT_KIND = "result"
FAILED_KIND = "failed"
COMPLETE, FAILED, CANCELLED, ORPHANED = "complete", "failed", "cancelled", "producer-lost"

_log = logging.getLogger("replaylog.record")
# The loop keeps only weak references to tasks: a recording that nobody holds must not vanish.
_running: set[asyncio.Task[int]] = set()


class Result(NamedTuple):
    """What an async generator yields to end the session with it: it has no `return` of its own."""

    payload: Any
    kind: str = RESULT_KIND


class Recording:
    """A producer that runs. Await it for the session's last id, or for the error that ended it."""

    def __init__(self, session: aio.Session, task: asyncio.Task[int]) -> None:
        self.session = session
        self.task = task

    def cancel(self) -> None:
        """Stop the producer: the session ends with the reason `cancelled`."""
        self.task.cancel()

    @property
    def done(self) -> bool:
        """The session has ended, one way or another."""
        return self.task.done()

    def __await__(self) -> Generator[Any, None, int]:
        # Shielded: a request that waits for a tool and is dropped does not stop the tool.
        return asyncio.shield(self.task).__await__()


def record(
    session: Session | aio.Session,
    producer: Producer,
    *,
    kind: str = "message",
    describe: Callable[[Exception], Any] = lambda error: {"error": type(error).__name__},
) -> Recording:
    """Run `producer` and append what it yields, detached from whoever called.

    `producer`: an async iterator; an iterator, whose steps run in a thread; or an awaitable, whose value is
    the result. It yields payloads (of `kind`), or `(payload, kind)`, or at last a `Result`; what a
    generator returns is a result too. The session ends with the result as an event of kind `result`, or, on
    an error, with `describe(error)` as an event of kind `failed` (by default the error's type and nothing
    of its text: that may hold what readers should not see).
    """
    log, name = log_and_name(session, None)
    mine = aio.Session(log, session) if isinstance(session, SyncSession) else session
    work = _Work(mine, kind, describe)
    task = asyncio.get_running_loop().create_task(work.run(producer), name=f"replaylog-record-{name}")
    _running.add(task)
    task.add_done_callback(_forget)
    return Recording(mine, task)


def _forget(task: asyncio.Task[int]) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # it is in the session and in the log of the process


class _Work:
    def __init__(self, session: aio.Session, kind: str, describe: Callable[[Exception], Any]) -> None:
        self._session = session
        self._kind = kind
        self._describe = describe

    async def run(self, producer: Producer) -> int:
        session = self._session
        try:
            result = await self._produce(producer)
        except asyncio.CancelledError:
            self._end_now(CANCELLED)
            raise
        except ReplayLogError as error:  # the session ended or was reaped, the disk is full: not the producer
            _log.warning("session %s: recording stopped: %s", session.name, error)
            if not isinstance(error, SessionEnded):
                self._end_now(FAILED)
            raise
        except Exception as error:
            _log.exception("session %s: the producer failed", session.name)
            await session.end(self._describe(error), kind=FAILED_KIND, reason=FAILED)
            raise
        if result is None:
            return await session.end(reason=COMPLETE)
        return await session.end(result.payload, kind=result.kind, reason=COMPLETE)

    async def _produce(self, producer: Producer) -> Result | None:
        if inspect.isawaitable(producer):
            return Result(await producer)
        items = producer if isinstance(producer, AsyncIterable) else _stepwise(producer)
        async with _closing(items):
            async for item in items:
                if isinstance(item, Result):
                    return item
                payload, kind = item if isinstance(item, tuple) else (item, self._kind)
                await self._session.append(payload, kind=kind)
        return None

    def _end_now(self, reason: str) -> None:
        """Queue the end without waiting: the loop may be closing."""
        with contextlib.suppress(ReplayLogError):  # it has ended, or cannot: readers are told either way
            self._session.sync.end_nowait(reason=reason)


async def _stepwise(items: Iterable[Any]) -> AsyncIterator[Any]:
    """An iterator whose steps may block; a generator's return value comes as a `Result`."""
    iterator, returned = iter(items), object()

    def step() -> Any:
        try:
            return next(iterator)
        except StopIteration as stop:
            return (returned, stop.value)

    while True:
        item = await asyncio.to_thread(step)
        if isinstance(item, tuple) and item and item[0] is returned:
            if item[1] is not None:
                yield Result(item[1])
            return
        yield item


@contextlib.asynccontextmanager
async def _closing(items: AsyncIterable[Any]) -> AsyncIterator[None]:
    """A generator that is left half way runs its `finally` now, not when it is collected."""
    try:
        yield
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


async def end_orphans(log: Log | aio.Log, prefix: str = "", *, reason: str = ORPHANED) -> list[str]:
    """End the open sessions under `prefix`: at the start of a process their producers are gone with the
    last one. Their events stay; readers are told the end instead of waiting for ever."""
    mine: aio.Log = log if isinstance(log, aio.Log) else aio.Log(log)
    names = [info.name for info in await mine.sessions(prefix) if info.state == "open"]
    for name in names:
        await (await mine.session(name)).end(reason=reason)
    return names
