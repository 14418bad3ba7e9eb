"""One conformance suite for every store under the engine; the in-memory one is the oracle.

The property: what `commit` was given is what `load`, `read`, `tag`, `find_key`, `names` and `expired` give back,
all of it or nothing, also after the store was opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import replaylog
from replaylog import Retention
from replaylog._errors import CorruptLog
from replaylog._format import EXPIRY_EVENT, EXPIRY_TOMBSTONE, STATE_BORN, STATE_REAPED, Row
from replaylog.store.embedded import EmbeddedStore
from replaylog.store.memory import MemoryStore
from replaylog.store.protocol import Change, Store

MAP_BYTES = 64 << 20
NUMBER = 7


@pytest.fixture(params=["memory", "embedded"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """A function that gives the store, opened again where that means something."""
    held: list[Any] = []

    def again() -> Store:
        if request.param == "memory":
            held[:] = held or [MemoryStore()]
        else:
            if held:
                held.pop().close()
            held.append(EmbeddedStore(tmp_path, map_bytes=MAP_BYTES))
        return held[0]

    yield again
    for store in held:
        store.close()


def runs(events: int) -> tuple[Row, list[tuple[int, int, bytes]]]:
    """A row and its segments as the engine makes them: small ones, so that a session has several."""
    from replaylog._ring import build_segments

    with replaylog.open(None, durability="memory", retention=Retention(events=events)) as log:
        session = log.create("a")
        for i in range(events):
            session.append(b"%d" % i * 20, kind="tick")
        chunks = session._chunks()
        segments = build_segments(chunks, 1, events, 400)
        row = Row(
            name="a", number=NUMBER, epoch=session.epoch, state=STATE_BORN, head=events,
            head_tag=list(session.replay(0))[-1].tag, cum=sum(len(e.frame) for e in session.replay(0)), floor=1,
            floor_tag=0, floor_cum=0, limit_events=0, limit_bytes=0, limit_age_ns=0, own_limits=True, generation=0,
            meta={"user": "u1"}, reason="", changed_ns=1000, fence=1, expires_ns=0, stored=True,
        )  # fmt: skip
        return row, segments


def change(row: Row, segments: list[tuple[int, int, bytes]], **other: Any) -> Change:
    values: dict[str, Any] = {
        "former_expires_ns": 0, "low": row.floor, "floor": row.floor, "keys": [], "is_current": True, "drop_all": False,
    }  # fmt: skip
    return Change(row=row, segments=segments, **(values | other))


def commit(store: Any, *changes: Change, forget: Any = ()) -> None:
    store.commit(changes, next_number=9, time_high=5, forget=forget)


def test_an_empty_store_knows_nothing(reopen: Callable[[], Any]) -> None:
    store = reopen()
    assert store.load("a") is None
    assert store.load_number(NUMBER) is None
    assert store.read(NUMBER, 1) is None
    assert store.find_key(NUMBER, b"k") is None
    assert list(store.names("", None)) == []
    assert store.tombstones() == 0


def test_what_was_committed_is_read_back_event_by_event(reopen: Callable[[], Any]) -> None:
    row, segments = runs(20)
    assert len(segments) > 3
    commit(reopen(), change(row, segments))
    store = reopen()
    assert store.load("a") == row
    assert store.load_number(NUMBER) == row
    for id in range(1, 21):
        run = store.read(NUMBER, id)
        assert run.event(id).payload == b"%d" % (id - 1) * 20
        assert store.tag(NUMBER, id) == run.event(id).tag
    assert store.tag(NUMBER, 0) == store.read(NUMBER, 1).tag_before
    assert store.read(NUMBER, 21) is None
    assert store.read(NUMBER + 1, 1) is None
    assert store.read(NUMBER - 1, 1) is None


def test_runs_wholly_below_low_go_and_no_others(reopen: Callable[[], Any]) -> None:
    row, segments = runs(20)
    commit(reopen(), change(row, segments))
    low = segments[2][0] + 1  # inside the third run
    commit(reopen(), change(row._replace(floor=low), [], low=low, floor=low))
    store = reopen()
    assert store.read(NUMBER, segments[1][1]) is None
    assert store.read(NUMBER, segments[2][0]).first == segments[2][0]
    commit(store, change(row._replace(floor=21), [], low=21, floor=21))
    assert reopen().read(NUMBER, 20) is None


def test_a_run_that_is_written_again_replaces_the_former(reopen: Callable[[], Any]) -> None:
    row, small = runs(20)
    commit(reopen(), change(row, small[:1]))
    first, last, _ = small[0]
    assert reopen().read(NUMBER, last + 1) is None
    _, whole = runs(20)
    longer = next(one for one in whole if one[0] == first)
    commit(reopen(), change(row, [longer]))
    assert reopen().read(NUMBER, first).last == longer[1]


def test_keys_live_as_long_as_their_events(reopen: Callable[[], Any]) -> None:
    row, segments = runs(20)
    commit(reopen(), change(row, segments, keys=[(b"k3", 3), (b"k9", 9)]))
    assert (reopen().find_key(NUMBER, b"k3"), reopen().find_key(NUMBER, b"k9")) == (3, 9)
    commit(reopen(), change(row._replace(floor=5), [], low=5, floor=5, keys=[(b"k3", 15)]))
    assert (reopen().find_key(NUMBER, b"k3"), reopen().find_key(NUMBER, b"k9")) == (15, 9)
    commit(reopen(), change(row._replace(floor=10), [], low=10, floor=10))
    assert (reopen().find_key(NUMBER, b"k3"), reopen().find_key(NUMBER, b"k9")) == (15, None)


def test_a_reaped_session_leaves_a_tombstone_until_it_is_forgotten(reopen: Callable[[], Any]) -> None:
    row, segments = runs(5)
    commit(reopen(), change(row, segments, keys=[(b"k", 2)]))
    tombstone = row._replace(state=STATE_BORN | STATE_REAPED, expires_ns=2000)
    commit(reopen(), change(tombstone, [], drop_all=True))
    store = reopen()
    assert store.load("a") == tombstone
    assert (store.read(NUMBER, 1), store.find_key(NUMBER, b"k"), store.tombstones()) == (None, None, 1)
    assert store.expired(EXPIRY_TOMBSTONE, 1999, 10) == []
    assert store.expired(EXPIRY_EVENT, 9999, 10) == []
    due = store.expired(EXPIRY_TOMBSTONE, 2000, 10)
    assert due == [(2000, tombstone)]
    commit(store, forget=due)
    assert (reopen().load("a"), reopen().tombstones()) == (None, 0)


def test_a_name_that_was_created_again_stands_for_the_new_number(reopen: Callable[[], Any]) -> None:
    row, segments = runs(5)
    commit(reopen(), change(row._replace(state=STATE_BORN | STATE_REAPED, expires_ns=2000), [], drop_all=True))
    again = row._replace(number=NUMBER + 1, epoch=99)
    commit(reopen(), change(again, segments))
    store = reopen()
    assert store.load("a") == again
    assert (store.load_number(NUMBER), store.load_number(NUMBER + 1)) == (None, again)
    assert (store.tombstones(), store.expired(EXPIRY_TOMBSTONE, 9999, 10)) == (0, [])


def test_an_expiry_moves_with_its_row(reopen: Callable[[], Any]) -> None:
    row, _ = runs(5)
    commit(reopen(), change(row._replace(expires_ns=100), []))
    commit(reopen(), change(row._replace(expires_ns=300), [], former_expires_ns=100))
    store = reopen()
    assert store.expired(EXPIRY_EVENT, 299, 10) == []
    assert [time for time, _ in store.expired(EXPIRY_EVENT, 300, 10)] == [300]
    commit(store, change(row._replace(expires_ns=0), [], former_expires_ns=300))
    assert reopen().expired(EXPIRY_EVENT, 9999, 10) == []


def test_names_come_in_the_order_of_their_bytes_and_in_pages(reopen: Callable[[], Any]) -> None:
    row, _ = runs(1)
    names = [f"s/{i:03}" for i in range(600)] + ["a", "Ä", "s", "t", "\U0001f600"]
    commit(reopen(), *(change(row._replace(name=name, number=i + 1), []) for i, name in enumerate(names)))
    store = reopen()
    in_order = sorted(names, key=lambda name: name.encode())
    assert [one.name for one in store.names("", None)] == in_order
    assert [one.name for one in store.names("s/", "s/597")] == ["s/598", "s/599"]
    assert [one.name for one in store.names("nothing", None)] == []


def test_a_commit_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    row, segments = runs(5)
    store = EmbeddedStore(tmp_path, map_bytes=MAP_BYTES)

    def breaks() -> Iterator[Change]:
        yield change(row, segments)
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        store.commit(breaks(), next_number=9, time_high=5)
    assert (store.load("a"), store.read(NUMBER, 1)) == (None, None)
    store.close()


def test_a_flipped_byte_in_a_stored_run_is_never_an_event(tmp_path: Path) -> None:
    row, segments = runs(5)
    first, last, data = segments[0]
    store = EmbeddedStore(tmp_path, map_bytes=MAP_BYTES)
    for at in range(0, len(data), 7):
        broken = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        commit(store, change(row, [(first, last, broken)]))
        with pytest.raises(CorruptLog):
            store.read(NUMBER, 1)
    store.close()


def test_idle_sessions_leave_memory_and_a_held_handle_stays_the_session(tmp_path: Path) -> None:
    with replaylog.open(tmp_path / "log", memory_bytes=1 << 20, checkpoint_interval_s=0.05) as log:
        held = log.create("held")
        held.append("first")
        for i in range(4000):
            log.create(f"s{i}", wait=False).append_nowait(b"x" * 200)
        log.flush()
        log.checkpoint()
        assert log.stats()["sessions_in_memory"] < 2000
        assert all(log.check(f"s{i}", 0).ok for i in range(4000))
        assert log.stats()["memory_bytes"] <= log.stats()["memory_bytes_max"]
        assert log.session("held") is held
        assert held.append("second") == 2
        assert [event.payload for event in log.resume("held", 0)] == ["first", "second"]
