"""The physical limits of this machine, measured beside everything else.

`load()` compiles _limits.pyx once per process into a temporary directory. A recycled file is one whose blocks
were written before: its flush needs no journal commit of the file system; a growing file's does.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
RECYCLED_BYTES = 64 << 20


@functools.cache
def load() -> ModuleType:
    """The compiled _limits module."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    build = tempfile.TemporaryDirectory(prefix="replaylog-limits-")
    extension = Extension(
        "_limits",
        [str(HERE / "_limits.pyx")],
        include_dirs=[str(HERE.parent / "ext" / "replaylog")],
        extra_compile_args=["-O3", "-fno-strict-aliasing", "-w"],
    )
    command = build_ext(Distribution({"ext_modules": cythonize([extension], build_dir=build.name, quiet=True)}))
    command.build_lib = command.build_temp = build.name
    command.finalize_options()
    command.run()
    path = next(Path(build.name).glob("_limits*.so"))
    spec = importlib.util.spec_from_file_location("_limits", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_limits"] = module
    spec.loader.exec_module(module)
    module._build = build  # the directory lives as long as the module
    return module


class RecycledFile:
    """A file that was written once, to be written over."""

    def __init__(self, path: Path, size: int = RECYCLED_BYTES) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.size = size
        self.at = 0
        for at in range(0, size, 1 << 20):
            os.pwrite(self.fd, b"\0" * (1 << 20), at)
        os.fsync(self.fd)

    def append(self, block: bytes) -> None:
        """One write, one flush."""
        if self.at + len(block) > self.size:
            self.at = 0
        load().write_and_flush(self.fd, block, self.at)
        self.at += len(block)

    def close(self) -> None:
        """Close it."""
        os.close(self.fd)


class GrowingFile(RecycledFile):
    """The same on a file that grows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 0)
        self.size = 1 << 62


class Flusher:
    """One flush per batch into a recycled file, behind a hand-off: the limit of durable appends.

    leads=True: among threads, whoever comes first writes for all. Otherwise a thread writes, `commit` waits
    for it, and `acommit` is the same under asyncio: an eventfd, one future per waiter.
    """

    def __init__(self, path: Path, *, leads: bool) -> None:
        self._file = RecycledFile(path)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        bell = -1 if leads else self._bell
        self._core = load().GroupFlush(self._file.fd, self._file.size, leads=leads, bell=bell)
        self.commit = self._core.commit
        self._waiting: dict[int, list[asyncio.Future[None]]] = defaultdict(list)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = None if leads else threading.Thread(target=self._core.run, daemon=True)
        if self._thread is not None:
            self._thread.start()

    async def acommit(self, payload: bytes) -> None:
        """Durable when this returns."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            loop.add_reader(self._bell, self._rung)
        seq = self._core.commit_nowait(payload)
        future = loop.create_future()
        self._waiting[seq].append(future)
        await future

    def _rung(self) -> None:
        os.eventfd_read(self._bell)
        done = self._core.done()
        for seq in [seq for seq in self._waiting if seq <= done]:
            for future in self._waiting.pop(seq):
                if not future.done():
                    future.set_result(None)

    @property
    def flushes(self) -> int:
        """How many batches were written."""
        return int(self._core.flushes)

    def close(self) -> None:
        """Join the thread, close the file."""
        self._core.stop()
        if self._thread is not None:
            self._thread.join()
        self._file.close()
        os.close(self._bell)


class NothingStore:
    """asyncio alone: an await whose answer comes with the next turn of the loop."""

    async def acommit(self, payload: bytes) -> None:
        """One trip through the loop."""
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, None)
        await future
