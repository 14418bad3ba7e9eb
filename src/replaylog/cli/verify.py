"""`replaylog verify`: is what is stored what was written?"""

from __future__ import annotations

import typer

from replaylog.cli._common import Dir, Exit, Json, opened, print_json


def run(directory: Dir, as_json: Json = False) -> None:
    """Read every stored event and compare it with its tag. Exit 0 when all is well, 1 when not."""
    with opened(directory, mode="r") as log:
        problems = log.verify()
    if as_json:
        print_json({"ok": not problems, "problems": problems})
    else:
        print("\n".join(problems) or "ok")
    raise typer.Exit(Exit.NO if problems else Exit.YES)
