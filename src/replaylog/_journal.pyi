"""The journal of one process, the bells that tell of publications, and how blocks are read back."""

from typing import Any, Self

from typing_extensions import Buffer

class Bell:
    """A queue of sessions that moved and an eventfd that says "look"; taken out of service by `close`."""

    def __new__(cls, hub: Hub, *, every: bool = False) -> Self: ...
    def close(self) -> None:
        """Out of service; idempotent."""

    @property
    def bit(self) -> int:
        """Its number among the bells of the log."""

    def fileno(self) -> int:
        """The eventfd, for an event loop."""

    def arm(self) -> None:
        """Ask for the next ring: one that nobody asked for costs no system call."""

    def drain(self) -> list[Any]:
        """The sessions that moved since the last drain, each once. Asks for the next ring."""

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until something is queued (True) or the time is over (False). Signals are served."""

class Hub:
    """All bells of a log, and the publication of heads through them."""

    def ring_all(self) -> None:
        """Wake every loop and watcher, whether or not something moved: the log closed or failed."""

class Journal:
    """Group commit into recycled extents."""

    def __new__(
        cls,
        hub: Hub,
        *,
        directory: bytes,
        slot: int = 0,
        relaxed: bool = False,
        extent_bytes: int = ...,
        extents_max: int = 16,
        backlog_bytes: int = ...,
        mode: int = 0o600,
    ) -> Self: ...
    @property
    def hub(self) -> Hub: ...
    @property
    def relaxed(self) -> bool: ...
    @property
    def broken(self) -> bool: ...
    @property
    def rollback(self) -> bool: ...
    @property
    def error(self) -> int: ...
    @property
    def inject(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def block(self) -> int: ...
    @property
    def block_settled(self) -> int: ...
    @property
    def flushed(self) -> int: ...
    @property
    def extent_bytes(self) -> int: ...
    @property
    def extents_max(self) -> int: ...
    @property
    def batch_bytes_max(self) -> int: ...
    @property
    def backlog_bytes(self) -> int: ...
    @property
    def refused_at(self) -> int: ...
    @property
    def bytes_written(self) -> int: ...
    @property
    def flushes(self) -> int: ...
    def attach(self, incarnation: int, extents: list[tuple[int, int]]) -> None:
        """Start a fresh chain. `extents`: [(fd, number)] of files to write over; they pass to the journal."""

    def prepare_extent(self) -> bool:
        """Make a spare extent when there is none. False: there is one, or the bound is reached."""

    def run(self) -> None:
        """The background thread: serves what nobody waits for, until close(). Holds no GIL while it works."""

    def sync(self) -> None:
        """Flush what is written (relaxed mode). OSError poisons the journal."""

    def durable_block(self) -> int:
        """The highest block whose records a checkpoint may take."""

    def recycle(self, block: int) -> None:
        """A checkpoint through `block` is durable: its extents may be written over."""

    def checkpoint_started(self) -> int:
        """Journal bytes written since the last call: what the next checkpoint takes."""

    def checkpoint_due(self) -> int:
        """Journal bytes that wait for a checkpoint."""

    def rolled_back(self) -> None:
        """The rings were cut to what is visible: appends may try again."""

    def stop_writing(self) -> None:
        """End `run`; what is pending stays pending."""

    def ended_now(self) -> None:
        """No flush will ever come: waiters are told that the log is closed."""

    def flush_pending(self, timeout_s: float | None) -> bool:
        """Write all that is queued; False when the time was too short or the journal failed."""

    def inject_error(self, error: int) -> None:
        """Tests: the next fdatasync fails with errno `error`; negative: the next pwrite."""

    def _break(self, how: str) -> None: ...
    def queued(self) -> int:
        """Bytes that wait for the disk."""

    def is_busy(self) -> bool:
        """A thread is writing or flushing just now."""

    def is_poisoned(self) -> bool:
        """A flush failed."""

    def seq_done(self) -> int:
        """The highest batch with an outcome."""

def block_at(extent: Buffer, at: int, incarnation: int) -> tuple[int, int, int, int, int, bytes] | None:
    """(block, flushed, last_crc, head_crc, time_high, body) of the valid block at `at`, else None."""

def first_block(extent: Buffer, incarnation: int) -> int:
    """Number of the block whose header stands at the extent's begin, 0 when none of this incarnation does."""

def find_block(extent: Buffer, incarnation: int, block: int) -> int: ...
def has_block(extent: Buffer, incarnation: int, block: int) -> bool: ...
def claims_flushed(extent: Buffer, at: int, incarnation: int, block: int) -> int:
    """The number of a block from `at` on whose header says that `block` was flushed, else 0."""

def block_bytes(body_bytes: int) -> int:
    """How many bytes a block with this body takes in its extent."""

def records_of(body: bytes, where: str) -> list[tuple[int, int, int, int, int, int, int, bytes, bytes]]:
    """[(type, number, first, floor, fence, count, tag_before, run or body, key)] of a block's body."""

def lock_byte(fd: int, at: int) -> bool:
    """Take the lease on one byte for this open file. False: another open file has it."""

def unlock_byte(fd: int, at: int) -> None: ...
def byte_held(fd: int, at: int) -> bool:
    """Another open file holds the lease on that byte."""

def fs_type(path: bytes) -> int:
    """The magic number of the file system under a path, 0 when it cannot be told."""
