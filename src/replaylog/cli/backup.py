"""`replaylog backup`: a copy of a log that may be in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replaylog.cli._common import Dir, Exit, Json, fail, opened, print_json

To = Annotated[Path, typer.Argument(metavar="TO", help="The new directory.", show_default=False)]


def run(directory: Dir, to: To, as_json: Json = False) -> None:
    """Copy a log to a new directory, and verify the copy."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        fail(Exit.USAGE, f"{to} is not empty: name a new directory")
    with opened(directory, mode="r") as log:
        log.backup(str(to))
    with opened(to, mode="r") as copy:
        problems = copy.verify()
    if as_json:
        print_json({"ok": not problems, "to": str(to), "problems": problems})
    else:
        print("\n".join(problems) or f"ok: {to}")
    raise typer.Exit(Exit.NO if problems else Exit.YES)
