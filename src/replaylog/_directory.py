"""The log directory: its files, its lease, its identity. Everything here happens before the first event.

Guarantees: one writer at a time (an open-file lock on byte 0 of `locks`: it goes with the process, never
stays behind); a directory whose data file was lost, emptied or exchanged is CorruptLog, never an empty log.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid as uuids
from pathlib import Path

from replaylog._errors import CorruptLog, LogLocked
from replaylog._journal import byte_held, fs_type, lock_byte, unlock_byte
from replaylog.store.embedded import DATA_FILE

__all__ = ["Directory"]

SLOT = 0  # one writing process: one slot. The lock file and the slots have room for more.
HOLDER_BYTES = 256

_NETWORK = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x01021997: "9P",
    0x5346414F: "AFS",
    0x00C36400: "CephFS",
}


class Directory:
    """Paths and locks of one log directory."""

    def __init__(self, path: str | os.PathLike[str], *, mode: int, allow_network: bool) -> None:
        self.path = Path(path)
        self.file_mode = mode & 0o666
        self.dir_mode = mode | ((mode & 0o444) >> 2)  # who may read may search
        self.data = self.path / DATA_FILE
        self.journal = self.path / "journal"
        self.uuid_file = self.path / "uuid"
        self._lock_fd = -1
        self._allow_network = allow_network

    def create(self) -> None:
        """Make what is missing; existing files keep their rights."""
        created = not self.path.exists()
        self.path.mkdir(mode=self.dir_mode, parents=True, exist_ok=True)
        if created:
            self.path.chmod(self.dir_mode)
        self._refuse_network()
        if not self.journal.exists():
            self.journal.mkdir(mode=self.dir_mode, exist_ok=True)
            self.journal.chmod(self.dir_mode)

    def require(self) -> None:
        """For reading: it must be there."""
        if not self.uuid_file.exists():
            if not self.path.exists():
                raise FileNotFoundError(f"{self.path} does not exist")
            if not self.data.exists():
                raise FileNotFoundError(f"{self.path} is not a log directory: it has neither uuid nor {self.data.name}")
            raise CorruptLog(where=str(self.path), found="no uuid file", expected="a log directory")

    def _refuse_network(self) -> None:
        name = _NETWORK.get(fs_type(os.fsencode(self.path)))
        if name is not None and not self._allow_network:
            raise OSError(
                f"{self.path} is on {name}: locks and flushes there cannot be relied on; use a local disk, or pass "
                "allow_network=True"
            )

    # -- the lease

    def lock(self) -> None:
        """Become the writer, or LogLocked naming who is."""
        fd = os.open(self.path / "locks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self.file_mode)
        if not lock_byte(fd, SLOT):
            holder = os.pread(fd, HOLDER_BYTES, 0).rstrip(b"\0\n").decode(errors="replace")
            os.close(fd)
            raise LogLocked(path=str(self.path), holder=holder or "another process")
        os.fchmod(fd, self.file_mode)
        os.pwrite(fd, self.owner().encode()[:HOLDER_BYTES].ljust(HOLDER_BYTES, b"\0"), 0)
        self._lock_fd = fd

    def is_held(self) -> bool:
        """Is a writer alive?"""
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.path / "locks", os.O_RDWR | os.O_CLOEXEC)
            try:
                return byte_held(fd, SLOT)
            finally:
                os.close(fd)
        return False

    @staticmethod
    def owner() -> str:
        """Who writes, for people."""
        return f"process {os.getpid()} on {socket.gethostname()}"

    def unlock(self) -> None:
        """Let the lease go, also for forked children that have not run yet."""
        if self._lock_fd >= 0:
            unlock_byte(self._lock_fd, SLOT)
        self.disown()

    def disown(self) -> None:
        """In a forked child: close its copy of the lock file. Unlocking there would free the parent's lease."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # -- identity

    def identity(self, stored: bytes | None, *, has_sessions: bool) -> bytes:
        """The store's UUID; written last at creation. CorruptLog where the parts do not belong together."""
        try:
            written = bytes.fromhex(self.uuid_file.read_text().strip())
        except FileNotFoundError:
            if has_sessions:
                raise CorruptLog(
                    where=str(self.uuid_file), found="no uuid file beside sessions", expected=(stored or b"").hex()
                ) from None
            return stored or uuids.uuid4().bytes
        except ValueError:
            raise CorruptLog(where=str(self.uuid_file), found="no UUID", expected="32 hex digits") from None
        if stored is None:
            raise CorruptLog(where=str(self.data), found="an empty data file", expected=f"the data of {written.hex()}")
        return written

    def write_uuid(self, uuid: bytes) -> None:
        """Creation is complete."""
        if self.uuid_file.exists():
            return
        self.sync()
        temporary = self.path / "uuid.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, self.file_mode)
        try:
            os.write(fd, uuid.hex().encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(self.uuid_file)
        self.sync()

    def sync(self) -> None:
        """Make names durable."""
        for path in (self.journal, self.path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def data_is_missing(self) -> bool:
        """A directory with an identity but without its data."""
        return self.uuid_file.exists() and (not self.data.exists() or self.data.stat().st_size == 0)

    # -- extents

    def extents(self, slot: int) -> list[tuple[int, Path]]:
        """(number, path) of a slot's journal files, in the order of their numbers."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for path in self.journal.iterdir():
                slot_text, _, number = path.name.partition("-")
                if slot_text == str(slot) and number.isascii() and number.isdecimal():
                    found.append((int(number), path))
        return sorted(found)

    def reusable_extents(self, slot: int, extent_bytes: int) -> list[tuple[int, int]]:
        """(fd, number) of files to write over; others are removed."""
        out = []
        for number, path in self.extents(slot):
            if path.stat().st_size == extent_bytes:
                out.append((os.open(path, os.O_RDWR | os.O_CLOEXEC), number))
            else:
                path.unlink()
        return out
