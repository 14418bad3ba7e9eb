"""`replaylog plan`: does this depth cover this outage? Arithmetic only; no log is read.

Guarantees: answers for the worst moment. A reader is resumable after an outage when the events that
came meanwhile still fit into the window, by each limit on its own.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import typer

from replaylog.cli._common import Exit, Json, print_json

Rate = Annotated[float, typer.Option(min=0, help="Events per second at the busiest.", show_default=False)]
Outage = Annotated[
    float, typer.Option(min=0, help="The longest that a reader is away, in seconds.", show_default=False)
]
Burst = Annotated[int, typer.Option(min=0, help="Events that may come at once on top of the rate.")]
Events = Annotated[int | None, typer.Option(min=1, help="Retention by number.", show_default="no limit")]
EventBytes = Annotated[int, typer.Option(min=1, help="Bytes of the largest usual event.")]
Age = Annotated[
    float | None, typer.Option(min=0, help="Retention by age, in seconds.", show_default="no limit")
]
Keepalive = Annotated[float, typer.Option(min=0, help="The server's keepalive interval, in seconds.")]
Stall = Annotated[float, typer.Option(min=0, help="The server's stall limit, in seconds.")]
Idle = Annotated[
    float | None,
    typer.Option(min=0, help="The client's idle timeout, in seconds.", show_default="not judged"),
]


class Limit(NamedTuple):
    """One retention limit against the outage: `covers_s` is how long it holds at the given rate."""

    name: str
    has: float
    needs: float
    covers_s: float

    @property
    def ok(self) -> bool:
        return self.has >= self.needs


def run(
    rate: Rate,
    outage: Outage,
    burst: Burst = 0,
    events: Events = None,
    bytes_: Annotated[int | None, typer.Option("--bytes", min=1, help="Retention by bytes.")] = None,
    event_bytes: EventBytes = 1024,
    age: Age = None,
    keepalive: Keepalive = 15.0,
    stall: Stall = 30.0,
    idle_timeout: Idle = None,
    as_json: Json = False,
) -> None:
    """Does this depth cover this outage? Exit 0 when every limit does, 1 when one does not."""
    limits = judge(rate, outage, burst, events=events, bytes_max=bytes_, event_bytes=event_bytes, age_s=age)
    idle_needs_s = keepalive + stall
    idle_ok = idle_timeout is None or idle_timeout > idle_needs_s
    ok = idle_ok and all(limit.ok for limit in limits)
    if as_json:
        print_json(_fields(ok, limits, idle_timeout, idle_needs_s, idle_ok))
    else:
        _print(ok, limits, idle_timeout, idle_needs_s, idle_ok)
    raise typer.Exit(Exit.YES if ok else Exit.NO)


def judge(
    rate: float,
    outage_s: float,
    burst: int,
    *,
    events: int | None,
    bytes_max: int | None,
    event_bytes: int,
    age_s: float | None,
) -> list[Limit]:
    """Each given limit against what an outage needs."""
    # A closed interval of length t holds one event more than t * rate.
    missed = math.floor(rate * outage_s) + 1 + burst
    limits = []
    if events is not None:
        limits.append(Limit("events", events, missed, _covers_s(events, rate, burst)))
    if bytes_max is not None:
        fit = bytes_max // event_bytes
        limits.append(Limit("bytes", bytes_max, missed * event_bytes, _covers_s(fit, rate, burst)))
    if age_s is not None:
        limits.append(Limit("age", age_s, math.nextafter(outage_s, math.inf), age_s))
    return limits


def _covers_s(depth: int, rate: float, burst: int) -> float:
    if depth <= burst:
        return 0.0
    return (depth - burst - 1) / rate if rate else math.inf


def _fields(
    ok: bool, limits: list[Limit], idle_s: float | None, idle_needs_s: float, idle_ok: bool
) -> dict[str, Any]:
    rows = [
        {
            "limit": limit.name,
            "has": limit.has,
            "needs": limit.needs,
            "covers_s": limit.covers_s if math.isfinite(limit.covers_s) else None,
            "ok": limit.ok,
        }
        for limit in limits
    ]
    idle = {"has_s": idle_s, "needs_more_than_s": idle_needs_s, "ok": idle_ok}
    return {"ok": ok, "limits": rows, "idle_timeout": idle}


def _print(ok: bool, limits: list[Limit], idle_s: float | None, idle_needs_s: float, idle_ok: bool) -> None:
    for limit in limits:
        print(
            f"{limit.name}: {limit.has:g}, the outage needs {limit.needs:g}; covers {limit.covers_s:g} s: "
            f"{'ok' if limit.ok else 'too little'}"
        )
    if not limits:
        print("no limit given: everything is retained, as long as there is room")
    if idle_s is not None:
        print(
            f"idle timeout: {idle_s:g} s, must exceed keepalive + stall = {idle_needs_s:g} s: "
            f"{'ok' if idle_ok else 'too short: silence would be taken for loss'}"
        )
    print("covered" if ok else "not covered")
