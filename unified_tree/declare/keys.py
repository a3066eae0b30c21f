"""Keys: token sequences in a namespace, held as bytes so that an edge is compared by one memory comparison.

A key keeps its elements as native int64. Narrowing them to 32 bits would halve the comparison, but costs another pass and a
range check per match; copying the caller's int64 bytes is one copy, and none if the caller promises not to change them. The
tree copies what it keeps, whatever the key is. A bigram key (EAGLE: the draft head sees a token together with the next one) has
16-byte elements and a separate root, so it never matches a plain key.

A packed key has one-byte elements: eight tokens that stand together are one id. Replays make them (`packed_key`), where prompts
are blocks of equal tokens; there all that reads, copies, compares and hashes tokens has an eighth to do.

A key whose bytes cannot change remembers where a tree's last walk along it ended (`walked`), so that it is compared only once
however often it is matched: when it is prefetched, at each attempt to admit it. What it remembers is the tree's mark and a node
there, whose id and tokens never change; if that is gone, the walk begins at the root.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from unified_tree.inputs.arguments import INT64, INT64_BYTES, MAX_INTEGER, any_negative, flag, integer
from unified_tree.inputs.printable import printable, repr_of
from unified_tree.terms.errors import InvalidKeyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unified_tree.terms.results import Boundary

    Walked = tuple[object, Boundary]

PACKED_BYTES: Final = 1
"""Of an element of a packed key."""
GROUP_TOKENS: Final = INT64_BYTES // PACKED_BYTES
"""Tokens of a packed key that are one id."""

_NO_TOKENS: Final = array("q")
"""Of a key that is filled afterwards: compiled code makes none but by the constructor."""


class Mark(NamedTuple):
    """How a key of a namespace that shares is marked; see `declare.owners`.

    Attributes:
        namespace: that of the request.
        owner: its mark; fork: the length from which on the elements have it.
    """

    namespace: str
    owner: int
    fork: int


class Key:
    """A token sequence in a namespace; equal tokens in different namespaces never meet.

    Args:
        tokens: shape [length], any integer dtype (an int64 array is fastest), every id zero or more, which is checked
            where a key would go into the tree (`require_tokens`): what is in the tree never equals a negative id.
        namespace: tenant, LoRA name, cache salt.
        bigram: view the n tokens as the n - 1 pairs (t0, t1), (t1, t2), …; the key's length is then n - 1.
        copy: False keeps contiguous native int64 (an array of numpy's, `array("q")`, another buffer) as it is. The caller then
            must not change it while the key is in use, or a lease on it is open: a commit would publish the changed tokens
            (SealedPages finds that). The tokens in the tree never change with it. Other tokens, and bigrams, are copied
            all the same.

    Raises InvalidKeyError for tokens that are not integers or not one-dimensional. Cost: one copy of the tokens, or none.

    >>> len(Key([1, 2, 3])), len(Key([1, 2, 3], bigram=True))
    (3, 2)
    """

    __slots__ = ("begin", "bigram", "data", "is_checked", "length", "mark", "namespace", "walked", "width_bytes")

    def __init__(
        self,
        tokens: NDArray[np.integer[Any]] | Sequence[int],
        namespace: str | Any = "",  # compiled code would refuse another type in its own words, and numpy's bools
        *,
        bigram: bool | Any = False,
        copy: bool | Any = True,
    ) -> None:
        data: bytes | memoryview = b""
        if not (type(bigram) is type(copy) is bool):
            bigram, copy = flag(bigram, "bigram", InvalidKeyError), flag(copy, "copy", InvalidKeyError)
        if tokens is not _NO_TOKENS:
            data = as_bytes(tokens) if copy or bigram else as_view(tokens)
        if not isinstance(namespace, str):
            raise InvalidKeyError(f"a namespace must be a string, not {repr_of(namespace)}")
        self.namespace = namespace
        self.bigram = bool(bigram)
        self.begin = 0
        self.is_checked = False  # whether it is known that no id is negative
        self.walked: Walked | None = None
        self.mark: Mark | None = None  # of a key in the root of namespaces that share; see `declare.owners`
        self.width_bytes = INT64_BYTES
        self.data = data
        self.length = len(data) // INT64_BYTES
        if bigram:
            ids = np.frombuffer(data, np.int64)
            self.length = max(0, self.length - 1)
            self.width_bytes = 2 * INT64_BYTES
            self.data = np.stack((ids[:-1], ids[1:]), axis=1).tobytes()

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        kind = "bigrams" if self.bigram else "tokens"
        return f"Key({self.length} {kind}, namespace='{printable(self.namespace)}')"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled it has a copy of its own elements, and remembers no walk: engines send prompts to other processes."""
        elements = bytes(self.data[: (self.length - self.begin) * self.width_bytes])
        return unpickled, (elements, self.namespace, self.bigram, self.begin, self.is_checked, self.width_bytes)

    def prefix(self, length: int | Any) -> Key:  # an integer of numpy's, too
        """The first `length` elements of this key, sharing its bytes. Cost: O(1)."""
        if not self.begin <= length <= self.length:
            raise InvalidKeyError(f"a prefix of {length} elements was asked of {self}")
        key = Key(_NO_TOKENS, self.namespace)
        key.bigram, key.width_bytes, key.data = self.bigram, self.width_bytes, self.data
        key.begin, key.length = self.begin, int(length)
        key.is_checked, key.walked, key.mark = self.is_checked, self.walked, self.mark
        return key

    def tail(self, begin: int | Any) -> Key:  # likewise
        """The elements from `begin` on, as an insert takes them after a boundary there; nothing else takes a tail.

        Cost: one copy of these elements.
        """
        if not self.begin <= begin <= self.length:
            raise InvalidKeyError(f"a tail from element {begin} on was asked of {self}")
        first, last = ((at - self.begin) * self.width_bytes for at in (begin, self.length))
        data = bytes(self.data[first:last])
        return Key.from_elements(
            data, self.namespace, bigram=self.bigram, begin=int(begin), is_checked=self.is_checked, width_bytes=self.width_bytes
        )

    def owned(self) -> Key:
        """A key that stays as it is whatever its caller does: itself, or a copy of one that was not copied."""
        if isinstance(self.data, bytes):
            return self
        return Key.from_elements(bytes(self.data), self.namespace, bigram=self.bigram, begin=self.begin).prefix(self.length)

    def require_tokens(self, start: int | Any = 0) -> None:
        """Raise InvalidKeyError if an id from element `start` on is negative. Cost: one pass over those elements."""
        if not self.is_checked:
            require_tokens(self.data, (min(int(start), self.length) - self.begin) * self.width_bytes)

    @staticmethod
    def from_elements(
        data: bytes | memoryview,
        namespace: str,
        *,
        bigram: bool,
        begin: int = 0,
        is_checked: bool = False,
        width_bytes: int = 0,
    ) -> Key:
        """A key over elements as the tree keeps them: native int64, pairs of them for bigrams; a tail if they are those from
        `begin` on. Cost: O(1).

        Args:
            is_checked: no id is negative, which is known.
            width_bytes: of an element, for packed ones; 0 for what `bigram` says.
        """
        key = Key(_NO_TOKENS, namespace)
        key.bigram, key.data, key.is_checked = bigram, data, is_checked
        if width_bytes:
            key.width_bytes = width_bytes
        elif bigram:
            key.width_bytes = 2 * INT64_BYTES
        key.begin = begin
        key.length = begin + len(data) // key.width_bytes
        return key


def unpickled(data: bytes, namespace: str, bigram: bool, begin: int, is_checked: bool, width_bytes: int = 0) -> Key:
    """A key from what `Key.__reduce__` gave."""
    return Key.from_elements(data, namespace, bigram=bigram, begin=begin, is_checked=is_checked, width_bytes=width_bytes)


def packed_key(ids: NDArray[np.int64], length: int, namespace: str) -> Key:
    """The first `length` tokens of groups of eight, each group of one id. The cache does the same with it as with the key of
    all these tokens, if a page is whole groups and all keys of the cache are packed; nothing checks either. A namespace that
    shares (`TenantGroup.shares`, `one_namespace`) takes none: a mark needs whole ids, and a text may end
    within a group.

    Args:
        ids: shape [groups] or more, none of them negative.

    Cost: one copy of the ids.
    """
    data = ids.tobytes()[: length * PACKED_BYTES]
    return Key.from_elements(data, namespace, bigram=False, is_checked=True, width_bytes=PACKED_BYTES)


def checked_key(key: object) -> None:
    """Raise InvalidKeyError for anything but a whole Key, such as plain tokens."""
    if not isinstance(key, Key):
        raise InvalidKeyError(not_a_key(key))
    if key.begin:
        raise InvalidKeyError(f"a whole key is needed, not one without its first {key.begin} elements")


def not_a_key(given: object) -> str:
    """The message for an object in place of a Key, such as plain tokens."""
    return f"a Key is needed, not {repr_of(given)}: wrap the token ids, Key(token_ids)"


def checked_limit(key: Key, limit: Any) -> int:
    """How many of a key's elements count; None for all. Raises InvalidKeyError unless that is an integer."""
    if limit is None:
        return key.length
    return max(0, min(integer(limit, "limit", InvalidKeyError, minimum=-MAX_INTEGER), key.length))


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
        raise InvalidKeyError(f"token ids must be integers, not {values.dtype}: {repr_of(values[0])}")
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
