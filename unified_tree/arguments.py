"""Arguments as callers give them, checked before anything is done with them.

Schedulers compute with arrays, so numpy's integers and floats are taken like Python's; a bool is no number, and a NaN is
never meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from unified_tree.errors import UnifiedTreeError

MAX_INTEGER: Final = (1 << 63) - 1


def integer(value: Any, name: str, error: type[UnifiedTreeError], *, minimum: int = 0) -> int:
    """`value` as an int from `minimum` to 2**63 - 1. Raises `error` for anything else, naming the argument.

    >>> integer(np.int32(3), "length_tokens", UnifiedTreeError)
    3
    """
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
        raise error(f"{name} must be an integer, not {value!r}")
    found = int(value)
    if found < minimum:
        raise error(f"{name} must be {minimum} or more, not {_shown(found)}")
    if found > MAX_INTEGER:
        raise error(f"{name} must fit in 63 bits, not {_shown(found)}")
    return found


def number(value: Any, name: str, error: type[UnifiedTreeError], *, positive: bool = False) -> float:
    """`value` as a finite float of zero or more, or above zero. Raises `error` for anything else, naming the argument."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise error(f"{name} must be a number, not {value!r}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not (math.isfinite(found) and (found > 0 if positive else found >= 0)):
        raise error(f"{name} must be finite and {'positive' if positive else 'zero or more'}, not {found}")
    return found


def flag(value: Any, name: str, error: type[UnifiedTreeError]) -> bool:
    """`value` as a bool. Raises `error` for anything else, naming the argument: `"no"` would count as yes."""
    if not isinstance(value, bool | np.bool_):
        raise error(f"{name} must be True or False, not {value!r}")
    return bool(value)


def items(values: Any, name: str, error: type[UnifiedTreeError]) -> list[Any]:
    """What a sequence or another iterable holds. Raises `error` for anything else, a string included."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise error(f"{name} must be a sequence, not {values!r}")
    return list(values)


def _shown(value: int) -> str:
    """Python refuses to print the longest integers."""
    return str(value) if abs(value) <= MAX_INTEGER else f"an integer of {value.bit_length()} bits"
