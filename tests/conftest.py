"""What the tests share: a clock that stands still, and one log per durability."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# model.py, support.py and the like are siblings; --import-mode=importlib leaves them off the path.
sys.path.insert(0, str(Path(__file__).parent))

from support import DISK, DURABILITIES, FakeClock, open_log

settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("default")


@pytest.fixture(params=DURABILITIES)
def durability(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=DISK)
def disk(request: pytest.FixtureRequest) -> str:
    """The durabilities that outlive a process."""
    return request.param


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open logs in this test's directory; what is still open at the end is closed."""
    logs = []

    def open_one(durability: str, name: str = "log", **settings: Any) -> Any:
        log = open_log(durability, tmp_path / name, **settings)
        logs.append(log)
        return log

    yield open_one
    for log in logs:
        log.close()


@pytest.fixture
def log(opener: Callable[..., Any], durability: str) -> Any:
    """A log without limits, in each durability."""
    return opener(durability)


@pytest.fixture
def memory_log(opener: Callable[..., Any]) -> Any:
    """A log without a disk, for claims that durability has no part in."""
    return opener("memory")
