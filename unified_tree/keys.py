"""Keys: token sequences in a namespace, held as bytes so that an edge is compared by one memory comparison.

A key keeps its elements as native int64. Narrowing them to 32 bits would halve the comparison but costs a pass of its own
and a range check per match; taking the caller's bytes as they are is one copy. A bigram key (EAGLE: the draft head sees a
token together with the next one) has 16-byte elements; it lives in a root of its own, so it never meets a plain key.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.errors import InvalidKeyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TOKEN_BYTES = 8


class Key:
    """A token sequence in a namespace; equal tokens in different namespaces never meet.

    Args:
        tokens: shape [length], any integer dtype (an int64 array is fastest), every id zero or more.
        namespace: tenant, LoRA name, cache salt.
        bigram: view the n tokens as the n - 1 pairs (t0, t1), (t1, t2), …; the key's length is then n - 1.

    Raises InvalidKeyError for tokens that are not integers, not one-dimensional or negative. Cost: two passes over the tokens.

    >>> len(Key([1, 2, 3])), len(Key([1, 2, 3], bigram=True))
    (3, 2)
    """

    __slots__ = ("bigram", "data", "length", "namespace", "width_bytes")

    def __init__(self, tokens: NDArray[np.integer[Any]] | Sequence[int], namespace: str = "", *, bigram: bool = False) -> None:
        data = _as_bytes(tokens)
        if data and np.minimum.reduce(np.frombuffer(data, np.int64)) < 0:
            where = int(np.argmax(np.frombuffer(data, np.int64) < 0))
            raise InvalidKeyError(f"token ids must be zero or more; token {where} is {np.frombuffer(data, np.int64)[where]}")
        if not isinstance(namespace, str):
            raise InvalidKeyError(f"a namespace must be a string, not {namespace!r}")
        self.namespace = namespace
        self.bigram = bigram
        self.width_bytes = TOKEN_BYTES
        self.data = data
        self.length = len(data) // TOKEN_BYTES
        if bigram:
            ids = np.frombuffer(data, np.int64)
            self.length = max(0, self.length - 1)
            self.width_bytes = 2 * TOKEN_BYTES
            self.data = np.stack((ids[:-1], ids[1:]), axis=1).tobytes()

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        kind = "bigrams" if self.bigram else "tokens"
        return f"Key({self.length} {kind}, namespace={self.namespace!r})"

    def prefix(self, length: int) -> Key:
        """The first `length` elements of this key, sharing its bytes. Cost: O(1)."""
        if not 0 <= length <= self.length:
            raise InvalidKeyError(f"a prefix of {length} elements was asked of a key of {self.length}")
        key = Key.__new__(Key)
        key.namespace, key.bigram, key.width_bytes, key.data, key.length = (
            self.namespace,
            self.bigram,
            self.width_bytes,
            self.data,
            int(length),
        )
        return key

    def starts_with(self, other: Key) -> bool:
        """Whether `other` is a prefix of this key, in the same namespace. Cost: one memory comparison."""
        if self.namespace != other.namespace or self.bigram != other.bigram or other.length > self.length:
            return False
        size_bytes = other.length * other.width_bytes
        return self.data is other.data or self.data.startswith(
            other.data if size_bytes == len(other.data) else other.data[:size_bytes]
        )


def _as_bytes(tokens: Any) -> bytes:
    """The tokens as native int64 bytes: one copy of an int64 array (of numpy, or `array('q')`), two of anything else."""
    if (type(tokens) is np.ndarray and tokens.dtype == np.int64 and tokens.ndim == 1) or (
        type(tokens) is array and tokens.typecode == "q"
    ):
        return tokens.tobytes()
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
