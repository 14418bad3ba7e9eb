"""A server-sent events parser, written from the WHATWG text and from nothing else.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream

It stands in for every conforming client: what it hands out is what a browser would dispatch.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile("\r\n|\n|\r")


class Dispatched(NamedTuple):
    """One event as a browser would dispatch it."""

    type: str
    data: str
    last_event_id: str


def parse(stream: bytes) -> list[Dispatched]:
    """Every event that `stream` dispatches; an unfinished one at its end is dropped, as specified."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = _LINE_END.split(text)[:-1]
    events: list[Dispatched] = []
    type_buffer, data_buffer, last_id = "", "", ""
    for line in lines:
        if line == "":
            if data_buffer:
                events.append(Dispatched(type_buffer or "message", data_buffer.removesuffix("\n"), last_id))
            type_buffer, data_buffer = "", ""
            continue
        if line.startswith(":"):
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            type_buffer = value
        elif name == "data":
            data_buffer += value + "\n"
        elif name == "id" and "\0" not in value:
            last_id = value
    return events
