"""A copy of a log that is being written: an LMDB snapshot, then the journal, then recovery and a check.

Copying the files of a live log gives a bad copy more often than not; LMDB's own copy alone misses what is
acknowledged but not yet check-pointed. In this order nothing acknowledged before the call is missing: what
left the journal meanwhile was in the snapshot, or recovery notices the hole and the copy starts over.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from replaylog._errors import CorruptLog

if TYPE_CHECKING:
    from replaylog._log import Log

__all__ = ["backup_log"]

ATTEMPTS_MAX = 5


def backup_log(log: Log, to: Path) -> None:
    """Copy `log` into the new directory `to`, and verify the copy. CorruptLog when the source is damaged."""
    if log._directory is None:
        raise ValueError("a log in memory has no files to back up")
    if to.exists() and any(to.iterdir()):
        raise FileExistsError(f"{to} is not empty: back up into a new directory")
    if not log._state():
        log.flush()
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            _copy(log, to)
            _settle(to, log)
        except CorruptLog:
            shutil.rmtree(to)
            if attempt == ATTEMPTS_MAX:
                raise
            continue
        return


def _copy(log: Log, to: Path) -> None:
    source = log._directory
    assert source is not None
    to.mkdir(mode=source.dir_mode, parents=True, exist_ok=True)
    (to / "journal").mkdir(mode=source.dir_mode)
    log._store.copy(to / source.data.name)
    (to / source.data.name).chmod(source.file_mode)
    for path in sorted(source.journal.iterdir()):
        shutil.copyfile(path, to / "journal" / path.name)
        (to / "journal" / path.name).chmod(source.file_mode)
    shutil.copyfile(source.uuid_file, to / source.uuid_file.name)
    (to / source.uuid_file.name).chmod(source.file_mode)


def _settle(to: Path, log: Log) -> None:
    """Recover the copy (its journal is empty afterwards) and read it through."""
    from replaylog._log import open as open_log

    settings = log._settings
    with open_log(
        to,
        map_bytes=settings.map_bytes,
        journal_extent_bytes=settings.extent_bytes,
        journal_bytes_max=settings.extent_bytes * settings.extents_max,
        file_mode=settings.file_mode,
        clock=settings.clock,
    ) as copy:
        problems = copy.verify()
        if problems:
            raise CorruptLog(where=str(to), found=problems[0], expected="a copy without faults")
    for path in (to / "journal").iterdir():
        path.unlink()
