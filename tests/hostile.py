"""Cursors that a client can send and nobody ever issued. Each is malformed, on every session."""

from __future__ import annotations

TOKEN = "0123456789abcdef.41.89abcdef"

HOSTILE: list[str | bytes] = [
    # empty, blank, padded
    "", " ", "\t", "41 ", " 41", "41\n", "\n41", "4 1", "41\r\n", "\u00a041", "41\u2028", "\ufeff41",
    "41\0", "\0",
    # signs, underscores, other bases, other notations
    "-1", "+1", "-0", "4_1", "0x29", "0b1", "0o7", "1e3", "41.0", "4,1", "41,42", "NaN", "inf", "None",
    "null", "true", "start", "floor", "head", "refused", "latest", "$", "*", "0-0", "41-0",
    # leading zeros
    "00", "041", "000000000000000000041",
    # digits of other scripts: Arabic-Indic, Devanagari, fullwidth, Tibetan, mathematical, raised, circled
    "\u0664\u0661", "\u096a\u0967", "\uff14\uff11", "\u0f24\u0f21", "\U0001d7d2\U0001d7cf", "\u2074\u00b9",
    "\u2463", "4\u0661", "\u0030\u0660",
    # beyond 2^63-1
    "9223372036854775808", "9999999999999999999", "18446744073709551615", "10000000000000000000", "9" * 5000,
    "0123456789abcdef.9223372036854775808.89abcdef",
    # tokens with a part missing
    ".41.", "41.", ".41", "..", ".", "...", "0123456789abcdef.41", "0123456789abcdef.41.", ".41.89abcdef",
    "0123456789abcdef..89abcdef", "41.89abcdef", ".0.", "0123456789abcdef", "0123456789abcdef.",
    # tokens with a part misshapen
    "0123456789ABCDEF.41.89abcdef", "0123456789abcdef.41.89ABCDEF", "0123456789abcde.41.89abcdef",
    "0123456789abcdef0.41.89abcdef", "0123456789abcdef.41.89abcde", "0123456789abcdef.41.89abcdef0",
    "0123456789abcdeg.41.89abcdef", "0123456789abcdef.041.89abcdef", "0123456789abcdef.00.89abcdef",
    "0123456789abcdef.-1.89abcdef", "0123456789abcdef.+1.89abcdef", "0123456789abcdef. 41.89abcdef",
    "0123456789abcdef.4_1.89abcdef", "0123456789abcdef.\u0664\u0661.89abcdef",
    "\u0660123456789abcdef.41.89abcdef", "0123456789abcdef.41.\uff1889abcdef", "0123456789abcdef-41-89abcdef",
    "0x23456789abcdef.41.89abcdef", "0123456789abcdef.41.0x9abcde",
    # tokens with something before, after or twice
    f" {TOKEN}", f"{TOKEN} ", f"{TOKEN}\n", f"{TOKEN}\0", f"{TOKEN}.", f"{TOKEN}.END", f"{TOKEN}.end.end",
    f"{TOKEN}.end ", f"{TOKEN}end", f"{TOKEN}.fin", f"{TOKEN},{TOKEN}", f"{TOKEN}, {TOKEN}", f'"{TOKEN}"',
    f"W/\"{TOKEN}\"", "41.end", f".{TOKEN}",
    # bytes as they come in a header
    b"", b" ", b"\xd9\xa4\xd9\xa1", b"\xff\xfe", b"41\xff", b"\xef\xbb\xbf41", b"4\x001", b"\x00", b"41\xa0",
    b"0123456789abcdef.41.89abcde\xc3\xa9", b"\xc3\xa9" * 5000, b".41.", b"-1",
    # what is not even text
    "\ud800", "4\udc801", "\U0001f4a9", "x" * 100_000,
]  # fmt: skip
