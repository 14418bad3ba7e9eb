"""Is the data file as long as its own meta pages say? Asked before LMDB maps it.

LMDB reads through a mapping: a page past the file's end is SIGBUS, not an error.
"""

from __future__ import annotations

import os
from pathlib import Path

from replaylog._errors import CorruptLog

__all__ = ["refuse_truncated"]

# Offsets in an LMDB meta page (64-bit build): what says how long the file must be.
_META_BYTES = 160
_META_MAGIC = slice(16, 20)
_META_PAGE_SIZE = slice(40, 44)
_META_LAST_PAGE = slice(136, 144)
_LMDB_MAGIC = (0xBEEFC0DE).to_bytes(4, "little")


def refuse_truncated(file: Path) -> None:
    """LMDB maps the file: reading a page past its end is SIGBUS. Compare the size with the last page first."""
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        return
    if size == 0:
        return
    with file.open("rb") as data:
        head = data.read(_META_BYTES)
        page_size = int.from_bytes(head[_META_PAGE_SIZE], "little") or os.sysconf("SC_PAGE_SIZE")
        data.seek(page_size)
        metas = [head, data.read(_META_BYTES)]
    if size < 2 * page_size or any(meta[_META_MAGIC] != _LMDB_MAGIC for meta in metas):
        raise CorruptLog(where=str(file), found=f"{size} bytes that are no LMDB file", expected="two meta pages")
    needed = (max(int.from_bytes(meta[_META_LAST_PAGE], "little") for meta in metas) + 1) * page_size
    if size < needed:
        raise CorruptLog(where=str(file), found=f"{size} bytes", expected=f"at least {needed}: it was truncated")
