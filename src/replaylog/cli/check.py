"""`replaylog check`: can a reader resume from this cursor? The exit code is the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from replaylog._verdict import wire_of
from replaylog.cli._common import Dir, Exit, Json, Name, cursor_of, hex_epoch, opened, print_json

if TYPE_CHECKING:
    from replaylog import Verdict

Cursor = Annotated[
    str,
    typer.Argument(metavar="CURSOR", help="A token, an integer, or start, floor, head.", show_default=False),
]


def run(directory: Dir, name: Name, cursor: Cursor, as_json: Json = False) -> None:
    """Can a reader resume from CURSOR? Exit 0 resumable or at head, 1 not, 2 usage, 3 unreadable."""
    with opened(directory, mode="r") as log:
        verdict = log.check(name, cursor_of(cursor))
    if as_json:
        print_json(fields(verdict))
    else:
        print(sentence(verdict))
    raise typer.Exit(Exit.YES if verdict.ok else Exit.NO)


def sentence(verdict: Verdict) -> str:
    """The verdict and its numbers on one line."""
    return f"{verdict.reason.value}: {verdict.explanation}"


def fields(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON, under the names that the wire uses."""
    return {
        "verdict": verdict.reason.value,
        "ok": verdict.ok,
        "status": wire_of(verdict.reason).status,
        "cursor": verdict.cursor,
        "floor": verdict.floor,
        "head": verdict.head,
        "epoch": hex_epoch(verdict.epoch),
        "state": verdict.state,
        "missing": verdict.missing,
        "lost": verdict.lost,
        "proof": verdict.proof,
        "session_durable": verdict.session_durable,
        "restart_from": verdict.restart_from,
        "detail": verdict.explanation,
    }
