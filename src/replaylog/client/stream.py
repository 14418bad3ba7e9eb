"""`connect`: a verified event stream that survives its connections, with a sync and an async face.

Guarantees: the events come in order, each once, without a hole, over any number of reconnects, or a
`StreamResumptionError` says what cannot be proven; events that were proven before it are handed out
first. Iteration ends where the session has ended.

The socket is read by a thread of its own under asyncio too, because a task would stall with the
loop that it should outlive: an application that is busy for minutes would stop reading, the server
would stall, and silence would be taken for loss. One application thread or task takes from a
stream; `close` may be called from any.
"""

from __future__ import annotations

import asyncio
import random as _random
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit, urlunsplit

from replaylog._cursor import Origin, parse
from replaylog._verdict import ClientState
from replaylog.client.answers import TimeoutConflict
from replaylog.client.buffer import Buffer, End
from replaylog.client.outcome import ClientReason, explain
from replaylog.client.position import CursorLike, IdOf, StreamEvent
from replaylog.client.reader import Backoff, Clocks, Item, Moved, Reader
from replaylog.client.sse import EVENT_BYTES_MAX, SseParser
from replaylog.client.transport import Transport
from replaylog.client.verifier import (
    EMPTY_RECONNECTS_MAX,
    IDLE_TIMEOUT_S,
    PROVEN_RECONNECTS_MAX,
    UNREACHABLE_MAX_S,
    Verifier,
)

__all__ = ["BUFFER_BYTES_MAX", "BUFFER_EVENTS_MAX", "IdleTimeoutWarning", "Status", "Stream", "connect"]

BUFFER_EVENTS_MAX = 65_536
BUFFER_BYTES_MAX = 64 * 2**20
CONNECT_TIMEOUT_S = 10.0
CLOSE_MAX_S = 2.0  # how long close() waits for a thread that is still connecting


class IdleTimeoutWarning(RuntimeWarning):
    """The server's keepalive + stall is not below the idle timeout: see TimeoutConflict."""


class Status(NamedTuple):
    """Where a stream stands. `received` is proven and may still be buffered; `delivered` was taken."""

    state: ClientState
    reason: ClientReason
    explanation: str
    received: str | None
    delivered: str | None
    buffered_events: int
    buffered_bytes: int
    backpressure: bool
    connections: int


def connect(
    url: str,
    *,
    cursor: CursorLike = None,
    client: Any = None,
    headers: Mapping[str, str] | None = None,
    id_of: IdOf = parse,
    require_proof: bool = True,
    idle_timeout_s: float = IDLE_TIMEOUT_S,
    proof_max_s: float | None = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    unreachable_max_s: float = UNREACHABLE_MAX_S,
    empty_reconnects_max: int = EMPTY_RECONNECTS_MAX,
    proven_reconnects_max: int = PROVEN_RECONNECTS_MAX,
    backoff: Backoff | None = None,
    buffer_events_max: int = BUFFER_EVENTS_MAX,
    buffer_bytes_max: int = BUFFER_BYTES_MAX,
    event_bytes_max: int = EVENT_BYTES_MAX,
    random: Callable[[], float] = _random.random,
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> Stream:
    """A stream of the events after `cursor`: use it with `with` and `for`, or `async with` and
    `async for`. Nothing is sent before that.

    `cursor`: an id, a token, START, FLOOR, HEAD, or None (whatever comes first). `client`: a sync
    httpx.Client (or one of httpx2) for credentials, proxies, TLS; it stays open. `id_of`,
    `require_proof` and the bounds are the Verifier's.
    """
    verifier = Verifier(
        cursor,
        id_of=id_of,
        require_proof=require_proof,
        idle_timeout_s=idle_timeout_s,
        proof_max_s=proof_max_s,
        unreachable_max_s=unreachable_max_s,
        empty_reconnects_max=empty_reconnects_max,
        proven_reconnects_max=proven_reconnects_max,
    )
    transport = Transport(
        _starting_at(url, cursor),
        client=client,
        headers=headers,
        connect_timeout_s=connect_timeout_s,
        idle_timeout_s=idle_timeout_s,
    )
    buffer: Buffer[Item] = Buffer(events_max=buffer_events_max, bytes_max=buffer_bytes_max)
    reader = Reader(
        transport,
        verifier,
        buffer,
        new_parser=lambda: SseParser(line_bytes_max=event_bytes_max, event_bytes_max=event_bytes_max),
        backoff=backoff or Backoff(),
        clocks=Clocks(monotonic, wall, random),
    )
    return Stream(reader, buffer)


def _starting_at(url: str, cursor: CursorLike) -> str:
    """FLOOR and HEAD are the server's to resolve; the first frame names what it chose."""
    if not isinstance(cursor, Origin):
        return url
    parts = urlsplit(url)
    query = "&".join(filter(None, (parts.query, urlencode({"from": cursor.value}))))
    return urlunsplit(parts._replace(query=query))


class Stream:
    """Made by `connect`. Both faces share one thread and one buffer."""

    def __init__(self, reader: Reader, buffer: Buffer[Item]) -> None:
        self._reader = reader
        self._buffer = buffer
        self._cursor = reader.verifier.last_event_id
        self._thread: threading.Thread | None = None
        # A stream that is dropped without close() must not leave its thread and its socket behind.
        self._finalizer = weakref.finalize(self, reader.stop)

    @property
    def cursor(self) -> str | None:
        """The position to resume from later: after the last event that was taken from here."""
        return self._cursor

    @property
    def status(self) -> Status:
        """A snapshot, for logs and dashboards. A full buffer is told as backpressure, not as loss."""
        verifier, buffer = self._reader.verifier, self._buffer
        reason, explanation = verifier.reason, verifier.explanation
        backpressure = buffer.is_full
        buffered_events, buffered_bytes = len(buffer), buffer.size_bytes
        if backpressure:
            reason = ClientReason.BACKPRESSURE
            numbers = {"buffered_events": buffered_events, "buffered_bytes": buffered_bytes}
            explanation = explain(reason, numbers)
        return Status(
            state=verifier.state,
            reason=reason,
            explanation=explanation,
            received=verifier.last_event_id,
            delivered=self._cursor,
            buffered_events=buffered_events,
            buffered_bytes=buffered_bytes,
            backpressure=backpressure,
            connections=self._reader.connections,
        )

    # --- sync ------------------------------------------------------------------------------------

    def receive(self, timeout_s: float | None = None) -> StreamEvent:
        """The next event. TimeoutError leaves the stream usable; EOFError: the session has ended."""
        event = self._receive(timeout_s)
        if event is None:
            raise EOFError("the session has ended: there are no more events")
        return event

    def _receive(self, timeout_s: float | None) -> StreamEvent | None:
        self._start()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            item = self._buffer.take(left_s)
            if isinstance(item, End):
                self._end()
                return None
            if (event := self._note(item)) is not None:
                return event

    def close(self) -> None:
        """Ends the iteration, whoever is in it, and the thread. Idempotent."""
        self._finalizer()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_MAX_S)

    def __enter__(self) -> Stream:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[StreamEvent]:
        return self

    def __next__(self) -> StreamEvent:
        event = self._receive(None)
        if event is None:
            raise StopIteration
        return event

    # --- async -----------------------------------------------------------------------------------

    async def areceive(self) -> StreamEvent:
        """The next event, awaited; cancelling loses nothing. EOFError: the session has ended."""
        event = await self._areceive()
        if event is None:
            raise EOFError("the session has ended: there are no more events")
        return event

    async def _areceive(self) -> StreamEvent | None:
        self._start()
        while True:
            item = await self._buffer.take_async()
            if isinstance(item, End):
                self._end()
                return None
            if (event := self._note(item)) is not None:
                return event

    async def aclose(self) -> None:
        """`close`, without holding up the loop."""
        self._finalizer()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_MAX_S)

    async def __aenter__(self) -> Stream:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self

    async def __anext__(self) -> StreamEvent:
        event = await self._areceive()
        if event is None:
            raise StopAsyncIteration
        return event

    # --- both ------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None and self._finalizer.alive:
            self._thread = threading.Thread(target=self._reader.run, name="replaylog-reader", daemon=True)
            self._thread.start()

    def _note(self, item: Item) -> StreamEvent | None:
        """The event to hand out, or None for what only moves the cursor or is to be reported."""
        if isinstance(item, TimeoutConflict):
            warnings.warn(IdleTimeoutWarning(str(item)), stacklevel=4)
            return None
        self._cursor = item.cursor
        return None if isinstance(item, Moved) else item

    def _end(self) -> None:
        """Everything was taken: raise what ended the stream, if it was not the session's end."""
        if not self._finalizer.alive:
            return  # closed here
        if self._reader.failure is not None:
            raise self._reader.failure
        if (error := self._reader.verifier.error) is not None:
            raise error
