"""The cursor's grammar: what was issued comes back, everything else is None and nothing raises.

The grammar is `epoch "." id "." tag [ ".end" ]`, or a plain decimal integer.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import model
from hostile import HOSTILE, TOKEN
from replaylog._cursor import ID_MAX, Cursor, parse, token

epochs = st.integers(0, 2**64 - 1)
ids = st.integers(0, ID_MAX)
tags = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:40]))
def test_a_hostile_cursor_is_none(text: str | bytes) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        ("0", Cursor(0)),
        ("1", Cursor(1)),
        ("41", Cursor(41)),
        ("9223372036854775807", Cursor(ID_MAX)),
        (b"41", Cursor(41)),
        (TOKEN, Cursor(41, 0x0123456789ABCDEF, 0x89ABCDEF)),
        (TOKEN.encode(), Cursor(41, 0x0123456789ABCDEF, 0x89ABCDEF)),
        (f"{TOKEN}.end", Cursor(41, 0x0123456789ABCDEF, 0x89ABCDEF, True)),
        ("0000000000000000.0.00000000", Cursor(0, 0, 0)),
        ("ffffffffffffffff.9223372036854775807.ffffffff.end", Cursor(ID_MAX, 2**64 - 1, 2**32 - 1, True)),
    ],
)
def test_the_grammar_accepts(text: str | bytes, cursor: Cursor) -> None:
    assert parse(text) == cursor


@given(epochs, ids, tags, st.booleans())
def test_a_token_comes_back_as_it_was_issued(epoch: int, id: int, tag: int, end: bool) -> None:
    text = token(epoch, id, tag, end=end)
    assert parse(text) == Cursor(id, epoch, tag, end)
    assert parse(text.encode()) == parse(text)
    assert text.removesuffix(".end") == model.token_of(epoch, id, tag)


@given(ids)
def test_an_integer_is_a_cursor_without_epoch_and_tag(id: int) -> None:
    assert parse(str(id)) == Cursor(id, None, None, False)


@given(st.one_of(st.text(), st.text("0123456789abcdef."), st.text(st.characters(categories=["Nd"]))))
@example("\u0664\u0661")
def test_parse_only_accepts_what_printing_gives_back(text: str) -> None:
    """No two texts are the same position: a lenient parser is how "041" becomes 41."""
    cursor = parse(text)
    if cursor is None:
        return
    printed = (
        str(cursor.id)
        if cursor.epoch is None
        else token(cursor.epoch, cursor.id, cursor.tag or 0, end=cursor.ended)
    )
    assert printed == text


@given(st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_parse_of_bytes_never_raises_and_agrees_with_latin_1(raw: bytes) -> None:
    assert parse(raw) == parse(raw.decode("latin-1"))


@given(epochs, ids, tags, st.integers(0, 40), st.characters())
def test_a_changed_character_never_gives_the_same_cursor(
    epoch: int, id: int, tag: int, at: int, other: str
) -> None:
    text = token(epoch, id, tag)
    at %= len(text)
    changed = text[:at] + other + text[at + 1 :]
    assert changed == text or parse(changed) != parse(text)


@given(st.one_of(st.text(), st.from_regex(r"[0-9a-f]{16}\.[0-9]{1,20}\.[0-9a-f]{8}(\.end)?", fullmatch=True)))
def test_the_oracle_agrees(text: str) -> None:
    expected = model.parse(text)
    found = parse(text)
    assert (found is None) == (expected is None)
    if found and expected:
        assert found == Cursor(expected.id, expected.epoch, expected.tag, expected.seen_end)
