"""Tokens as native int64 bytes, which is how keys and edges hold them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from unified_tree.errors import InvalidKeyError
from unified_tree.native.int64 import INT64, INT64_BYTES, any_negative

if TYPE_CHECKING:
    from numpy.typing import NDArray

INT64_FORMATS: Final = ("l", "q")
"""How a buffer says that its items are native integers; they are int64 if they have eight bytes."""


def as_bytes(tokens: Any) -> bytes:
    """The tokens' bytes: one copy of an int64 array (of numpy, or `array('q')`), two of anything else.

    Raises InvalidKeyError for anything but a one-dimensional sequence of integers that fit in 63 bits.
    """
    kind = type(tokens)
    if kind is np.ndarray:
        if tokens.dtype is INT64 and tokens.ndim == 1:
            return tokens.tobytes()  # type: ignore[no-any-return]
    elif kind is array and tokens.typecode == "q":
        return tokens.tobytes()  # type: ignore[no-any-return]
    elif kind is list and tokens and type(tokens[0]) is int:
        try:
            return array("q", tokens).tobytes()  # one pass, where numpy makes a second one to find the type
        except (TypeError, OverflowError):
            pass  # numpy says below what is wrong
    try:
        values = np.asarray(tokens)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidKeyError(f"a key must be a one-dimensional sequence of integers: {error}") from error
    if values.ndim != 1:
        raise InvalidKeyError(f"a key must be one-dimensional, not of shape {values.shape}")
    if values.size == 0:
        return b""
    if values.dtype.kind not in "iu":
        raise InvalidKeyError(f"token ids must be integers, not {values.dtype}: {values[0]!r}")
    if values.dtype == np.uint64 and int(values.max()) > np.iinfo(np.int64).max:
        raise InvalidKeyError(f"token ids must fit in 63 bits; the largest is {values.max()}")
    return values.astype(np.int64).tobytes()


def as_view(tokens: Any) -> bytes | memoryview:
    """The tokens' bytes where they are, if the tokens are contiguous native int64; else as `as_bytes`, which may raise."""
    try:
        view = memoryview(tokens)
        if view.ndim == 1 and view.itemsize == INT64_BYTES and view.format in INT64_FORMATS:
            return view.toreadonly().cast("B")
    except (TypeError, ValueError, BufferError):
        pass  # no buffer, or one that is empty or not contiguous
    return as_bytes(tokens)


def require_tokens(data: bytes | memoryview, begin: int) -> None:
    """Raise InvalidKeyError if an id from byte `begin` on is negative. Cost: one pass over those bytes.

    Engines use -1 as a placeholder (for images, say), and two different prompts would compare equal.
    """
    if any_negative(data, begin):
        ids: NDArray[np.int64] = np.frombuffer(data, np.int64)
        where = int(np.argmax(ids < 0))
        raise InvalidKeyError(f"token ids must be zero or more, got {ids[where]}")
