"""One session in memory: append, settle, judge, read. Its readers and tickets; what the sessions of a log share."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NoReturn, Self, TypeAlias

from replaylog._cursor import Origin
from replaylog._format import Row
from replaylog._journal import Hub, Journal
from replaylog._judge import Verdict
from replaylog._ring import Chunk, Event

_Cursor: TypeAlias = int | str | bytes | Origin | None

class Pin:
    """A promise to one reader: what is after its position stays until it expires or the reader goes."""

class LogCore:
    """Shared state of a log: clock, memory, journal, store. `Log` is its public face."""

    @property
    def _sessions(self) -> dict[str, Session]: ...
    @property
    def _journal(self) -> Journal | Any: ...  # None in memory mode, where few ask for it
    @property
    def _hub(self) -> Hub: ...
    @property
    def _store(self) -> Any: ...
    @property
    def _on_disk(self) -> bool: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def event_bytes_max(self) -> int: ...
    @property
    def _grace_ns(self) -> int: ...
    def _configure(
        self,
        *,
        store: Any,
        default_limits: tuple[int, int, int],
        journal: Journal | None,
        clock: Callable[[], int] | None,
        on_disk: bool,
        memory_bytes: int,
        event_bytes_max: int,
        grace_ns: int,
        dirty_soft: int,
        wall_ns: int,
        time_high: int,
    ) -> None: ...
    def _now(self) -> int: ...
    def _guard(self) -> None: ...
    def _refuse_append(self) -> NoReturn: ...
    def _roll_back(self) -> None: ...
    def _wait_seq(self, seq: int, deadline_ns: int) -> bool: ...
    def _peek_seq(self, seq: int) -> Literal[True] | None: ...
    def _state(self, value: int | None = None) -> int: ...
    def _reap_batch(self, sessions: list[Session], reason: str, time_ns: int, body: bytes) -> tuple[int, int]: ...
    def _set_quota_full(self, full: bool) -> None: ...
    def _take_dirty(self) -> list[Session]: ...
    def _set_dirty_soft(self, soft: int) -> None: ...
    def _raise_time_high(self, time_high: int) -> None: ...
    def _set_memory_soft(self, soft: int) -> None: ...
    def _set_attached(self) -> None: ...
    def _give_back_dirty(self, sessions: list[Session], dirty_bytes: int) -> None: ...
    def _by_use(self) -> list[tuple[int, str]]: ...
    def _evict_one(self, name: str, whole: bool) -> None: ...
    def _dirty_count(self) -> int: ...
    def _dirty_size(self) -> int: ...
    def _advance_tick(self) -> int: ...
    def _numbers(self) -> dict[str, int]: ...
    def _wake_readers(self) -> None: ...
    def check(self, name: str, cursor: _Cursor = None) -> Verdict:
        """Can a reader of session `name` replay from `cursor`? Never raises for what a client can send.

        `cursor`: an int, a token (str or bytes), START, FLOOR, HEAD, or None for START. TypeError for others.
        """

    def _check_unknown(self, name: str, cursor: _Cursor) -> Verdict: ...
    def check_nowait(self, name: str, cursor: _Cursor = None) -> Verdict | None:
        """The verdict from memory alone, or None where the store would have to be asked."""

class Ticket:
    """A promise of `append_nowait`: `id` is provisional until `wait` returns; never send it onward before."""

    @property
    def id(self) -> int: ...
    @property
    def _seq(self) -> int: ...
    @property
    def done(self) -> bool:
        """The outcome is known."""

    def wait(self, timeout: float | None = None) -> int:
        """The id, once it is durable. TimeoutError leaves the ticket usable."""

class Session:
    """One append-only log of events. Made by Log.create() and Log.session(); thread-safe."""

    _expires_ns: int

    def __new__(cls, log: LogCore, row: Row) -> Self: ...
    @property
    def _log(self) -> LogCore: ...
    @property
    def name(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def _number(self) -> int: ...
    @property
    def head(self) -> int:
        """The last id that readers may see, 0 when empty; in `sync` mode never past what is on disk."""

    @property
    def floor(self) -> int:
        """The lowest id that can still be replayed, head + 1 when none. It only rises."""

    @property
    def state(self) -> Literal["open", "ended", "reaped"]: ...
    @property
    def meta(self) -> Any:
        """What create() was given, a JSON value."""

    @property
    def cursor(self) -> str:
        """The token of the head."""

    def append(
        self,
        payload: Any,
        *,
        kind: str = "message",
        key: str | None = None,
        expect_head: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Append one event; its id, once it is durable.

        payload: bytes, str, or a JSON value; kind: the SSE event name. `key`: an append with a key that the
        window still holds returns that event's id. `expect_head`: HeadMoved unless the last assigned id is this.
        `timeout`: seconds; TimeoutError when the outcome is still open then.
        Raises SessionEnded, SessionReaped, EventTooLarge, Backlogged, LogFull, LogPoisoned, OutcomeUnknown,
        LogClosed, KeyReused; TypeError or ValueError for a payload or kind that cannot be sent.
        """

    def append_nowait(
        self, payload: Any, *, kind: str = "message", key: str | None = None, expect_head: int | None = None
    ) -> Ticket:
        """Queue one event; a Ticket whose `wait` returns the id. Backlogged when too much is queued."""

    def extend(
        self, events: Iterable[tuple[Any, str]], *, expect_head: int | None = None, timeout: float | None = None
    ) -> range:
        """Append (payload, kind) pairs in one commit, all or nothing; the range of their ids."""

    def end(
        self, payload: Any = None, *, kind: str = "message", reason: str = "", timeout: float | None = None
    ) -> int:
        """End the session: no more events will come. With a payload, it is the last event, in the same commit.

        Returns the id of the last event. To end with a JSON null, append it first.
        """

    def end_nowait(self, payload: Any = None, *, kind: str = "message", reason: str = "") -> Ticket:
        """Queue the end; a Ticket for it."""

    def trim(self, floor: int, *, timeout: float | None = None) -> int:
        """Raise the floor to `floor` (at most head + 1); returns the floor. A lower one changes nothing."""

    def judge_in_memory(self, cursor: _Cursor) -> Verdict | None:
        """The verdict, or None where a tag would have to be read from the store."""

    def check(self, cursor: _Cursor = None) -> Verdict:
        """Can a reader replay from `cursor`? See Log.check."""

    def resume(self, cursor: _Cursor = None) -> Replay:
        """Verdict and reservation in one step: a Replay up to the head of now, or NotResumable."""

    def replay(self, cursor: _Cursor = None) -> Replay:
        """The same as resume."""

    def follow(self, cursor: _Cursor = None, *, timeout_s: float | None = None, until: int | None = None) -> Follow:
        """Replay, then live, without a gap: a Follow. NotResumable here, not at the first event.

        `timeout_s`: TimeoutError when no event came for so long (the Follow stays usable); `until`: the last id
        to deliver.
        """

    def wait_durable(self, id: int, timeout: float | None = None) -> None:
        """Wait until `id` is visible (and in `sync` mode durable). TimeoutError."""

    def stats(self) -> dict[str, Any]:
        """Numbers of this session: floor, head, events, bytes, rate over the window, memory."""

    def _publish_born(self) -> None: ...
    def _replaces(self, former: Session | None) -> None: ...
    def _stands_for(self, session: Session) -> bool: ...
    def _last_seq(self) -> int: ...
    def _refused(self) -> bool: ...
    def _born(self) -> bool: ...
    def _reaped(self) -> bool: ...
    def _control(self, type: int, first: int, body: bytes, trim: int, state: int, deadline: int) -> int: ...
    def _forget_events(self) -> None: ...
    def _limits(self, events: int, bytes: int, age_ns: int) -> None: ...
    def _set_owner_slot(self, fence: int) -> None: ...
    def _recover_events(self, floor: int, run: Chunk, key: bytes) -> None: ...
    def _recover_floor(self, floor: int) -> None: ...
    def _recover_state(self, state: int, reason: str, time_ns: int) -> None: ...
    def _next_run(self) -> tuple[int, int]: ...
    def _export(self) -> tuple[int, tuple[Any, ...], list[tuple[int, int, bytes]], int, list[tuple[bytes, int]]]: ...
    def _exported(self, head: int, segment_first: int | None, keys: list[tuple[bytes, int]]) -> None: ...
    def _export_failed(self, keys: list[tuple[bytes, int]]) -> None: ...
    def _stored(self) -> bool: ...
    def _listen(self, Bell_bit: int, on: bool) -> None: ...
    def _wake(self) -> None: ...
    def _assigned(self) -> int: ...
    def _age_out(self, cutoff: int) -> None: ...
    def _in_flight(self) -> bool: ...
    def _tag_or_none(self, id: int) -> int | None: ...
    def _persisted(self) -> int: ...
    def _stored_tag(self) -> int: ...
    def _changed_ns(self) -> int: ...
    def _raise_reaped(self) -> NoReturn: ...
    def _touch(self) -> None: ...

class Replay:
    """A finite reading: from a cursor to the head at the time of the verdict. Iterator and context manager."""

    @property
    def verdict(self) -> Verdict: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Event: ...
    def frames(self, chunk_bytes_max: int = ...) -> Iterator[bytes]:
        """The same events as SSE bytes, in few large chunks of about `chunk_bytes_max`."""

    def take_frames(self, bytes_max: int = ...) -> bytes:
        """SSE text of about `bytes_max`, b"" when everything was delivered."""

    def in_memory(self) -> bool:
        """What comes next needs nothing from the store."""

    @property
    def cursor(self) -> str:
        """The token of the last event delivered: where to resume."""

    @property
    def position(self) -> int:
        """The id of the last event delivered."""

    def close(self) -> None:
        """Give the reservation back; the iteration ends. Idempotent, from any thread."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...

class Follow(Replay):
    """A replay that goes on with what comes. Ends when the session has ended; Overrun when this reader fell off.

    TimeoutError leaves it usable; `close` from another thread ends the iteration.
    """

    @property
    def head(self) -> int:
        """The session's head."""

    @property
    def head_token(self) -> str:
        """The token of the session's head."""

    @property
    def caught_up(self) -> bool:
        """Everything that is visible was delivered."""

    @property
    def ended(self) -> bool:
        """The session has ended and its last event was delivered."""

    @property
    def finished(self) -> bool:
        """Nothing more will be delivered."""

    def take(self, bytes_max: int = ...) -> bytes:
        """Without waiting: SSE text of the next events, b"" when caught up. Overrun; LogClosed."""

    def next_nowait(self) -> Event | None:
        """The next event, None when caught up. Overrun; LogClosed."""

    def is_lost(self) -> bool:
        """The session was reaped."""
