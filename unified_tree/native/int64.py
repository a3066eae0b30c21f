"""Arrays of native int64 as bytes."""

from __future__ import annotations

import sys
from typing import Final

import numpy as np

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
