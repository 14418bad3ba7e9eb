"""`replaylog plan`: does this depth cover this outage? A face of `replaylog._plan`.

Reads a log only where one is named, and then only the numbers of that session.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from replaylog._plan import Plan, plan, plan_of
from replaylog.cli._common import Exit, Json, fail, opened, print_json


def _seconds(text: str) -> float | None:
    return typer.Option(metavar="SECONDS", help=text, show_default=False)  # type: ignore[no-any-return]


Directory = Annotated[
    Path | None,
    typer.Argument(metavar="DIR", help="With NAME: judge that session at its own rate.", show_default=False),
]
Name = Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)]
Events = Annotated[int | None, typer.Option(help="Depth: events retained.", show_default=False)]
Interval = Annotated[
    float | None, _seconds("The shortest time between two events, averaged over the window.")
]
Rate = Annotated[float | None, typer.Option(help="Instead: events per second, at most.", show_default=False)]
Outage = Annotated[float | None, _seconds("The longest that a reader is away.")]
Keepalive = Annotated[float | None, _seconds("The server's keepalive interval.")]
Stall = Annotated[float | None, _seconds("The server's stall limit.")]
Idle = Annotated[float | None, _seconds("The client's idle timeout.")]


def run(
    directory: Directory = None,
    name: Name = None,
    events: Events = None,
    interval: Interval = None,
    rate: Rate = None,
    outage: Outage = None,
    keepalive: Keepalive = None,
    stall: Stall = None,
    idle_timeout: Idle = None,
    as_json: Json = False,
) -> None:
    """Does this depth cover this outage? Exit 0 when a reader can resume, 1 when not.

    Judges the window (--events, --interval or --rate, --outage), the idle timeout (--keepalive, --stall,
    --idle-timeout), or both. With DIR NAME: the window of that session at the rate that it has had
    (--outage, and --events if retention allows more than is retained now).
    """
    if directory is not None:
        if name is None or outage is None:
            fail(Exit.USAGE, "a live session takes DIR NAME and --outage SECONDS")
        given = (interval, rate, keepalive, stall, idle_timeout)
        if any(setting is not None for setting in given):
            fail(Exit.USAGE, "a live session has its own rate: give --outage, and perhaps --events")
        _report(_live(directory, name, outage, events), as_json=as_json)
    if rate is not None:
        if interval is not None:
            fail(Exit.USAGE, "--interval and --rate say the same: give one of them")
        if rate <= 0:
            fail(Exit.USAGE, f"--rate is {rate:g}: it must be above 0")
        interval = 1 / rate
    try:
        judged = plan(
            depth=events,
            min_interval_s=interval,
            disconnect_max_s=outage,
            keepalive_s=keepalive,
            stall_max_s=stall,
            idle_timeout_s=idle_timeout,
        )
    except (TypeError, ValueError) as error:
        fail(Exit.USAGE, _in_flags(str(error)))
    _report(judged, as_json=as_json)


def _live(directory: Path, name: str, outage: float, events: int | None) -> Plan:
    with opened(directory, mode="r") as log:
        stats = log.session(name).stats()
    try:
        return plan_of(stats, disconnect_max_s=outage, depth=events)
    except (TypeError, ValueError) as error:
        fail(Exit.USAGE, _in_flags(str(error)))


def _report(judged: Plan, *, as_json: bool) -> NoReturn:
    if as_json:
        print_json(_fields(judged))
    else:
        print(judged)
    raise typer.Exit(Exit.YES if judged.ok else Exit.NO)


_FLAGS = {
    "depth": "--events",
    "min_interval_s": "--interval",
    "disconnect_max_s": "--outage",
    "keepalive_s": "--keepalive",
    "stall_max_s": "--stall",
    "idle_timeout_s": "--idle-timeout",
}


def _in_flags(sentence: str) -> str:
    for name, flag in _FLAGS.items():
        sentence = sentence.replace(name + "=", flag).replace(name, flag)
    return sentence


def _fields(judged: Plan) -> dict[str, object]:
    numbers = {name: value for name, value in judged._asdict().items() if name not in ("window", "idle")}
    conditions = [condition._asdict() | {"holds": condition.holds} for condition in judged.conditions]
    return {"ok": judged.ok, "conditions": conditions, **numbers}
