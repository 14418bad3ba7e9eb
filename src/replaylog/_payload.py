"""What may be appended: payloads, kinds, names, keys, meta. Checked before anything is touched.

Guarantees: what `encode_json` accepts comes back equal and as the same type; what it refuses would not
have. Pure; any thread.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

__all__ = [
    "JSON_DEPTH_MAX",
    "KEY_BYTES_MAX",
    "KIND_BYTES_MAX",
    "META_BYTES_MAX",
    "NAME_BYTES_MAX",
    "check_key",
    "check_kind",
    "check_name",
    "encode_json",
    "name_ok",
]

NAME_BYTES_MAX = 255
KIND_BYTES_MAX = 255
KEY_BYTES_MAX = 255
META_BYTES_MAX = 65536
JSON_DEPTH_MAX = 128

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False).encode


def encode_json(value: object) -> bytes:
    """Compact UTF-8 JSON of a JSON value.

    TypeError for anything that would come back changed (tuples, subclasses, other keys than str, ints
    beyond int64, NaN and infinities); ValueError for lone surrogates and for deeper nesting than
    JSON_DEPTH_MAX.
    """
    _check(value, 0)
    return _dumps(value).encode("utf-8")


def _check(value: object, depth: int) -> None:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if kind is int:
        if not _INT64_MIN <= value <= _INT64_MAX:  # type: ignore[operator]
            raise TypeError(f"int {value} does not fit in 64 bits: send it as a str")
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise TypeError(f"{value} has no JSON form: send None or a str")
    elif kind is list or kind is dict:
        _check_nested(value, depth + 1)
    else:
        raise TypeError(
            f"payload of type {kind.__name__}: bytes, str, or a JSON value (None, bool, int, float, str, list, "
            "dict with str keys) is needed"
        )


def _check_nested(value: Any, depth: int) -> None:
    if depth > JSON_DEPTH_MAX:
        raise ValueError(f"payload is nested deeper than JSON_DEPTH_MAX={JSON_DEPTH_MAX}: flatten it")
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise TypeError(f"key {key!r} of type {type(key).__name__}: JSON objects have str keys")
        value = value.values()
    for item in value:
        _check(item, depth)


def check_kind(kind: object) -> bytes:
    """The UTF-8 of an event kind, or TypeError / ValueError."""
    if not isinstance(kind, str):
        raise TypeError(f"kind is a str, not {type(kind).__name__}")
    raw = kind.encode("utf-8")
    if len(raw) > KIND_BYTES_MAX:
        raise ValueError(f"kind of {len(raw)} bytes: at most KIND_BYTES_MAX={KIND_BYTES_MAX}")
    if found := re.search("[\r\n\0;]", kind):
        raise ValueError(f"kind {kind!r} holds {found.group()!r}: CR, LF, NUL and ';' would break its SSE line")
    if kind == "replay" or kind.startswith("replay-"):
        raise ValueError(f"kind {kind!r}: 'replay' and 'replay-...' name the control frames; choose another")
    return raw


def name_ok(name: object) -> bool:
    """Can a session have this name?"""
    try:
        check_name(name)
    except (TypeError, ValueError):
        return False
    return True


def check_name(name: object) -> bytes:
    """The UTF-8 of a session name, or TypeError / ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a session name is a str, not {type(name).__name__}")
    raw = name.encode("utf-8")
    if not 1 <= len(raw) <= NAME_BYTES_MAX:
        raise ValueError(f"session name of {len(raw)} bytes: 1 to NAME_BYTES_MAX={NAME_BYTES_MAX}")
    if _CONTROL.search(name):
        raise ValueError(f"session name {name!r} holds control characters")
    return raw


def check_key(key: object) -> bytes:
    """The UTF-8 of an idempotency key, or TypeError / ValueError."""
    if not isinstance(key, str):
        raise TypeError(f"an idempotency key is a str, not {type(key).__name__}")
    raw = key.encode("utf-8")
    if not 1 <= len(raw) <= KEY_BYTES_MAX:
        raise ValueError(f"idempotency key of {len(raw)} bytes: 1 to KEY_BYTES_MAX={KEY_BYTES_MAX}")
    return raw
