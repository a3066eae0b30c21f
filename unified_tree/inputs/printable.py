"""Text that comes from outside, made fit to leave: in a metric's label, a log line, a span, a page, a message, a file."""

from __future__ import annotations

from reprlib import Repr
from traceback import format_exception
from typing import Final

LONGEST: Final = 120
LONGEST_TRACEBACK: Final = 10_000
_SHORT: Final = Repr()
_SHORT.maxstring = _SHORT.maxother = 2 * LONGEST


def printable(text: str, limit: int = LONGEST) -> str:
    """A text of printable characters, at most `limit` of them, that every encoding of Unicode can write.

    Requests choose the names of namespaces, of themselves and of models. A lone surrogate in such a name would end whatever
    encodes it, a newline would forge a line of a log, and a mark that turns the direction of writing would hide what stands
    beside it. These are escaped as in Python's literals. A long text keeps its two ends, and says how long it was; two of
    them may be shown alike. Printable text is returned as it is. Cost: O(limit).

    >>> printable("shop"), printable("a\\nb\\ud800")
    ('shop', 'a\\\\nb\\\\ud800')
    >>> printable("x" * 1000, 30)
    'xxxxxxxx…xxxxxxx (1000 in all)'
    """
    count = len(text)
    if count <= limit:
        shown = text if text.isprintable() else _escaped(text)
        if len(shown) <= limit:
            return shown
    tail = f" ({count} in all)"
    ends = max(0, limit - len(tail) - 1)
    front, back = ends - ends // 2, ends // 2
    return f"{_escaped(text[:front])[:front]}…{_escaped(text[count - back :])[-back:] if back else ''}{tail}"


def repr_of(value: object) -> str:
    """The `repr` of what a caller gave, for a message: at most LONGEST printable characters, and the first items of a list or
    another built-in container. Raises nothing.

    >>> repr_of("shop"), repr_of([*range(100_000)])
    ("'shop'", '[0, 1, 2, 3, 4, 5, ...]')
    """
    try:
        return printable(_SHORT.repr(value))
    except Exception:  # of a caller's class; or an integer of thousands of digits
        return f"an object of the type {printable(type(value).__name__)}"


def traceback_of(error: BaseException) -> str:
    """The traceback of an error for a log, whose message may hold what no encoding can write."""
    return "".join(format_exception(error)).encode("utf-8", "backslashreplace").decode()[-LONGEST_TRACEBACK:]


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
