"""The Typer application: registers the verbs and nothing else."""

from __future__ import annotations

import typer

from replaylog.cli import append, backup, check, demo, plan, reap, serve, sessions, tail, verify

__all__ = ["app"]

app = typer.Typer(
    name="replaylog",
    help="An event log that proves a client can resume before any stream opens.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for verb in (serve, demo, sessions, check, tail, append, verify, backup, reap, plan):
    app.command(name=verb.__name__.rpartition(".")[2])(verb.run)
