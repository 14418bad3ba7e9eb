"""`replaylog plan`: does this depth cover this outage? A face of `replaylog._plan`; reads no log."""

from __future__ import annotations

from typing import Annotated

import typer

from replaylog._plan import Plan, plan
from replaylog.cli._common import Exit, Json, fail, print_json


def _seconds(text: str) -> float | None:
    return typer.Option(metavar="SECONDS", help=text, show_default=False)  # type: ignore[no-any-return]


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
    --idle-timeout), or both.
    """
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
