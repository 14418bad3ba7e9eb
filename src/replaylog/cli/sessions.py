"""`replaylog sessions`: what is in a log directory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replaylog.cli._common import Dir, Json, hex_epoch, opened, print_json, printable

if TYPE_CHECKING:
    from replaylog import Log, SessionInfo

PAGE = 1000

Prefix = Annotated[str, typer.Option(help="Only names that begin so.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many.", show_default="all")]


def run(directory: Dir, prefix: Prefix = "", limit: Limit = None, as_json: Json = False) -> None:
    """List the sessions of a log, by name. With --json one object per line."""
    with opened(directory, mode="r") as log:
        rows = _rows(log, prefix, limit)
        if as_json:
            for row in rows:
                print_json(_fields(row))
        else:
            _table(rows)


def _rows(log: Log, prefix: str, limit: int | None) -> Iterator[SessionInfo]:
    after, left = None, limit
    while left is None or left > 0:
        page = log.sessions(prefix, after, PAGE if left is None else min(left, PAGE))
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].name
        left = None if left is None else left - len(page)


def _fields(row: SessionInfo) -> dict[str, Any]:
    return row._asdict() | {"epoch": hex_epoch(row.epoch)}


def _table(rows: Iterator[SessionInfo]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")
    for title in ("floor", "head", "retained"):
        table.add_column(title, justify="right")
    table.add_column("state")
    table.add_column("epoch", no_wrap=True)
    for row in rows:
        window = (row.floor, row.head, row.head - row.floor + 1)
        cells = (*map(str, window), row.state, hex_epoch(row.epoch) or "")
        table.add_row(Text(printable(row.name)), *cells)
    Console().print(table)
