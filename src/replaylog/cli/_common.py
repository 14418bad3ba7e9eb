"""What the verbs share: opening a log, exit codes, output. No verb imports another."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from replaylog._cursor import Origin
from replaylog._errors import CorruptLog, FormatMismatch, LogLocked, ReplayLogError

if TYPE_CHECKING:
    from replaylog import Event, Log

__all__ = [
    "Dir",
    "Exit",
    "Json",
    "Name",
    "as_fields",
    "cursor_of",
    "fail",
    "hex_epoch",
    "opened",
    "print_json",
    "printable",
]

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="The log directory.", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The session's name.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Report as JSON.")]

_ORIGINS = {origin.value: origin for origin in Origin}


class Exit(IntEnum):
    YES = 0
    NO = 1
    USAGE = 2
    UNREADABLE = 3


def fail(code: Exit, sentence: str) -> NoReturn:
    """Say why on stderr and leave."""
    print(f"replaylog: {sentence}", file=sys.stderr)
    raise typer.Exit(code)


@contextmanager
def opened(path: Path | None, *, mode: Literal["r", "w"], **named: Any) -> Iterator[Log]:
    """The log in `path`. Its errors become a sentence and an exit code, not a traceback."""
    import replaylog

    if path is not None and not path.is_dir():
        fail(Exit.UNREADABLE, f"{path} is not a directory: name the directory of a log")
    try:
        with replaylog.open(None if path is None else str(path), mode=mode, **named) as log:
            yield log
    except BrokenPipeError:  # whoever read our output has left: not a fault of the log
        raise
    except (CorruptLog, FormatMismatch, LogLocked, OSError) as error:
        fail(Exit.UNREADABLE, str(error))
    except ReplayLogError as error:
        fail(Exit.NO, str(error))


def cursor_of(text: str) -> str | Origin:
    """A cursor of the command line: what goes over the wire, or `start`, `floor`, `head`."""
    return _ORIGINS.get(text, text)


def hex_epoch(epoch: int | None) -> str | None:
    return None if epoch is None else f"{epoch:016x}"


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")), flush=True)


def as_fields(event: Event) -> dict[str, Any]:
    """An event for `--json`. Bytes do not fit JSON and go as base64 under another name."""
    fields: dict[str, Any] = {
        "id": event.id,
        "kind": event.kind,
        "cursor": event.cursor,
        "time_ns": event.time_ns,
    }
    if isinstance(event.payload, bytes):
        fields["payload_base64"] = base64.b64encode(event.payload).decode()
    else:
        fields["payload"] = event.payload
    return fields


def printable(payload: Any) -> str:
    """A payload on one line of a terminal; control characters escaped, they may come from anyone."""
    if isinstance(payload, bytes):
        try:
            payload = payload.decode()
        except UnicodeDecodeError:
            return "base64:" + base64.b64encode(payload).decode()
    elif not isinstance(payload, str):
        payload = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in payload)
