"""replaylog as a contestant: in memory, relaxed, durable; and a durable log whose events are on disk only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from baselines import Contestant, parts_of

import replaylog
from replaylog import Retention


class Ours(Contestant):
    """The public interface, nothing else."""

    durability = "memory"
    append = "append(payload)"
    floor = "session.floor"
    head = "session.head"
    verdict = "check(cursor)"
    replay = "for event in resume(cursor): pass"
    first = "next(resume(cursor))"
    sse = "for part in resume(cursor).frames(): pass"
    sse_whole = "resume(cursor).take_frames(1 << 40)"

    def __init__(self, path: Path, *, retained: int = 1 << 20) -> None:
        super().__init__(path)
        self._settings = {"memory_bytes": 4 << 30, "retention": Retention(events=retained)}
        self.log = replaylog.open(self._where(), durability=self.durability, **self._settings)

    def _where(self) -> Path | None:
        return self.path / "log" if self.on_disk else None

    def names(self, session: replaylog.Session, id: int) -> dict[str, Any]:
        token = session.resume(id).verdict.from_token
        return {
            "session": session,
            "log": self.log,
            "name": session.name,
            "append": session.append,
            "check": session.check,
            "resume": session.resume,
            "cursor": id,
            "token": token,
        }

    def create(self, name: str) -> replaylog.Session:
        return self.log.create(name)

    def create_all(self, names: Iterable[str]) -> list[replaylog.Session]:
        out = [self.log.create(name, wait=False) for name in names]
        self.log.flush()
        return out

    def fill(self, session: replaylog.Session, payloads: Iterable[bytes]) -> None:
        for part in parts_of(payloads):
            session.extend([(payload, "message") for payload in part])

    def close(self) -> None:
        self.log.close()


class OursMemory(Ours):
    """No disk."""

    name = "ours-memory"
    on_disk = False


class OursRelaxed(Ours):
    """Written behind."""

    name = "ours-relaxed"
    durability = "relaxed"


class OursSync(Ours):
    """Durable before it returns, events also in memory."""

    name = "ours-sync"
    durability = "sync"
    durable = True

    @classmethod
    def open_and_ask(cls, path: Path, name: str) -> Any:
        log = replaylog.open(path / "log")
        assert log.check(name, 1)
        return log


class OursWarm(OursSync):
    """The same directory in a process that has just opened it: nothing in memory, pages in the cache."""

    name = "ours-from-disk"

    def reopen(self, name: str) -> replaylog.Session:
        """Close, open, and the session again."""
        self.log.close()
        self.log = replaylog.open(self._where(), durability=self.durability, **self._settings)
        return self.log.session(name)


OURS: tuple[type[Ours], ...] = (OursMemory, OursRelaxed, OursSync, OursWarm)
