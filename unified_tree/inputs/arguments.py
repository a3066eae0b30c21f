"""Checks of callers' arguments, made before anything is changed; also of ids, which are native int64 as bytes.

Schedulers compute with arrays, so numpy's integers and floats are accepted like Python's. A bool or a NaN is not a number here.
What is checked here is annotated as Any or object: compiled code raises a bare TypeError for a narrower type.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final, TypeGuard

import numpy as np

from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import UnifiedTreeError
from unified_tree.terms.tier import Tier

MAX_INTEGER: Final = (1 << 63) - 1
MAX_PRIORITY: Final = 1 << 53
MAX_AT_HAND: Final = (1 << 62) - 1
"""What compiled code compares without an object."""


def integer(value: Any, name: str, error: type[UnifiedTreeError], *, minimum: int = 0) -> int:
    """`value` as an int from `minimum` to 2**63 - 1. Raises `error` for anything else, naming the argument.

    >>> integer(np.int32(3), "length_tokens", UnifiedTreeError)
    3
    """
    if type(value) is int:
        found = value
        if minimum <= found <= MAX_AT_HAND:
            return found
    elif isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise error(f"{name} must be an integer, not {repr_of(value)}")
    else:
        found = int(value)
    if found < minimum:
        raise error(f"{name} must be {minimum} or more, not {_shown(found)}")
    if found > MAX_INTEGER:
        raise error(f"{name} must fit in 63 bits, not {_shown(found)}")
    return found


def request_priority(value: Any, error: type[UnifiedTreeError]) -> int:
    """`value` as the priority of a request, an int from -2**53 to 2**53, which a float rank holds. Raises `error` for anything
    else.
    """
    found = integer(value, "priority", error, minimum=-MAX_PRIORITY)
    if found > MAX_PRIORITY:
        raise error(f"priority must be 2**53 or less, not {_shown(found)}")
    return found


def integers(values: Any, name: str, error: type[UnifiedTreeError]) -> dict[Any, int]:
    """A mapping whose values are integers, as a dictionary; see `integer`."""
    if type(values) is not dict and not isinstance(values, Mapping):
        raise error(f"{name} must be a mapping, not {repr_of(values)}")
    return {
        key: value if type(value) is int and 0 <= value <= MAX_INTEGER else integer(value, f"{name}[{repr_of(key)}]", error)
        for key, value in values.items()
    }


def number(value: Any, name: str, error: type[UnifiedTreeError], *, positive: bool = False) -> float:
    """`value` as a finite float of zero or more, or above zero. Raises `error` for anything else, naming the argument."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise error(f"{name} must be a number, not {repr_of(value)}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not (math.isfinite(found) and (found > 0 if positive else found >= 0)):
        raise error(f"{name} must be finite and {'positive' if positive else 'zero or more'}, not {found}")
    return found


def flag(value: Any, name: str, error: type[UnifiedTreeError]) -> bool:
    """`value` as a bool. Raises `error` for anything else, naming the argument; truthy strings such as `"no"` are refused."""
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool_):
        raise error(f"{name} must be True or False, not {repr_of(value)}")
    return bool(value)


def items(values: Any, name: str, error: type[UnifiedTreeError]) -> list[Any]:
    """What a sequence or another iterable holds. Raises `error` for anything else, a string included."""
    is_scalar = isinstance(values, str | bytes) or (isinstance(values, np.ndarray) and values.ndim == 0)
    if type(values) is not tuple and (is_scalar or not isinstance(values, Iterable)):
        raise error(f"{name} must be a sequence, not {repr_of(values)}")
    return list(values)


def integer_items(values: Any, name: str, each: str, error: type[UnifiedTreeError]) -> list[int]:
    """As `items`, of integers, each of which has a name too; see `integer`."""
    return [integer(value, each, error) for value in items(values, name, error)]


def is_hashable(name: object) -> TypeGuard[Hashable]:
    """Whether a dictionary takes it as a name."""
    try:
        hash(name)
    except TypeError:
        return False
    return True


def checked_resident(tier: object) -> None:
    """Raise UnifiedTreeError for what is no Tier, and for storage, whose pages no node holds."""
    if not isinstance(tier, Tier):
        raise UnifiedTreeError(f"a Tier is needed, DEVICE or HOST, not {repr_of(tier)}")
    if tier is Tier.STORAGE:
        raise UnifiedTreeError("storage is addressed by content, not by the tree; its tiers are DEVICE and HOST")


def _shown(value: int) -> str:
    """Python refuses to print the longest integers."""
    return str(value) if abs(value) <= MAX_INTEGER else f"an integer of {value.bit_length()} bits"


INT64: Final = np.dtype(np.int64)
INT64_BYTES: Final = 8
HIGH_BYTE: Final = 7 if sys.byteorder == "little" else 0
FEW_BYTES: Final = 16_384
"""Up to here a strided slice of bytes is faster than a reduction, whose call alone costs a microsecond."""


def any_negative(data: bytes | memoryview, begin: int = 0) -> bool:
    """Whether one of the integers from byte `begin` on is negative. Cost: one pass over those bytes."""
    if len(data) - begin <= FEW_BYTES:
        return not bytes(data[begin + HIGH_BYTE :: INT64_BYTES]).isascii()  # where a sign bit is set
    return bool(np.minimum.reduce(np.frombuffer(data, INT64, -1, begin)) < 0)
