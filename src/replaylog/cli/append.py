"""`replaylog append`: put events into a session, from an argument or from stdin."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replaylog.cli._common import Dir, Exit, Json, Name, fail, opened, print_json

if TYPE_CHECKING:
    from replaylog import Session

BATCH = 1000


class As(StrEnum):
    """How the input becomes a payload."""

    TEXT = "text"
    JSON = "json"
    BYTES = "bytes"


Payload = Annotated[
    str | None,
    typer.Argument(metavar="[PAYLOAD]", help="The event; stdin when left out.", show_default=False),
]
Kind = Annotated[str, typer.Option(help="The event's kind.")]
Type = Annotated[As, typer.Option("--as", help="How to read the payload.")]
Lines = Annotated[bool, typer.Option("--lines", help="Each line of stdin is an event.")]
Create = Annotated[bool, typer.Option("--create", help="Create the session if it is not there.")]
Key = Annotated[
    str | None, typer.Option(help="Idempotency key: the same key appends once.", show_default=False)
]


def run(
    directory: Dir,
    name: Name,
    payload: Payload = None,
    kind: Kind = "message",
    form: Type = As.TEXT,
    lines: Lines = False,
    create: Create = False,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Append to a session; prints the id once the event is durable."""
    if lines and (payload is not None or key is not None):
        fail(Exit.USAGE, "--lines reads stdin and takes neither PAYLOAD nor --key")
    if create:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with opened(directory, mode="w") as log:
        session = log.create(name, exist_ok=True) if create else log.session(name)
        try:
            ids = _all_lines(session, kind, form) if lines else [_one(session, payload, kind, form, key)]
        except (ValueError, TypeError) as error:
            fail(Exit.USAGE, str(error))
        cursor = session.cursor
    if as_json:
        print_json(
            {"name": name, "first": min(ids, default=None), "id": max(ids, default=None), "cursor": cursor}
        )
    elif ids:
        print(max(ids))


def _one(session: Session, payload: str | None, kind: str, form: As, key: str | None) -> int:
    raw = sys.stdin.buffer.read() if payload is None else payload.encode()
    id: int = session.append(_value(raw, form), kind=kind, key=key)
    return id


def _all_lines(session: Session, kind: str, form: As) -> list[int]:
    """Batch by batch; returns the first and the last id."""
    ids: list[int] = []
    batch: list[tuple[Any, str]] = []
    for line in sys.stdin.buffer:
        batch.append((_value(line.removesuffix(b"\n"), form), kind))
        if len(batch) == BATCH:
            ids += _ends(session.extend(batch))
            batch = []
    return ids + _ends(session.extend(batch)) if batch else ids


def _ends(ids: range) -> list[int]:
    return [ids[0], ids[-1]]


def _value(raw: bytes, form: As) -> Any:
    if form is As.BYTES:
        return raw
    return json.loads(raw) if form is As.JSON else raw.decode()
