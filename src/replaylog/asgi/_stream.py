"""One open stream: `replay`, the backlog, `replay-caught-up`, what comes live, and why it ends.

Guarantees: events leave in order, each once, with nothing between the backlog and the live part;
every control frame's `id:` is the last event that was sent, so that a reader that reconnects from
whatever it saw last is judged by its true position; at most one chunk is held while a write blocks.
Runs on the event loop of its `App`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from replaylog import _sse
from replaylog._errors import LogClosed, Overrun
from replaylog.asgi._problems import hex_epoch, of_verdict
from replaylog.asgi._settings import Settings
from replaylog.asgi._streams import Streams

if TYPE_CHECKING:
    from replaylog import aio

__all__ = ["Stream"]


class Stream:
    """An ASGI response over an entered `Follow`, which it leaves at the end."""

    def __init__(
        self,
        log: aio.Log,
        name: str,
        follow: aio.Follow,
        settings: Settings,
        streams: Streams,
        headers: dict[str, str],
    ) -> None:
        self._log = log
        self._name = name
        self._follow = follow
        self._settings = settings
        self._streams = streams
        self._headers = headers | {"Content-Type": _sse.MEDIA_TYPE}
        self._stopped = False  # asked to end: the reader is gone, or the server goes
        self._gone = False  # the reader is gone: nothing can be sent
        self._stalled = False
        # Since when a write is blocked, by the loop's clock; None while none is.
        self.blocked_since_s: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._send = scope, send
        self._clock = asyncio.get_running_loop().time
        self._task = asyncio.current_task()
        leaving = asyncio.ensure_future(_until_gone(receive))
        leaving.add_done_callback(self._reader_left)
        self._streams.add(self)
        try:
            await self._start()
            await self._run()
        except asyncio.CancelledError:
            if not self._stalled:
                raise
            assert self._task is not None
            self._task.uncancel()  # it was our own stall(): the stream is over, the request is answered
        finally:
            leaving.cancel()
            self._streams.discard(self)
            await self._follow.__aexit__(None, None, None)

    # --- from outside ----------------------------------------------------------------------------

    def stop(self) -> None:
        """End soon, with a `retry:` if the reader still reads."""
        self._stopped = True
        self._follow.close()

    def stall(self) -> None:
        """End now: the reader does not read. What it misses it resumes from its cursor."""
        if self._stalled:
            return
        self._stalled = self._gone = True
        if self._streams.abort is not None:
            self._streams.abort(self._scope)
        assert self._task is not None
        self._task.cancel()

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
        """Send until the end; returns the last frame."""
        follow, verdict, settings = self._follow, self._follow.verdict, self._settings
        out = self._opening()
        behind = True  # `replay-caught-up` is still to come
        while not self._stopped:
            if behind and _id(follow.cursor) >= (verdict.head or 0):
                behind = False
                out += b"" if verdict.ended else self._caught_up()
            # What is small goes with the chunk behind it: a short replay is one write.
            if out and (not behind or len(out) >= settings.chunk_bytes // 2):
                await self._write(out)
                out = b""
                continue
            chunk = await follow.take(settings.chunk_bytes, timeout_s=settings.keepalive_s)
            if not chunk and not self._stopped:
                if follow.ended:
                    return out + await self._ending()
                chunk = _sse.comment(f"head={follow.head}")
            out += chunk
        return out + _sse.retry(settings.retry_ms)

    def _opening(self) -> bytes:
        verdict = self._follow.verdict
        data = {
            "verdict": verdict.reason.value,
            "from": verdict.cursor,
            "floor": verdict.floor,
            "head": verdict.head,
            "epoch": hex_epoch(verdict.epoch),
            "proof": verdict.proof,
        }
        assert verdict.from_token is not None
        return _sse.control(_sse.REPLAY, verdict.from_token, data)

    def _caught_up(self) -> bytes:
        # Under a writer that never pauses the head has moved on; this names where the reader stands.
        token = self._follow.cursor
        return _sse.control(_sse.CAUGHT_UP, token, {"head": _id(token)})

    async def _ending(self) -> bytes:
        token = self._follow.cursor
        verdict = await self._log.check(self._name, token)
        data = {"head": _id(token), "reason": verdict.last_reason}
        return _sse.control(_sse.END, token + _sse.END_MARK, data)

    # --- writing ---------------------------------------------------------------------------------

    async def _start(self) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
        self.blocked_since_s = self._clock()
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self.blocked_since_s = None

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        self.blocked_since_s = self._clock()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self.blocked_since_s = None


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _id(token: str) -> int:
    """The id inside a token of ours."""
    return int(token.split(".", 2)[1])
