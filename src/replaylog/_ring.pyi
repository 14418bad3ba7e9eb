"""Append-only chunks of ready SSE text, the events seen through them, and segments: chunks as they lie on disk."""

from typing import Any, NoReturn

from typing_extensions import Buffer

class Chunk:
    """A run of consecutive events of one session: SSE text and index."""

    @property
    def epoch(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def cum_before(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def tag_before(self) -> int: ...
    @property
    def last(self) -> int:
        """Id of the last event, `first - 1` when empty."""

    def event(self, id: int) -> Event:
        """The event `id` of this chunk; IndexError."""

    def verify_chain(self) -> int:
        """Re-compute the tag of every event; the first id that disagrees, or 0."""

class Event:
    """One event: a view into its chunk. Holding it keeps its chunk (about 64 KiB) in memory."""

    @property
    def id(self) -> int:
        """Position in the session, from 1."""

    @property
    def tag(self) -> int:
        """32-bit checksum chained over every event up to this one."""

    @property
    def epoch(self) -> int:
        """64-bit identity of the session's numbering."""

    @property
    def time_ns(self) -> int:
        """When it was appended, ns since 1970; never decreases within a log."""

    @property
    def kind(self) -> str:
        """The SSE event name, "message" by default."""

    @property
    def payload(self) -> Any:
        """The payload, equal to what was appended and of the same type."""

    @property
    def cursor(self) -> str:
        """The token of this event: what a reader that has seen it sends back."""

    @property
    def frame(self) -> bytes:
        """The SSE text of this event, blank line included."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> NoReturn: ...

def build_segments(chunks: list[Chunk], first: int, last: int, bytes_max: int = ...) -> list[tuple[int, int, bytes]]:
    """Events first..last of contiguous chunks as [(first id, last id, segment bytes)]."""

def read_segment(data: Buffer, where: str) -> Chunk:
    """The chunk in a segment's bytes, copied and with both CRCs checked; CorruptLog otherwise."""

def chunk_from_run(epoch: int, first: int, cum_before: int, tag_before: int, count: int, run: bytes) -> Chunk:
    """The chunk in a journal record's run: `count` index entries, then the text."""

def segment_span(data: Buffer, where: str) -> tuple[int, int, int, int]:
    """(first id, last id, cum_before, text bytes) of a segment, from its index alone."""

def segment_tag(data: Buffer, id: int, where: str) -> int:
    """tag(id) from a segment's index, without reading its text; first - 1 <= id <= last."""

def chunk_times(chunk: Chunk) -> list[int]:
    """The times of a chunk's events in ns, for tools."""
