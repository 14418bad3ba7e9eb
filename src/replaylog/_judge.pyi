"""judge(cursor, window) -> Verdict: the only place where a cursor is accepted or refused."""

from typing import Any, Literal

from replaylog._verdict import Reason

class Verdict:
    """The answer to "can I replay from this cursor?". Frozen; true when the answer is yes.

    Counts, not ids: `missing` = head - cursor, `lost` = floor - 1 - cursor (0 when nothing is lost);
    both None where the cursor belongs to another history or there is no window.
    """

    @property
    def name(self) -> str: ...
    @property
    def last_reason(self) -> str: ...
    @property
    def reason(self) -> Reason: ...
    @property
    def ok(self) -> bool:
        """True for RESUMABLE and AT_HEAD."""

    def __bool__(self) -> bool: ...
    @property
    def floor(self) -> int | None:
        """Lowest id that can still be replayed, head + 1 when none; None where there is no session."""

    @property
    def head(self) -> int | None:
        """Last id that readers may see; the last id ever for a reaped session; None where unknown."""

    @property
    def epoch(self) -> int | None:
        """64-bit identity of the numbering, None where there is no session."""

    @property
    def cursor(self) -> int | None:
        """The id that was judged; None when malformed, or when FLOOR or HEAD met no session."""

    @property
    def missing(self) -> int | None:
        """Events after the cursor, retained or not."""

    @property
    def lost(self) -> int | None:
        """Events after the cursor that are gone."""

    @property
    def ended(self) -> bool:
        """No more events will come."""

    @property
    def state(self) -> Literal["open", "ended", "reaped"] | None:
        """None where unknown."""

    @property
    def seen_end(self) -> bool:
        """The cursor carried the end mark: its reader has seen the end."""

    @property
    def proof(self) -> Literal["chain", "window", "none"]:
        """What was compared: epoch, id and tag; the id alone; nothing."""

    @property
    def session_durable(self) -> bool:
        """The session's identity is proven: same epoch, or the session is on disk."""

    @property
    def restart_from(self) -> str | None:
        """The token from which a refused reader can start again (the cursor floor - 1), or None."""

    @property
    def from_token(self) -> str | None:
        """The token of the position that a replay starts after; None when refused, or gone by now."""

    @property
    def head_token(self) -> str | None:
        """The token of the head at the time of the verdict; None when refused, or gone by now."""

    @property
    def explanation(self) -> str:
        """Fact, number, remedy."""

    def _key(self) -> tuple[Any, ...]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
