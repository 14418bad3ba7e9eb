"""`replaylog tail`: print a session's events."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from replaylog.cli._common import Dir, Json, Name, as_fields, cursor_of, opened, print_json, printable

if TYPE_CHECKING:
    from replaylog import Event

From = Annotated[
    str, typer.Option("--from", metavar="CURSOR", help="A token, an integer, or start, floor, head.")
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with live events until the session ends.")
]


def run(
    directory: Dir, name: Name, cursor: From = "floor", follow: Follow = False, as_json: Json = False
) -> None:
    """Print the events after CURSOR. A cursor that cannot be served is refused with exit 1."""
    with opened(directory, mode="r") as log:
        session = log.session(name)
        reader = session.follow if follow else session.resume
        with reader(cursor_of(cursor)) as events:
            try:
                _print(events, as_json)
            except KeyboardInterrupt:  # the way to leave --follow
                raise typer.Exit(0) from None


def _print(events: Iterable[Event], as_json: bool) -> None:
    for event in events:
        if as_json:
            print_json(as_fields(event))
        else:
            at = time.strftime("%H:%M:%S", time.localtime(event.time_ns / 1e9))
            print(f"{event.id:>6}  {at}  {printable(event.kind)}  {printable(event.payload)}", flush=True)
