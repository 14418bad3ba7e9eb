"""`replaylog serve`: a log over HTTP, until SIGTERM.

Guarantees: the first line on stdout is the URL with the real port (JSON with `--json`), printed when
the server answers; loopback unless told otherwise, and then only with a token; every flag has its
`REPLAYLOG_*` variable.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from replaylog.cli._common import Exit, Json, fail, opened, print_json


class Durability(StrEnum):
    SYNC = "sync"
    RELAXED = "relaxed"
    MEMORY = "memory"


DirOrNone = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR", help="The log directory; none with --durability memory.", show_default=False
    ),
]
Host = Annotated[str, typer.Option(envvar="REPLAYLOG_HOST", help="The address to bind.")]
Port = Annotated[int, typer.Option(envvar="REPLAYLOG_PORT", min=0, max=65535, help="0 takes a free one.")]
Events = Annotated[
    int | None,
    typer.Option(
        envvar="REPLAYLOG_EVENTS",
        min=1,
        help="Depth: events per session.",
        show_default="as last served; 65,536 for a new log",
    ),
]
Bytes = Annotated[
    int | None,
    typer.Option(
        "--bytes", envvar="REPLAYLOG_BYTES", min=1, help="Bytes per session.", show_default="no limit"
    ),
]
Age = Annotated[
    float | None,
    typer.Option(envvar="REPLAYLOG_AGE", min=0, help="Age of events, in seconds.", show_default="no limit"),
]
Durable = Annotated[Durability, typer.Option(envvar="REPLAYLOG_DURABILITY", help="What 201 promises.")]
Memory = Annotated[
    int | None,
    typer.Option(
        envvar="REPLAYLOG_MEMORY",
        min=1,
        help="Bytes of memory for hot sessions.",
        show_default="the library's",
    ),
]
Keepalive = Annotated[
    float, typer.Option(envvar="REPLAYLOG_KEEPALIVE", min=0.01, help="Seconds of silence before a comment.")
]
Stall = Annotated[
    float,
    typer.Option(envvar="REPLAYLOG_STALL", min=0.01, help="Seconds that a write may block before the end."),
]
Grace = Annotated[
    float, typer.Option(envvar="REPLAYLOG_GRACE", min=0.1, help="Seconds from SIGTERM to exit.")
]
Token = Annotated[
    str | None,
    typer.Option(envvar="REPLAYLOG_TOKEN", help="Bearer token; needed off loopback.", show_default="none"),
]
Cors = Annotated[
    list[str] | None,
    typer.Option(envvar="REPLAYLOG_CORS", help="Origin of pages that may use this; repeatable, * may read."),
]
Allowed = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host", envvar="REPLAYLOG_ALLOWED_HOSTS", help="A further Host to answer to; repeatable."
    ),
]
AccessLog = Annotated[
    bool, typer.Option("--access-log", envvar="REPLAYLOG_ACCESS_LOG", help="Log requests, tickets redacted.")
]


def run(
    directory: DirOrNone = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    events: Events = None,
    bytes_: Bytes = None,
    age: Age = None,
    durability: Durable = Durability.SYNC,
    memory: Memory = None,
    keepalive: Keepalive = 15.0,
    stall: Stall = 30.0,
    grace: Grace = 5.0,
    token: Token = None,
    cors: Cors = None,
    allowed_host: Allowed = None,
    access_log: AccessLog = False,
    as_json: Json = False,
) -> None:
    """Serve a log over HTTP. The first line of the output is its URL."""
    try:
        from replaylog.asgi import Settings, _server
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        fail(Exit.USAGE, f"serving needs {error.name}: pip install 'replaylog[serve]'")
    from replaylog import Retention

    if not _server.is_loopback(host) and not token:
        fail(Exit.USAGE, f"{host} is not loopback: set REPLAYLOG_TOKEN (or --token) to a long random word")
    try:
        settings = Settings(
            token=token or None,
            allowed_hosts=_server.hosts_for(host, tuple(allowed_host or ())),
            cors=tuple(cors or ()),
            keepalive_s=keepalive,
            stall_max_s=stall,
        )
    except ValueError as error:
        fail(Exit.USAGE, str(error))
    path = _directory(directory, durability)
    named = {} if memory is None else {"memory_bytes": memory}
    given = events is not None or bytes_ is not None or age is not None
    retention = Retention(events=events, bytes=bytes_, age_s=age) if given else None
    try:
        sock = _server.listen(host, port, stall_max_s=stall)
    except OSError as error:
        fail(Exit.NO, f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port")

    def ready(url: str) -> None:
        where = None if path is None else str(path)
        if as_json:
            print_json({"url": url, "pid": os.getpid(), "path": where, "durability": durability.value})
        else:
            print(url, flush=True)
            print(f"replaylog: serving {where or 'memory'}, {durability.value}", file=sys.stderr, flush=True)

    with opened(path, mode="w", retention=retention, durability=durability.value, **named) as log:
        _server.run(log, settings, sock, grace_s=grace, access_log=access_log, ready=ready)
        log.close(timeout_s=grace * 0.2)


def _directory(directory: Path | None, durability: Durability) -> Path | None:
    if durability is Durability.MEMORY:
        if directory is not None:
            fail(Exit.USAGE, "--durability memory writes no disk: leave DIR out")
        return None
    if directory is None:
        fail(Exit.USAGE, "name a log directory, or choose --durability memory")
    if not directory.exists():
        directory.mkdir(parents=True, mode=0o700)
    return directory
