"""What the tests of the format build: the log of FORMAT.md's worked example, and logs to damage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import lmdb

import replaylog
from replaylog import Retention
from support import FakeClock

EPOCH, INCARNATION = 0x0123456789ABCDEF, 0x5EED5EED5EED5EED
EXTENT_BYTES = 65536
NEVER_S = 1e6
UUID_BYTES = bytes.fromhex("00112233445566778899aabbccddeeff")


@contextmanager
def fixed_randomness(*numbers: int) -> Iterator[None]:
    """Epochs and incarnations, in the order in which they are drawn; the UUID; who writes."""
    with (
        mock.patch("secrets.randbits", side_effect=numbers),
        mock.patch("uuid.uuid4", return_value=UUID(bytes=UUID_BYTES)),
        mock.patch("replaylog._directory.Directory.owner", return_value="process 1 on host"),
    ):
        yield


def open_small(path: Path, **settings: Any) -> Any:
    """A log with small extents and a clock that stands still, check-pointed only when asked."""
    settings.setdefault("clock", FakeClock())
    settings.setdefault("checkpoint_interval_s", NEVER_S)
    settings.setdefault("journal_extent_bytes", EXTENT_BYTES)
    return replaylog.open(path, **settings)


def tables(path: Path) -> dict[str, dict[bytes, bytes]]:
    """All that is in the data file."""
    env = lmdb.open(str(path / "data.mdb"), subdir=False, readonly=True, lock=False, max_dbs=6)
    try:
        names = ("meta", "sessions", "names", "segments", "keys", "expiry")
        opened = {name: env.open_db(name.encode(), create=False) for name in names}
        with env.begin() as txn:
            return {name: dict(txn.cursor(table)) for name, table in opened.items()}
    finally:
        env.close()


def worked_example(path: Path) -> dict[str, Any]:
    """The log of FORMAT.md, by the names of its drawings."""
    limits = Retention(events=100, age_s=3600)
    with fixed_randomness(EPOCH, INCARNATION - 1):
        log = open_small(path, retention=limits)
        session = log.create("a", wait=False)
        session.append({"pct": 10}, kind="progress", key="k1")
        session.append(b"\xff\x00")
        log._abandon()
    out: dict[str, Any] = {}
    journal = (path / "journal" / "0-0").read_bytes()
    out["block-1"], out["block-2"] = journal[:512], journal[512:1024]
    assert not any(journal[1024:])
    meta = tables(path)["meta"]
    out["slot"], out["limits"] = meta[b"slot-0"], meta[b"limits"]
    open_small(path, retention=limits).close()
    stored = tables(path)
    [(out["segment-key"], out["segment"])] = stored["segments"].items()
    out["row"] = stored["sessions"][b"a"]
    for name, found in (("names", stored["names"]), ("expiry", stored["expiry"])):
        [(key, value)] = found.items()
        out[name] = key + value
    by_key = sorted(stored["keys"].items(), reverse=True)
    (out["key"], out["key-id"]) = (key + value for key, value in by_key)
    with open_small(path, mode="r") as log:
        out["tag0"] = log.check("a", replaylog.START).from_token[-8:]
        out["tag1"], out["tag2"] = (event.cursor[-8:] for event in log.resume("a"))
    return out


def hex_drawings(markdown: str) -> dict[str, bytes]:
    """The bytes of each ```hex name drawing: hex pairs or `00 * n`, then two spaces and words."""
    out = {}
    for name, body in re.findall(r"```hex (\S+)\n(.*?)```", markdown, re.DOTALL):
        data = b""
        for line in body.splitlines():
            pairs = line.split("  ")[0]
            zeros = re.fullmatch(r"00 \* (\d+)", pairs)
            data += bytes(int(zeros.group(1))) if zeros else bytes.fromhex(pairs)
        out[name] = data
    return out
