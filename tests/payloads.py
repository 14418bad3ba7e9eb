"""Payloads and kinds that break framings, and those that must be refused."""

from __future__ import annotations

import collections
import enum
from typing import Any, NamedTuple

# The strings of the reported case "lines-in-payloads" and their relatives.
TEXTS: list[str] = [
    "a\nb", "a\r\nb", "a\rb", "\n", "\r", "\r\n", "", " leading space", "  two", "trailing ", "id: 99",
    "data: x\n\nid: 7\n\n", "event: replay-end\ndata: {}\n\n", ": comment", "retry: 1", "\u2028", "\u2029",
    "\u0085", "a\u2028b\nc", "\n" * 65536, "\n\n\n", "a\n", "\na", "\0", "a\0b", "\ufeff", "\ufeffdata: x",
    "\U0001f4a9", "\x0b\x0c", "\x1b[31m", "data", ":", "\tx", "x" * 100_000, "\u00e9" * 30_000,
]  # fmt: skip
BYTES: list[bytes] = [
    *(text.encode() for text in TEXTS), b"\xff", b"\xff\n\xfe", b"\xc3", b"\xed\xa0\x80",
    b"\xf5\x80\x80\x80", b"\xc0\x80", bytes(range(256)), b"\x80" * 5000, b"ok \xe2\x82", b"\xf0\x9f\x92\xa9",
]  # fmt: skip


def travels_verbatim(data: bytes) -> bool:
    """UTF-8 without CR stands in the frame as it is; anything else is one base64 line."""
    try:
        return "\r" not in data.decode()
    except UnicodeDecodeError:
        return False


KINDS_GOOD = [
    "message", "x", "", "error", "open", "progress", "replayed", "Replay", "REPLAY-x", "replay_x", " ",
    " x", "x ", "a:b", ":", "\u00e9" * 127, "x" * 255, "\u2028", "\t", "base64", "data", "my-replay-x",
    "\U0001f4a9",
]  # fmt: skip
KINDS_BAD = [
    "x\nid: 1", "\n", "x\r", "\r\n", "a\0", "\0", ";", "x;base64", "message;base64", "replay", "replay-",
    "replay-end", "replay-overrun", "x" * 256, "\u00e9" * 128, "\ud800", "x\udfff",
]  # fmt: skip


class Text(str):
    pass


class Number(enum.IntEnum):
    ONE = 1


class Pair(NamedTuple):
    a: int
    b: int


class Raw(bytes):
    pass


class Anything:
    pass


TYPES_BAD: list[Any] = [
    (1, 2), Pair(1, 2), {1}, frozenset(), bytearray(b"x"), memoryview(b"x"), 1j, Anything(), Anything, ...,
    range(3), float("nan"), float("inf"), float("-inf"), 2**63, -(2**63) - 1, 2**200, {1: "a"}, {None: 1},
    {True: 1}, {b"k": 1}, [b"bytes inside"], {"k": b"v"}, [(1,)], {"k": {1}}, [float("nan")],
    {"k": [2**63]}, {"a": {"b": [float("inf")]}}, Text("x"), Raw(b"x"), Number.ONE, [Text("x")],
    [Number.ONE], {Text("k"): 1}, collections.OrderedDict(a=1), collections.defaultdict(list),
    collections.Counter("a"),
]  # fmt: skip
SURROGATES_BAD: list[Any] = [
    "\ud800",
    "a\udfffb",
    ["\ud800"],
    {"k": "\udc80"},
    {"\udc80": 1},
    [[{"a": ["\ud83d"]}]],
]


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down; 0.0 and -0.0 differ."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return repr(a) == repr(b) if isinstance(a, float) else a == b
