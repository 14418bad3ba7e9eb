"""The bytes on disk are what FORMAT.md says; a second reader agrees; damage and cuts are never wrong data.

1. Golden: frames, and every drawing of FORMAT.md, byte by byte.
2. A reader that shares no code with the engine reads the same sessions from the same files.
3. A journal cut anywhere opens with exactly the events whose blocks are whole; a block that was flushed and is not
   there is CorruptLog. What an extent held before, or a payload imitates, does not come back.
4. A flipped byte is CorruptLog, found by verify, or without effect.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import format_reader as reader
import replaylog
from format_kit import (
    EPOCH,
    EXTENT_BYTES,
    INCARNATION,
    fixed_randomness,
    hex_drawings,
    open_small,
    tables,
    worked_example,
)
from replaylog import CorruptLog, Retention, _frame, _ring
from support import FULL

FORMAT_MD = Path(replaylog.__file__).with_name("FORMAT.md")
HEX = f"{EPOCH:016x}"


# ---- 1. golden bytes ---------------------------------------------------------------------------------------


def test_crc32c_is_castagnoli_in_both_forms_and_in_the_second_reader() -> None:
    for crc in (_frame.crc, _frame.crc_by_table, reader.crc32c):
        assert crc(b"123456789") == 0xE3069283
        assert crc(b"56789", crc(b"1234")) == 0xE3069283
        assert crc(bytes(32)) == 0x8A9136AA


GOLDEN_FRAMES = [
    ("x", "message", "id: {1}\ndata: x\n\n"),
    ("", "message", "id: {1}\ndata: \n\n"),
    (b"x", "message", "id: {1}\ndata: x\n\n"),
    ({"a": [1, None]}, "progress", 'id: {1}\nevent: progress\ndata: {"a":[1,null]}\n\n'),
    ("a\n\nb", "message", "id: {1}\ndata: a\ndata: \ndata: b\n\n"),
    ("a\r", "message", "id: {1}\nevent: message;base64\ndata: YQ0=\n\n"),
    (b"\xff\x00", "x", "id: {1}\nevent: x;base64\ndata: /wA=\n\n"),
    ("a\nb", "\u00e9", "id: {1}\nevent: \u00e9\ndata: a\ndata: b\n\n"),
    (None, "", "id: {1}\nevent: \ndata: null\n\n"),
]


@pytest.mark.parametrize(("payload", "kind", "text"), GOLDEN_FRAMES)
def test_a_frame_is_this_text(payload: Any, kind: str, text: str) -> None:
    kinds = {bytes: (1, payload), str: (2, payload.encode() if isinstance(payload, str) else b"")}
    json_form = text.rpartition("data: ")[2].strip().encode()
    payload_type, stored = kinds.get(type(payload), (3, json_form))
    tag = reader.tag_next(reader.tag_zero(EPOCH), 1, payload_type, kind.encode(), stored)
    with fixed_randomness(EPOCH), replaylog.open(None, durability="memory") as log:
        log.create("s").append(payload, kind=kind)
        [event] = log.resume("s")
    assert event.frame.decode() == text.replace("{1}", f"{HEX}.1.{tag:08x}")
    assert (event.payload, event.kind, event.tag) == (payload, kind, tag)


def test_the_worked_example_of_format_md_is_what_is_written(tmp_path: Path) -> None:
    drawn = hex_drawings(FORMAT_MD.read_text())
    built = worked_example(tmp_path)
    for name, data in drawn.items():
        assert data.hex(" ") == built[name].hex(" "), name
    prose = {"segment-key", "tag0", "tag1", "tag2"}
    assert drawn.keys() == built.keys() - prose
    text = FORMAT_MD.read_text()
    assert f"`{built['segment-key'].hex(' ')}`" in text
    for n in range(3):
        assert f"`{HEX}.{n}.{built[f'tag{n}']}`" in text


def test_the_drawn_bytes_mean_what_format_md_says(tmp_path: Path) -> None:
    """The second reader, from the drawings alone."""
    drawn = hex_drawings(FORMAT_MD.read_text())
    first, second = (reader.block_at(drawn[name], 0, INCARNATION) for name in ("block-1", "block-2"))
    assert first is not None
    assert second is not None
    assert (first.number, first.flushed, first.last_crc, first.bytes) == (1, 0, 0, 512)
    assert (second.number, second.flushed, second.last_crc) == (2, 1, first.crc)
    kinds = [record[0] for block in (first, second) for record in reader.records(block.body)]
    assert kinds == [reader.CREATE, reader.EVENTS, reader.EVENTS]
    epoch, id, tag, events = reader.read_segment(drawn["segment"])
    assert (epoch, id, tag) == (EPOCH, 1, reader.tag_zero(EPOCH))
    assert [(e.id, e.kind, e.payload) for e in events] == [(1, "progress", {"pct": 10}), (2, "message", b"\xff\x00")]


def test_a_run_in_a_record_and_in_a_segment_are_the_same_bytes() -> None:
    drawn = hex_drawings(FORMAT_MD.read_text())
    block = reader.block_at(drawn["block-2"], 0, INCARNATION)
    assert block is not None
    [(_, _, first, _, count, tag, index, text, _)] = reader.records(block.body)
    chunk = _ring.chunk_from_run(EPOCH, first, 66, tag, count, index + text)
    assert chunk.verify_chain() == 0
    [(_, _, data)] = _ring.build_segments([chunk], 2, 2)
    assert data[reader.SEGMENT.size :] == index + text
    assert reader.read_segment(data) == (EPOCH, 2, tag, reader.read_run(index, text, EPOCH, 2, tag))


# ---- 2. a second reader agrees --------------------------------------------------------------------------------


def seen_by_engine(path: Path, **settings: Any) -> dict[str, Any]:
    """Sessions and events as a view shows them, in the second reader's words."""
    out = {}
    with open_small(path, mode="r", map_bytes=1 << 20, **settings) as log:
        names = sorted({*log._sessions, *(row.name for row in log._store.names("", None))}, key=str.encode)
        for name in names:
            verdict = log.check(name, replaylog.FLOOR)
            events = []
            if verdict.ok:
                events = [
                    reader.Event(e.id, e.kind, e.payload, e.tag, e.time_ns, e.cursor)
                    for e in log.resume(name, replaylog.FLOOR)
                ]
            meta = log.session(name).meta if verdict.ok else None
            out[name] = (verdict.epoch, verdict.floor, verdict.head, verdict.state, meta, events)
    return out


def seen_by_reader(path: Path) -> dict[str, Any]:
    return {s.name: (s.epoch, s.floor, s.head, s.state, s.meta, s.events) for s in reader.read_log(path).values()}


texts = st.one_of(st.text(max_size=30), st.sampled_from(["a\nb", "\r", "\n", "id: 1\ndata: x\n\n"]))
values = st.recursive(st.none() | st.integers(-9, 9), st.lists, max_leaves=4)
payloads = st.one_of(texts, st.binary(max_size=30), values)
limits = st.none() | st.builds(Retention, events=st.none() | st.integers(1, 4), bytes=st.none() | st.just(300))
steps = st.one_of(
    st.tuples(st.just("create"), st.sampled_from("abc"), limits, st.none() | st.just({"u": 1})),
    st.tuples(st.just("append"), st.sampled_from("abc"), st.lists(payloads, min_size=1, max_size=5)),
    st.tuples(st.just("append"), st.sampled_from("abc"), st.lists(payloads, min_size=1, max_size=5)),
    st.tuples(st.sampled_from(["end", "reap", "trim"]), st.sampled_from("abc")),
    st.tuples(st.sampled_from(["checkpoint", "kill", "close"])),
)


@settings(max_examples=300 if FULL else 25)
@given(script=st.lists(steps, max_size=25), last=st.sampled_from(["_abandon", "close"]))
def test_a_second_reader_reads_the_same_log(
    tmp_path_factory: pytest.TempPathFactory, script: list[Any], last: str
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    log = open_small(path, retention=Retention(events=8))
    for verb, *rest in script:
        if verb in ("kill", "close"):
            log._abandon() if verb == "kill" else log.close()
            log = open_small(path, retention=Retention(events=8))
        elif verb == "checkpoint":
            log.checkpoint()
        else:
            _act(log, verb, *rest)
    getattr(log, last)()
    assert seen_by_reader(path) == seen_by_engine(path)
    with open_small(path, retention=Retention(events=8)) as again:
        assert again.verify() == []
    assert seen_by_reader(path) == seen_by_engine(path)
    shutil.rmtree(path)


def _act(log: Any, verb: str, name: str, *rest: Any) -> None:
    if verb == "create":
        if log.check(name).reason in (replaylog.Reason.UNKNOWN, replaylog.Reason.REAPED):
            log.create(name, retention=rest[0], meta=rest[1])
        return
    verdict = log.check(name, replaylog.HEAD)
    if not verdict.ok or (verdict.ended and verb in ("append", "end")):
        return
    session = log.session(name)
    if verb == "append":
        session.extend([(payload, "k") for payload in rest[0]])
    elif verb == "end":
        session.end("bye", reason="done")
    elif verb == "reap":
        log.reap(name, reason="idle")
    else:
        session.trim((session.floor + session.head + 1) // 2)


# ---- 3. cuts ------------------------------------------------------------------------------------------------


class Journaled:
    """A log with events 1..n in blocks of their own (block 1 creates), that nobody closed."""

    def __init__(self, path: Path, payloads: list[str], **settings: Any) -> None:
        self.path = path
        log = open_small(path, **settings)
        log.create("s")
        for payload in payloads:
            log.session("s").append(payload)
        self.incarnation = log._incarnation
        log._abandon()
        self.extents = [path / "journal" / f"0-{n}" for n in range(len(list((path / "journal").iterdir())))]
        self.bytes = [extent.read_bytes() for extent in self.extents]
        self.blocks = [
            (n, at, block)  # extent, offset, block; in the order of their numbers
            for n, data in enumerate(self.bytes)
            for at in range(0, len(data), 512)
            if (block := reader.block_at(data, at, self.incarnation)) is not None
        ]
        self.blocks.sort(key=lambda found: found[2].number)
        self.payloads = payloads

    def head(self, *, mode: str = "r") -> int:
        """The head that an opening shows, after comparing every payload up to it; -1 without the session."""
        with open_small(self.path, mode=mode, map_bytes=1 << 20) as log:
            if log.check("s").reason is replaylog.Reason.UNKNOWN:
                return -1
            got = [event.payload for event in log.resume("s")]
            assert got == self.payloads[: len(got)]
            assert log.session("s").head == len(got)
            return len(got)

    def put(self, data: bytes, extent: int = 0) -> None:
        self.extents[extent].write_bytes(data)


def test_a_journal_cut_at_any_byte_keeps_what_is_whole(tmp_path: Path) -> None:
    log = Journaled(tmp_path / "log", ["a", "b" * 600, "c"])
    [data] = log.bytes
    ends = [at + 64 + len(block.body) for _, at, block in log.blocks]
    assert [block.number for _, _, block in log.blocks] == [1, 2, 3, 4]
    for cut in range(ends[-1] + 2):
        log.put(data[:cut])
        whole = sum(end <= cut for end in ends)
        assert log.head() == whole - 1, cut


@pytest.mark.parametrize("after", [0, 1, 63, 64, 300])
def test_a_cut_journal_opens_for_writing_and_goes_on(tmp_path: Path, after: int) -> None:
    log = Journaled(tmp_path / "log", ["a", "b", "c"])
    _, at, _ = log.blocks[-1]
    log.put(log.bytes[0][: at + after])
    whole = 3 if after == 300 else 2
    with open_small(log.path) as again:
        assert again.session("s").append("next") == whole + 1
    with open_small(log.path) as again:
        assert [e.payload for e in again.resume("s")] == [*log.payloads[:whole], "next"]
        assert again.verify() == []


def test_a_large_journal_cut_at_every_512_bytes_keeps_what_is_whole(tmp_path: Path) -> None:
    log = Journaled(tmp_path / "log", ["x" * (n * 700 % 3000) for n in range(30)])
    [data] = log.bytes
    ends = [at + 64 + len(block.body) for _, at, block in log.blocks]
    for cut in range(0, ends[-1] + 512, 512):
        log.put(data[:cut])
        assert log.head() == sum(end <= cut for end in ends) - 1, cut


def test_an_extent_cut_before_a_flushed_block_in_the_next_one_is_corrupt(tmp_path: Path) -> None:
    log = Journaled(tmp_path / "log", ["x" * 9000 for _ in range(10)])
    assert [extent for extent, _, _ in log.blocks] == [0] * 8 + [1] * 3
    first_end = max(at + block.bytes for extent, at, block in log.blocks if extent == 0)
    for cut in [*range(0, first_end - 511, 2048), first_end - 512]:
        log.put(log.bytes[0][:cut])
        with pytest.raises(CorruptLog, match="journal of slot 0: found no valid block"):
            log.head()
    log.put(log.bytes[0][:first_end])
    assert log.head() == 10


def test_a_last_block_torn_at_any_byte_is_cut_and_one_before_it_is_corrupt(tmp_path: Path) -> None:
    """The write of a block reached the disk up to some byte; behind it stands what was there: zeros."""
    log = Journaled(tmp_path / "log", ["a", "b", "c"])
    [data] = log.bytes
    for number in (4, 3):
        _, at, block = log.blocks[number - 1]
        content = len(data[at : at + 64 + len(block.body)].rstrip(b"\0"))
        for torn in range(0, content + 1, 1 if number == 4 or FULL else 5):
            log.put(data[: at + torn] + bytes(block.bytes - torn) + data[at + block.bytes :])
            if torn == content:
                assert log.head() == 3
            elif number == 4:
                assert log.head() == 2, torn
            else:
                with pytest.raises(CorruptLog, match="no valid block 3, though block 4 says that it was flushed"):
                    log.head()


def test_in_relaxed_mode_a_lost_middle_is_a_cut_where_nothing_says_that_it_was_flushed(tmp_path: Path) -> None:
    log = Journaled(tmp_path / "log", ["a", "b", "c"], durability="relaxed", flush_s=NEVER_FLUSHED_S)
    [data] = log.bytes
    _, at, block = log.blocks[2]
    assert [one.flushed for _, _, one in log.blocks] == [0, 0, 0, 0]
    log.put(data[:at] + bytes(block.bytes) + data[at + block.bytes :])
    assert log.head() == 1


NEVER_FLUSHED_S = 1000.0


def test_recycled_extents_do_not_come_back(tmp_path: Path) -> None:
    """Old blocks, of this incarnation and of the one before, stand behind the new end in the same files."""
    path = tmp_path / "log"
    with open_small(path, journal_bytes_max=2 * EXTENT_BYTES, retention=Retention(events=5)) as log:
        session = log.create("s")
        for n in range(60):
            session.append(f"old {n} " + "x" * 4000)
            if n % 8 == 7:
                log.checkpoint()
        former = log._incarnation
    log = open_small(path, retention=Retention(events=5))
    session = log.session("s")
    for n in range(3):
        session.append(f"new {n}")
    mine = log._incarnation
    log._abandon()
    extents = sorted((path / "journal").iterdir())
    stale = [
        at for extent in extents for at in range(0, EXTENT_BYTES, 512)
        if reader.block_at(extent.read_bytes(), at, former) is not None
    ]  # fmt: skip
    assert len(stale) > 8
    for extent in extents:
        data = extent.read_bytes()
        if reader.block_head(data, 0, mine) is not None:
            at = max(at for at in range(0, EXTENT_BYTES, 512) if reader.block_head(data, at, mine))
            extent.write_bytes(data[:at] + bytes(512) + data[at + 512 :])  # the last of the three is torn away
    seen = seen_by_engine(path, retention=Retention(events=5))
    assert seen == seen_by_reader(path)
    assert [event.payload[:6] for event in seen["s"][-1]] == ["old 57", "old 58", "old 59", "new 0", "new 1"]


def ascii_incarnations() -> Iterator[int]:
    """Incarnations that stand verbatim in UTF-8 text, and so does the CRC of an empty body under them."""
    for low in range(0x0101, 0x7F7F, 2):
        incarnation = 0x4141414141410000 | low
        text = incarnation.to_bytes(8, "little")
        text += reader.crc32c(text).to_bytes(4, "little")
        if text.isascii() and not set(b"\r\n") & set(text):
            yield incarnation


def imitation(incarnation: int, number: int, flushed: int) -> str:
    """A block header with every CRC right that is plain text."""
    body_crc = reader.crc32c(incarnation.to_bytes(8, "little"))
    for records in range(0x20, 0x7F):
        parts = (reader.BLOCK_MAGIC, 1, 0, incarnation, number, flushed, 0, 0, 0, records, 0)
        head = struct.pack("<IHHQQQIIqIII", *parts, body_crc)
        head += reader.crc32c(head).to_bytes(4, "little")
        if head.isascii() and not set(b"\r\n") & set(head):
            assert reader.block_at(head, 0, incarnation) is not None
            return head.decode()
    raise AssertionError("no such header")


def test_payloads_that_imitate_blocks_are_payloads(tmp_path: Path) -> None:
    """Headers of another incarnation, and of blocks that were in this one, wherever a block could begin."""
    path, extent_bytes = tmp_path / "log", 1 << 20
    several = ascii_incarnations()
    mine, other = next(several), next(several)
    everywhere = [imitation(other, 4, 9).ljust(513) * 512, imitation(mine, 1, 0).ljust(513) * 512]
    payloads = ["before", *everywhere, "after"]
    with fixed_randomness(EPOCH, mine - 1):
        log = open_small(path, journal_extent_bytes=extent_bytes)
        session = log.create("s")
        for payload in payloads:
            session.append(payload)
        log._abandon()
    data = (path / "journal" / "0-0").read_bytes()
    places = range(0, extent_bytes, 512)
    assert any(reader.block_head(data, at, other) for at in places), "the test has lost its teeth"
    blocks = {block.number: at for at in places if (block := reader.block_at(data, at, mine))}
    assert sum(bool(reader.block_head(data, at, mine)) for at in places) > len(blocks)
    for whole in (5, 4, 3, 2):  # all of it, then without the last block, and the one before ...
        seen = seen_by_engine(path)
        assert [event.payload for event in seen["s"][-1]] == payloads[: whole - 1]
        assert seen == seen_by_reader(path)
        (path / "journal" / "0-0").write_bytes(data[: blocks[whole]].ljust(extent_bytes, b"\0"))


# ---- 4. flipped bytes ---------------------------------------------------------------------------------------


def test_a_flip_anywhere_in_a_segment_is_corrupt_in_both_readers(tmp_path: Path) -> None:
    data = worked_example(tmp_path)["segment"]
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(CorruptLog, match="here"):
            _ring.read_segment(bytes(flipped), "here")
        with pytest.raises(reader.Damaged):
            reader.read_segment(bytes(flipped))
        with pytest.raises(CorruptLog, match="here"):
            _ring.read_segment(data[:at], "here")
    assert _ring.read_segment(data, "here").last == 2


def test_a_flip_in_a_journal_is_corrupt_or_cuts_the_unflushed_tail(tmp_path: Path) -> None:
    log = Journaled(tmp_path / "log", ["a", "b", "c"])
    [data] = log.bytes
    for number, (_, start, block) in enumerate(log.blocks):
        used = 64 + len(block.body)
        for at in range(start, start + used, 1 if FULL else 3):
            flipped = bytearray(data)
            flipped[at] ^= 1 << at % 8
            log.put(bytes(flipped))
            if number == 3:  # the last one: nothing says that it was flushed
                assert log.head() == 2, at
            else:
                with pytest.raises(CorruptLog, match="journal of slot 0"):
                    log.head()
    flipped = bytearray(data)
    flipped[log.blocks[1][1] + 64 + len(log.blocks[1][2].body) + 3] ^= 1  # the filling is no data
    log.put(bytes(flipped))
    assert log.head() == 3


def _segment_places(path: Path) -> list[tuple[int, int]]:
    """(offset, length) of each segment in the data file."""
    data = (path / "data.mdb").read_bytes()
    return [(data.index(value), len(value)) for value in tables(path)["segments"].values()]


def test_a_flip_in_a_stored_segment_is_named_by_reads_and_by_verify(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with open_small(path) as log:
        session = log.create("agent-7")
        for n in range(6):
            session.append({"n": n})
    good = (path / "data.mdb").read_bytes()
    [(place, length)] = _segment_places(path)
    for at in range(place, place + length, 1 if FULL else 17):
        flipped = bytearray(good)
        flipped[at] ^= 1 << at % 8
        (path / "data.mdb").write_bytes(flipped)
        with open_small(path, mode="r", map_bytes=1 << 20) as log:
            with pytest.raises(CorruptLog, match="segment at id 1"):
                list(log.resume("agent-7", 0))
            [problem, *_] = log.verify()
            assert "agent-7" in problem
            assert "id 1" in problem


def many_kinds(path: Path) -> None:
    """A closed log with every table in use."""
    with fixed_randomness(*range(1 << 62, (1 << 62) + 5)), open_small(path, retention=Retention(events=20)) as log:
        for name, own in (("plain", None), ("narrow", Retention(events=5)), ("ended", None)):
            session = log.create(name, meta={"of": name}, retention=own)
            for n in range(12):
                session.append({"n": n}, key=f"key-{n}")
        session.end(b"\0bye", kind="result", reason="done")
        log.create("dead").append("x")
        log.reap("dead", reason="idle")


def in_child(action: Callable[[], int]) -> int:
    """What `action` returned in a fork, or minus the signal: LMDB may not survive its own file."""
    pid = os.fork()
    if pid == 0:
        code = 100
        try:
            faulthandler.disable()
            signal.alarm(20)
            code = action()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


SAME, VERIFIED, CORRUPT, REFUSED, WRONG = 0, 1, 3, 4, 9
DIED = {-signal.SIGBUS, -signal.SIGSEGV}  # LMDB trusts the headers of its pages


def outcome_of(path: Path, good: dict[str, Any]) -> int:
    try:
        if seen_by_engine(path) == good:
            return SAME
        with open_small(path, mode="r", map_bytes=1 << 20) as log:
            return VERIFIED if log.verify() else WRONG
    except CorruptLog:
        return CORRUPT
    except replaylog.ReplayLogError:
        return REFUSED


def test_a_flip_anywhere_in_the_data_file_is_never_wrong_data(tmp_path: Path) -> None:
    path = tmp_path / "log"
    many_kinds(path)
    good, data = seen_by_engine(path), (path / "data.mdb").read_bytes()
    used = [at for at, byte in enumerate(data) if byte]
    places = used if FULL else used[::13]
    outcomes: Counter[int] = Counter()
    for at in places:
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        (path / "data.mdb").write_bytes(flipped)
        found = in_child(lambda: outcome_of(path, good))
        assert found in {SAME, VERIFIED, CORRUPT, REFUSED} | DIED, (at, found)
        outcomes[found] += 1
    assert outcomes[CORRUPT] + outcomes[VERIFIED] > len(places) / 4, outcomes
    assert sum(outcomes[signal] for signal in DIED) < len(places) / 100, outcomes
