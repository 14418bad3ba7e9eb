"""`replaylog tail`: print a session's events, also while another process writes them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replaylog._cursor import Origin
from replaylog.cli._common import Dir, Json, Name, as_fields, cursor_of, opened, print_json, printable

if TYPE_CHECKING:
    from replaylog import Event

LOOK_AGAIN_S = 0.3

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
    show = _show_json if as_json else _show
    try:
        for event in _events(directory, name, cursor_of(cursor), follow=follow):
            show(event)
    except KeyboardInterrupt:  # the way to leave --follow
        raise typer.Exit(0) from None


def _events(directory: Path, name: str, cursor: str | Origin, *, follow: bool) -> Iterator[Event]:
    """A view is of the moment it was opened: to follow is to open again and resume from the last event."""
    while True:
        with opened(directory, mode="r") as log, log.session(name).resume(cursor) as replay:
            cursor = replay.verdict.from_token or cursor
            for event in replay:
                yield event
                cursor = event.cursor
            if not follow or replay.verdict.ended:
                return
        time.sleep(LOOK_AGAIN_S)


def _show_json(event: Event) -> None:
    print_json(as_fields(event))


def _show(event: Event) -> None:
    at = time.strftime("%H:%M:%S", time.localtime(event.time_ns / 1e9))
    print(f"{event.id:>6}  {at}  {printable(event.kind)}  {printable(event.payload)}", flush=True)
