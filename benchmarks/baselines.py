"""What people use instead: the same questions asked of a deque, a reference store, SQLite, LMDB and RocksDB.

Each peer stores (id, payload) and nothing more: no tag, no token, no identity, no promise to a reader. That
is the cheapest form of each: a log built on it would cost more. A peer answers "can I replay from this
cursor?" by its window alone.

A contestant: `create(name)` gives a handle; `names(handle, id)` the variables for its statements, where
`cursor` is the position after event `id`; the statements are timed as they stand, without a wrapper.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import struct
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import lmdb

KEY = struct.Struct(">IQ")  # session number, id
SSE = b"id: %d\ndata: %s\n\n"
HEAD_MAX = 2**63 - 1

PART_EVENTS = 4096
WINDOW_SQL = "SELECT (SELECT min(id) FROM event WHERE session=?1), (SELECT max(id) FROM event WHERE session=?1)"

Batch = list[tuple[Any, bytes]]


def parts_of(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lists of PART_EVENTS."""
    source = iter(payloads)
    while part := list(itertools.islice(source, PART_EVENTS)):
        yield part


class Contestant:
    """One store. Statements see what `names` gives."""

    name = ""
    durable = False  # an append that returned survives a power cut
    on_disk = True
    # Statements; an empty one is a question that the store has no answer to.
    append = "append(session, payload)"
    floor = "floor(session)"
    verdict = "verdict(session, cursor)"
    replay = "for event in replay(session, cursor): pass"
    first = "next(iter(replay(session, cursor)))"
    sse = "sse(session, cursor)"

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def names(self, session: Any, id: int) -> dict[str, Any]:
        """Variables of the statements."""
        found = {"session": session, "cursor": id, "replay": self.do_replay, "append": self.do_append}
        return found | {"floor": self.do_floor, "verdict": self.do_verdict, "sse": self.do_sse}

    def create(self, name: str) -> Any:
        """A handle on a new session."""
        raise NotImplementedError

    def create_all(self, names: Iterable[str]) -> list[Any]:
        """Many, as fast as it goes."""
        return [self.create(name) for name in names]

    def fill(self, session: Any, payloads: Iterable[bytes]) -> None:
        """Many events, as fast as it goes."""
        for payload in payloads:
            self.do_append(session, payload)

    def do_append(self, session: Any, payload: bytes) -> int:
        """One event, one commit."""
        raise NotImplementedError

    def commit(self, batch: Batch) -> None:
        """Many events of many sessions, one commit."""
        raise NotImplementedError

    def do_floor(self, session: Any) -> int:
        """The first id that is there."""
        raise NotImplementedError

    def do_verdict(self, session: Any, cursor: Any) -> bool:
        """Can a reader replay from there?"""
        raise NotImplementedError

    def do_replay(self, session: Any, cursor: Any) -> Iterable[tuple[int, bytes]]:
        """(id, payload) after the cursor."""
        raise NotImplementedError

    def do_sse(self, session: Any, cursor: Any) -> bytes:
        """The same as one piece of SSE text."""
        return b"".join([SSE % event for event in self.do_replay(session, cursor)])

    def close(self) -> None:
        """Everything is on disk after this."""

    @classmethod
    def open_and_ask(cls, path: Path, name: str) -> Any:
        """A new process's first two steps; what must be closed afterwards."""
        raise NotImplementedError


class Deque(Contestant):
    """A bounded deque of (id, payload)."""

    name = "deque"
    on_disk = False

    def create(self, name: str) -> deque[tuple[int, bytes]]:
        return deque(maxlen=1 << 20)

    def do_append(self, session: deque[tuple[int, bytes]], payload: bytes) -> int:
        id = session[-1][0] + 1 if session else 1
        session.append((id, payload))
        return id

    def do_floor(self, session: deque[tuple[int, bytes]]) -> int:
        return session[0][0]

    def do_verdict(self, session: deque[tuple[int, bytes]], cursor: int) -> bool:
        return session[0][0] - 1 <= cursor <= session[-1][0]

    def do_replay(self, session: deque[tuple[int, bytes]], cursor: int) -> list[tuple[int, bytes]]:
        newest = list(itertools.islice(reversed(session), session[-1][0] - cursor))
        newest.reverse()
        return newest


class ExampleStore(Contestant):
    """The MCP SDK's example store, written again from its description: in memory, a list of events per stream
    and a dict from event id to its stream; ids are random; a replay walks the stream up to the cursor.
    """

    name = "example-store"
    on_disk = False
    floor = ""  # it has none

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._index: dict[str, list[tuple[str, bytes]]] = {}

    def names(self, session: Any, id: int) -> dict[str, Any]:
        cursor = session[id - 1][0] if id else ""
        return super().names(session, id) | {"cursor": cursor}

    def create(self, name: str) -> list[tuple[str, bytes]]:
        return []

    def do_append(self, session: list[tuple[str, bytes]], payload: bytes) -> int:
        id = str(uuid.uuid4())
        session.append((id, payload))
        self._index[id] = session
        return len(session)

    def do_verdict(self, session: Any, cursor: str) -> bool:
        """Is it there, and how many are missing? The store has no position: it must look."""
        stream = self._index.get(cursor)
        if stream is None:
            return False
        return any(id == cursor for id, _ in stream)

    def do_replay(self, session: Any, cursor: str) -> Iterator[tuple[str, bytes]]:
        found = False
        for id, payload in self._index[cursor]:
            if found:
                yield id, payload
            elif id == cursor:
                found = True

    def do_sse(self, session: Any, cursor: str) -> bytes:
        return b"".join([b"id: %s\ndata: %s\n\n" % (i.encode(), p) for i, p in self.do_replay(session, cursor)])


class SQLite(Contestant):
    """One table, WAL."""

    level = "NORMAL"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._db = sqlite3.connect(path / "log.db", isolation_level=None, check_same_thread=False, cached_statements=64)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={self.level}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS event"
            " (session INT, id INT, payload BLOB, PRIMARY KEY (session, id)) WITHOUT ROWID"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS session (name TEXT PRIMARY KEY, number INT)")

    def create(self, name: str) -> list[int]:
        number = self._db.execute("SELECT count(*) FROM session").fetchone()[0]
        self._db.execute("INSERT INTO session VALUES (?, ?)", (name, number))
        return [number, 0]

    def fill(self, session: list[int], payloads: Iterable[bytes]) -> None:
        self.commit([(session, payload) for payload in payloads])

    def do_append(self, session: list[int], payload: bytes) -> int:
        session[1] += 1
        self._db.execute("INSERT INTO event VALUES (?, ?, ?)", (*session, payload))
        return session[1]

    def commit(self, batch: Batch) -> None:
        rows = []
        for session, payload in batch:
            session[1] += 1
            rows.append((*session, payload))
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO event VALUES (?, ?, ?)", rows)
        self._db.execute("COMMIT")

    def do_floor(self, session: list[int]) -> int:
        found = self._db.execute("SELECT id FROM event WHERE session=? ORDER BY id LIMIT 1", session[:1])
        return int(found.fetchone()[0])

    def do_verdict(self, session: list[int], cursor: int) -> bool:
        floor, head = self._db.execute(WINDOW_SQL, session[:1]).fetchone()
        return bool(floor - 1 <= cursor <= head)

    def do_replay(self, session: list[int], cursor: int) -> Iterable[tuple[int, bytes]]:
        return self._db.execute(
            "SELECT id, payload FROM event WHERE session=? AND id>? ORDER BY id", (session[0], cursor)
        )

    def close(self) -> None:
        self._db.close()

    @classmethod
    def open_and_ask(cls, path: Path, name: str) -> Any:
        db = sqlite3.connect(path / "log.db", isolation_level=None)
        number = db.execute("SELECT number FROM session WHERE name=?", (name,)).fetchone()[0]
        floor, head = db.execute(WINDOW_SQL, (number,)).fetchone()
        assert floor - 1 <= 1 <= head
        return db


class SQLiteNormal(SQLite):
    """A power cut may cost the tail."""

    name = "sqlite-normal"


class SQLiteFull(SQLite):
    """Durable."""

    name = "sqlite-full"
    level = "FULL"
    durable = True


class LMDB(Contestant):
    """One record per event."""

    sync = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._env = self._open(path, self.sync)
        self._events = self._env.open_db(b"events")
        self._names = self._env.open_db(b"names")
        self._count = itertools.count()

    @staticmethod
    def _open(path: Path, sync: bool) -> lmdb.Environment:
        return lmdb.open(str(path), map_size=16 << 30, max_dbs=4, sync=sync, metasync=sync)

    def create(self, name: str) -> list[int]:
        number = next(self._count)
        with self._env.begin(write=True, db=self._names) as txn:
            txn.put(name.encode(), number.to_bytes(4, "big"))
        return [number, 0]

    def fill(self, session: list[int], payloads: Iterable[bytes]) -> None:
        self.commit([(session, payload) for payload in payloads])

    def do_append(self, session: list[int], payload: bytes) -> int:
        session[1] += 1
        with self._env.begin(write=True, db=self._events) as txn:
            txn.put(KEY.pack(*session), payload)
        return session[1]

    def commit(self, batch: Batch) -> None:
        with self._env.begin(write=True, db=self._events) as txn:
            for session, payload in batch:
                session[1] += 1
                txn.put(KEY.pack(*session), payload)

    def do_floor(self, session: list[int]) -> int:
        with self._env.begin(db=self._events) as txn, txn.cursor() as cursor:
            cursor.set_range(KEY.pack(session[0], 0))
            return int(KEY.unpack(cursor.key())[1])

    def do_verdict(self, session: list[int], cursor: int) -> bool:
        with self._env.begin(db=self._events) as txn:
            return _lmdb_window(txn, session[0], cursor)

    def do_replay(self, session: list[int], cursor: int) -> Iterator[tuple[int, bytes]]:
        number = session[0]
        with self._env.begin(db=self._events) as txn, txn.cursor() as at:
            at.set_range(KEY.pack(number, cursor + 1))
            for key, payload in at.iternext():
                owner, id = KEY.unpack(key)
                if owner != number:
                    return
                yield id, payload

    def close(self) -> None:
        self._env.sync(True)
        self._env.close()

    @classmethod
    def open_and_ask(cls, path: Path, name: str) -> Any:
        env = cls._open(path, cls.sync)
        events, names = env.open_db(b"events"), env.open_db(b"names")
        with env.begin(db=events) as txn:
            number = int.from_bytes(txn.get(name.encode(), db=names), "big")
            assert _lmdb_window(txn, number, 1)
        return env


def _lmdb_window(txn: lmdb.Transaction, number: int, asked: int) -> bool:
    with txn.cursor() as cursor:
        cursor.set_range(KEY.pack(number, 0))
        floor = KEY.unpack(cursor.key())[1]
        if cursor.set_range(KEY.pack(number + 1, 0)):
            cursor.prev()
        else:
            cursor.last()
        head = KEY.unpack(cursor.key())[1]
    return bool(floor - 1 <= asked <= head)


class LMDBNoSync(LMDB):
    """A power cut may cost more than the tail: the file itself."""

    name = "lmdb-nosync"


class LMDBSync(LMDB):
    """Durable."""

    name = "lmdb-sync"
    sync = True
    durable = True


class RocksDB(Contestant):
    """One record per event; the ids in memory."""

    sync = False

    def __init__(self, path: Path) -> None:
        from rocksdict import Options, Rdict, WriteOptions

        super().__init__(path)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._db = Rdict(str(path), options)
        self._write = WriteOptions()
        self._write.sync = self.sync
        self._db.set_write_options(self._write)
        self._count = itertools.count()

    def create(self, name: str) -> list[int]:
        number = next(self._count)
        self._db[b"n" + name.encode()] = number.to_bytes(4, "big")
        return [number, 0]

    def fill(self, session: list[int], payloads: Iterable[bytes]) -> None:
        for part in parts_of(payloads):
            self.commit([(session, payload) for payload in part])

    def do_append(self, session: list[int], payload: bytes) -> int:
        session[1] += 1
        self._db[b"e" + KEY.pack(*session)] = payload
        return session[1]

    def commit(self, batch: Batch) -> None:
        from rocksdict import WriteBatch

        out = WriteBatch(raw_mode=True)
        for session, payload in batch:
            session[1] += 1
            out[b"e" + KEY.pack(*session)] = payload
        self._db.write(out)

    def do_floor(self, session: list[int]) -> int:
        at = self._db.iter()
        at.seek(b"e" + KEY.pack(session[0], 0))
        return int(KEY.unpack(at.key()[1:])[1])

    def do_verdict(self, session: list[int], cursor: int) -> bool:
        return _rocks_window(self._db, session[0], cursor)

    def do_replay(self, session: list[int], cursor: int) -> Iterator[tuple[int, bytes]]:
        start, stop = b"e" + KEY.pack(session[0], cursor + 1), b"e" + KEY.pack(session[0] + 1, 0)
        for key, payload in self._db.items(from_key=start):
            if key >= stop:
                return
            yield int.from_bytes(key[5:], "big"), payload

    def close(self) -> None:
        self._db.close()

    @classmethod
    def open_and_ask(cls, path: Path, name: str) -> Any:
        from rocksdict import Options, Rdict

        db = Rdict(str(path), Options(raw_mode=True))
        assert _rocks_window(db, int.from_bytes(db[b"n" + name.encode()], "big"), 1)
        return db


def _rocks_window(db: Any, number: int, asked: int) -> bool:
    at = db.iter()
    at.seek(b"e" + KEY.pack(number, 0))
    floor = KEY.unpack(at.key()[1:])[1]
    at.seek_for_prev(b"e" + KEY.pack(number, HEAD_MAX))
    return bool(floor - 1 <= asked <= KEY.unpack(at.key()[1:])[1])


class RocksDBNoSync(RocksDB):
    """A power cut may cost the tail."""

    name = "rocksdb-nosync"


class RocksDBSync(RocksDB):
    """Durable."""

    name = "rocksdb-sync"
    sync = True
    durable = True


PEERS: tuple[type[Contestant], ...] = (
    Deque,
    ExampleStore,
    SQLiteNormal,
    SQLiteFull,
    LMDBNoSync,
    LMDBSync,
    RocksDBNoSync,
    RocksDBSync,
)


class GroupCommit:
    """The hand-off that a peer needs for concurrent appenders under asyncio: a thread, a commit per batch.

    Whatever queued up during the last commit is the next batch; one wake-up of the loop per batch.
    """

    def __init__(self, commit: Callable[[Batch], None]) -> None:
        self._commit = commit
        self._queued: list[tuple[Any, bytes, asyncio.Future[None]]] = []
        self._some = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def append(self, session: Any, payload: bytes) -> None:
        """Durable when this returns."""
        future = asyncio.get_running_loop().create_future()
        self._queued.append((session, payload, future))
        self._some.set()
        await future

    def _run(self) -> None:
        while not self._stopping:
            self._some.wait()
            self._some.clear()
            batch, self._queued = self._queued, []
            if batch:
                self._commit([(session, payload) for session, payload, _ in batch])
                futures = [future for _, _, future in batch]
                futures[0].get_loop().call_soon_threadsafe(_resolve, futures)

    def close(self) -> None:
        """Join the thread."""
        self._stopping = True
        self._some.set()
        self._thread.join()


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
