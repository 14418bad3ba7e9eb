"""One stream: `replay`, the backlog, `replay-caught-up`, what comes live, and why it ends.

Guarantees: events leave in order, each once, with nothing between the backlog and the live part;
every control frame's `id:` is the last event that was sent, so that a reader that reconnects from
whatever it saw last is judged by its true position; at most one chunk is held while a write blocks.
Runs on one event loop.

A short replay that ends by itself is one write with its length, so that the connection can be used
again. A stream that follows is parked between events: no timer, no thread, no queue of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from replaylog import _http, _sse, aio
from replaylog._errors import LogClosed, Overrun, ReplayLogError
from replaylog.asgi._problems import of_verdict
from replaylog.asgi._streams import Streams, Writable

if TYPE_CHECKING:
    from replaylog._session import Follow, Session

__all__ = ["Stream"]

RawHeaders = list[tuple[bytes, bytes]]
_TYPE = (b"content-type", _sse.MEDIA_TYPE.encode())


class Stream:
    """An ASGI response over a `Follow` that has begun; it closes it at the end."""

    def __init__(
        self,
        log: aio.Log,
        session: Session,
        follow: Follow,
        streams: Streams,
        headers: RawHeaders,
        *,
        until_head: bool,
    ) -> None:
        self._log = log
        self._session = session
        self._follow = follow
        self._streams = streams
        self._settings = streams.settings
        self._headers = headers
        self._until_head = until_head
        self._started = False
        self._stopped = False  # asked to end: the reader is gone, or the server goes
        self._gone = False  # the reader is gone: nothing can be sent
        self._stalled = False
        self._silent = False  # it is time for a keepalive
        self._moved = False  # something was published since the last look
        self._parked: asyncio.Future[None] | None = None
        self._leaving: asyncio.Future[None] | None = None
        self._keepalive: asyncio.TimerHandle | None = None
        self._wrote_s = 0.0
        # Since when a write is blocked, by the loop's clock; None while none is.
        self.blocked_since_s: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._clock = asyncio.get_running_loop().time
        self._task = asyncio.current_task()
        self._streams.add(self)
        try:
            await self._run()
        except asyncio.CancelledError:
            if not self._stalled:
                raise
            assert self._task is not None
            self._task.uncancel()  # it was our own stall(): the stream is over, the request is answered
        finally:
            if self._leaving is not None:
                self._leaving.cancel()
                self._streams.feeds.leave(self._session, self)
            if self._keepalive is not None:
                self._keepalive.cancel()
            self._streams.discard(self)
            self._follow.close()

    # --- from outside, on the loop ---------------------------------------------------------------

    def stop(self) -> None:
        """End soon, with a `retry:` if the reader still reads."""
        self._stopped = True
        self._follow.close()
        self._wake()

    def stall(self) -> None:
        """End now: the reader does not read. What it misses it resumes from its cursor."""
        if self._stalled:
            return
        self._stalled = self._gone = True
        if self._streams.abort is not None:
            self._streams.abort(self._scope)
        assert self._task is not None
        self._task.cancel()

    def moved(self) -> None:
        """The session has published something, or is gone."""
        self._moved = True
        if self._parked is None or self._parked.done():
            return
        if self._streams.writable is None or not self._sent_at_once(self._streams.writable):
            self._wake()

    def _wake(self) -> None:
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    def _reader_left(self, leaving: asyncio.Future[None]) -> None:
        if not leaving.cancelled():
            leaving.exception()  # a receive that fails is a reader that left
            self._gone = True
            self.stop()

    # --- the frames ------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            last = await self._frames()
        except Overrun as overrun:
            problem = of_verdict(overrun.verdict).document
            last = _sse.control(_sse.OVERRUN, self._follow.cursor, problem)
        except LogClosed:  # closed without a drain: for the reader it is the same
            last = _sse.retry(self._settings.retry_ms)
        if not self._gone:
            await self._write(last, more=False)

    async def _frames(self) -> bytes:
        """Send until the end; returns the last frames."""
        out = await self._backlog()
        if not self._stopped:
            if (end := await self._end_of_backlog()) is not None:
                return out + end
            out = await self._live(out + _http.caught_up(self._follow.cursor))
        return out + _sse.retry(self._settings.retry_ms) if self._stopped else out

    async def _backlog(self) -> bytes:
        """Everything up to the head of the verdict: the last chunk of it, the others are sent.

        What is small goes with the chunk behind it: a short replay is one write.
        """
        follow, chunk_bytes = self._follow, self._settings.chunk_bytes
        head = follow.verdict.head or 0
        out = _http.opening(follow.verdict)
        if not follow.verdict.missing:
            return out
        while not self._stopped:
            part = await self._take()
            out = out + part
            if not part or _http.id_of(follow.cursor) >= head:
                break
            if len(out) >= chunk_bytes // 2:
                self._listen()
                await self._write(out)
                out = b""
        return out

    async def _end_of_backlog(self) -> bytes | None:
        """What ends a stream that does not follow; None when it does."""
        follow = self._follow
        if follow.verdict.ended:
            return await self._ending()
        if self._until_head:
            return _http.caught_up(follow.cursor)
        return None

    async def _live(self, out: bytes) -> bytes:
        follow = self._follow
        await self._write(out)
        self._listen()
        while not self._stopped:
            out = b""
            self._moved = False
            part = await self._take()
            if part:
                out += part
            elif follow.ended:
                return out + await self._ending()
            elif self._silent:
                out += _sse.comment(f"head={follow.head}")
            if out:
                await self._write(out)
            if not (part or self._moved or self._stopped):
                await self._park()
        return b""

    async def _take(self) -> bytes:
        follow, bytes_max = self._follow, self._settings.chunk_bytes
        if follow.in_memory():
            part: bytes = follow.take(bytes_max)
        else:
            part = await aio._in_thread(follow.take, bytes_max)
        return part

    async def _ending(self) -> bytes:
        token = self._follow.cursor
        verdict = await self._log.check(self._session.name, token)
        return _http.ending(token, verdict.last_reason)

    # --- waiting ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        """From here on it is not over in one write: watch for the reader's leave and for silence."""
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(_until_gone(self._receive))
            self._leaving.add_done_callback(self._reader_left)
            self._streams.feeds.join(self._log, self._session, self)

    async def _park(self) -> None:
        """Until something moved, it is time for a keepalive, or the stream was asked to end."""
        loop = asyncio.get_running_loop()
        if self._keepalive is None:
            self._keepalive = loop.call_at(self._wrote_s + self._settings.keepalive_s, self._look_for_silence)
        self._parked = loop.create_future()
        try:
            await self._parked
        finally:
            self._parked = None

    def _look_for_silence(self) -> None:
        """One timer per stream that is set again when it fires, not at every write."""
        loop, keepalive_s = asyncio.get_running_loop(), self._settings.keepalive_s
        due_s, now_s = self._wrote_s + keepalive_s, loop.time()
        if now_s >= due_s:
            self._silent = True
            due_s = now_s + keepalive_s
            self._wake()
        self._keepalive = loop.call_at(due_s, self._look_for_silence)

    # --- writing ---------------------------------------------------------------------------------

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        self.blocked_since_s = self._wrote_s = self._clock()
        if not self._started:
            self._started = True
            headers = [*self._headers, _TYPE]
            if not more:
                headers.append((b"content-length", b"%d" % len(body)))
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if body or not more:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self.blocked_since_s = None
        self._silent = False

    def _sent_at_once(self, writable: Writable) -> bool:
        """Write what came without waking the task, where nothing can block. False: the task has to look."""
        follow = self._follow
        if self._stopped or not follow.in_memory() or not writable(self._send):
            return False
        try:
            part = follow.take(self._settings.chunk_bytes)
        except ReplayLogError:  # the task meets it again, and says it
            return False
        if not part:
            return False
        self._wrote_s = self._clock()
        sending = self._send({"type": "http.response.body", "body": part, "more_body": True})
        try:
            sending.send(None)  # type: ignore[attr-defined]
        except StopIteration:
            self._moved = False
            return bool(follow.caught_up and not follow.ended)
        except Exception:  # noqa: BLE001 - a connection that fails must not stop the feed of all the others
            self._gone = True
            self.stop()
            return True
        # It was not writable after all, and half a send cannot be taken back: the reader resumes.
        sending.close()  # type: ignore[attr-defined]
        self.stall()
        return True


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
