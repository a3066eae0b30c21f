"""Names that requests may have, and that break what was only tried with plain ones."""

from __future__ import annotations

NASTY = {
    "empty": "",
    "lone surrogate": "\ud800",
    "low surrogate first": "\udc00\ud800",
    "bytes that are no UTF-8": b"caf\xe9 \xff".decode("utf-8", "surrogateescape"),
    "NUL": "a\0b",
    "lines": "one\ntwo\r\nthree\x0bfour\x85five\u2028six",
    "terminal": "\x1b[31mred\x1b[0m\x07",
    "right to left": "\u202eabc\u2066def\u200f",
    "zero width": "a\u200bb\ufeff",
    "million": "m" * 1_000_000,
    "million of surrogates": "\udfff" * 1_000_000,
    "HTML": '<script>alert("1")</script>&amp;',
    "quotes": "a\"b'c\\d{e}%s%d{0}",
    "braces": "{} {0!r} {figures.__class__} %(name)s",
    "emoji": "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467",
    "not a character": "\ufdd0\uffff\U0010ffff",
    "combining": "e\u0301" + "\u0301" * 400,
    "spaces": "  \t ",
    "path": "../../etc/passwd",
    "number": "NaN",
}
"""By what is nasty about them."""


def require_fit(text: str, longest: int) -> None:
    """A text is of printable characters, and not too long."""
    assert text.isprintable(), repr(text[:200])
    assert len(text) <= longest, len(text)
    text.encode()
