"""`replaylog reap`: drop the events of a session and leave its tombstone."""

from __future__ import annotations

from typing import Annotated

import typer

from replaylog.cli._common import Dir, Exit, Json, fail, opened, print_json

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The session.", show_default=False)]
Prefix = Annotated[
    str | None, typer.Option(help="All sessions whose names begin so, in one commit.", show_default=False)
]
Reason = Annotated[str, typer.Option(help="Kept in the tombstone.")]


def run(
    directory: Dir, name: Name = None, prefix: Prefix = None, reason: Reason = "", as_json: Json = False
) -> None:
    """Reap a session: readers are then told 410, not 404."""
    if (name is None) == (prefix is None):
        fail(Exit.USAGE, "name a session or give --prefix, one of the two")
    with opened(directory, mode="w") as log:
        if name is not None:
            log.reap(name, reason=reason)
        else:
            log.reap(prefix=prefix, reason=reason)
    if as_json:
        print_json({"name": name, "prefix": prefix, "reason": reason})
