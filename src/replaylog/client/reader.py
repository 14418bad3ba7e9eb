"""The thread that reads: connect, verify, hand over, drop, wait, connect again.

Guarantees:
  1. Every request carries the last proven cursor, through any number of drops.
  2. Only what the verifier hands out reaches the buffer.
  3. The wait for room in the buffer is outside the read: an application that is slow, or does not
     run at all, never makes the idle timer run.
  4. It ends: with the session, with a verdict, with the application, or at a bound.

The verifier belongs to this thread; `stop` may be called from any.
"""

from __future__ import annotations

import dataclasses
import email.utils
import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from replaylog._verdict import ClientState
from replaylog.client.answers import TimeoutConflict
from replaylog.client.buffer import Buffer
from replaylog.client.outcome import ClientReason
from replaylog.client.position import StreamEvent
from replaylog.client.sse import FrameTooLarge, SseParser
from replaylog.client.transport import Transport
from replaylog.client.verifier import Verifier

__all__ = ["Backoff", "Clocks", "Item", "Moved", "Reader", "retry_after_s"]

PROBLEM_BYTES_MAX = 65_536
WAIT_LEAST_S = 0.001  # so that a bound that is almost reached does not spin

_log = logging.getLogger("replaylog.client")


class Moved(NamedTuple):
    """The proven cursor moved without an event, e.g. an integer became a token."""

    cursor: str | None


Item = StreamEvent | Moved | TimeoutConflict


@dataclasses.dataclass(frozen=True)
class Backoff:
    """How long to wait before the next attempt: doubling up to `max_s`, and jittered downwards by up
    to half, because readers that were dropped together must not come back together."""

    initial_s: float = 0.5
    max_s: float = 30.0

    def delay_s(self, attempt: int, *, least_s: float, jitter: float) -> float:
        """`attempt` counts from 0 after progress; `least_s` is what the server asked for."""
        assert attempt >= 0
        grown_s = min(self.max_s, self.initial_s * 2.0 ** min(attempt, 32))
        return max(least_s, grown_s * (1 - jitter / 2))


@dataclasses.dataclass(frozen=True)
class Clocks:
    """Where time and chance come from."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]
    random: Callable[[], float]


def retry_after_s(value: str | None, wall_s: float) -> float:
    """Seconds from a Retry-After header, a number or a date; 0 where it says nothing."""
    if not value:
        return 0.0
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - wall_s)
    except (ValueError, OverflowError):  # not a date: as good as no header
        return 0.0


class Reader:
    def __init__(
        self,
        transport: Transport,
        verifier: Verifier,
        buffer: Buffer[Item],
        *,
        new_parser: Callable[[], SseParser],
        backoff: Backoff,
        clocks: Clocks,
    ) -> None:
        self.verifier = verifier
        self.connections = 0
        self.failure: Exception | None = None  # a bug or a request that cannot be sent
        self._transport = transport
        self._buffer = buffer
        self._new_parser = new_parser
        self._backoff = backoff
        self._clocks = clocks
        self._stopped = threading.Event()
        self._retry_s = 0.0  # the stream's `retry:`, kept over reconnects as EventSource does
        self._retry_after_s = 0.0
        self._attempt = 0
        self._told: TimeoutConflict | None = None

    def run(self) -> None:
        try:
            while self._goes_on():
                self._connect()
                if self._goes_on():
                    self._wait()
        except Exception as failure:  # noqa: BLE001 - it is raised in the application's thread
            self.failure = failure
        finally:
            self._buffer.finish()
            self._transport.close()

    def stop(self) -> None:
        self._stopped.set()
        self._buffer.abandon()
        self._transport.interrupt()

    def _goes_on(self) -> bool:
        return self.verifier.state is ClientState.DELAYED and not self._stopped.is_set()

    def _connect(self) -> None:
        """One attempt, from the request to the end of its stream."""
        verifier, began_s = self.verifier, self._clocks.monotonic()
        events_before = verifier.events
        try:
            with self._transport.get(verifier.last_event_id) as response:
                self._answer(response)
                if verifier.is_open:
                    self._read(response)
                    verifier.on_close(now_s=self._clocks.monotonic())
        except self._transport.our_fault:
            raise
        except self._transport.silence:
            self._broken(verifier.on_idle, "silent for the idle timeout")
        except self._transport.failures as broken:
            self._broken(verifier.on_close, f"{type(broken).__name__}: {broken}")
        lived_s = self._clocks.monotonic() - began_s
        progress = verifier.events > events_before or lived_s > self._backoff.max_s
        self._attempt = 0 if progress else self._attempt + 1

    def _broken(self, on_open: Callable[..., Any], why: str) -> None:
        if self._stopped.is_set():
            return
        _log.info("connection broken (%s), cursor %s", why, self.verifier.last_event_id)
        now_s = self._clocks.monotonic()
        if self.verifier.is_open:
            on_open(now_s=now_s)
        elif self.verifier.state is ClientState.DELAYED:
            self.verifier.on_unreachable(now_s=now_s)

    def _answer(self, response: Any) -> None:
        self.connections += 1
        problem = self._problem(response) if 400 <= response.status_code < 500 else None
        self._retry_after_s = retry_after_s(response.headers.get("retry-after"), self._clocks.wall())
        verifier = self.verifier
        verifier.on_response(
            response.status_code, response.headers, now_s=self._clocks.monotonic(), problem=problem
        )
        _log.debug("status %d: %s", response.status_code, verifier.explanation)
        conflict = verifier.timeout_conflict
        if conflict is not None and conflict != self._told:
            self._told = conflict
            self._buffer.put(conflict, 0)

    def _problem(self, response: Any) -> bytes:
        """The start of a refusal's body: enough for a problem, whatever the server goes on to send."""
        body = b""
        try:
            for chunk in response.iter_raw():
                body += chunk
                if len(body) >= PROBLEM_BYTES_MAX:
                    break
        except self._transport.failures:  # the status came; the body only adds numbers to it
            pass
        return body[:PROBLEM_BYTES_MAX]

    def _read(self, response: Any) -> None:
        verifier, parser = self.verifier, self._new_parser()
        try:
            for chunk in response.iter_raw():
                verifier.on_bytes(now_s=self._clocks.monotonic())
                for frame in parser.feed(chunk):
                    before = verifier.last_event_id
                    event = verifier.on_event(frame, now_s=self._clocks.monotonic())
                    if not self._hand_over(event, before):
                        return
                self._keep_retry(parser)
                if not verifier.is_open:
                    return
        except FrameTooLarge as large:  # the same event would come again after every reconnect
            verifier.refuse(ClientReason.TOO_LARGE, large.facts)

    def _hand_over(self, event: StreamEvent | None, before: str | None) -> bool:
        """False: the application has left."""
        if event is not None:
            return self._buffer.put(event, len(event.payload))
        if self.verifier.last_event_id != before:
            return self._buffer.put(Moved(self.verifier.last_event_id), 0)
        return True

    def _keep_retry(self, parser: SseParser) -> None:
        if parser.retry_ms is not None:
            self._retry_s = parser.retry_ms / 1000

    def _wait(self) -> None:
        """The server's wish is a least, its silence a doubling; neither outlasts the bound."""
        least_s = max(self._retry_s, self._retry_after_s)
        attempt = max(self._attempt - 1, 0)
        delay_s = self._backoff.delay_s(attempt, least_s=least_s, jitter=self._clocks.random())
        self._retry_after_s = 0.0
        if self.verifier.unreachable_since_s is not None:
            delay_s = min(delay_s, self.verifier.unreachable_left_s(self._clocks.monotonic()))
        self._stopped.wait(max(delay_s, WAIT_LEAST_S))
