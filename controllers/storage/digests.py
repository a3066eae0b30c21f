"""The chain digests of a prefix, one a page, in one piece of memory.

They are copied for each longer prefix of a conversation, and freed when a prefix is forgotten, on the thread that serves
requests. In one piece that is one copy and one `free`, however long the prompt; as a list it would be one of each a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import overload

from unified_tree.controllers.storage.storage_engine import KEY_BYTES


class Digests:
    """Digests of 32 bytes in the order of the pages. They never change; a slice, of step 1, is such a piece again.

    >>> digests = Digests([bytes(32), bytes([1]) * 32])
    >>> len(digests), digests[-1][:3], len(digests[1:]), [digest[0] for digest in digests.followed_by(digests[:1])]
    (2, b'\\x01\\x01\\x01', 1, [0, 1, 0])
    """

    __slots__ = ("_packed",)

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        self._packed = b"".join(digests)

    def __len__(self) -> int:
        return len(self._packed) // KEY_BYTES

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, len(self._packed), KEY_BYTES):
            yield self._packed[at : at + KEY_BYTES]

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Digests: ...

    def __getitem__(self, index: int | slice) -> bytes | Digests:
        count = len(self)
        if isinstance(index, slice):
            begin, end, step = index.indices(count)
            if step != 1:
                raise ValueError(f"digests are cut in one piece, not in steps of {step}")
            return self._piece(begin, end)
        if not -count <= index < count:
            raise IndexError(f"{index} is none of {count} digests")
        at = index % count * KEY_BYTES
        return self._packed[at : at + KEY_BYTES]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digests) and self._packed == other._packed

    def __hash__(self) -> int:
        return hash(self._packed)

    def followed_by(self, digests: Iterable[bytes]) -> Digests:
        """These, and others behind them. Cost: a copy of all."""
        both = Digests()
        both._packed = self._packed + b"".join(digests)
        return both

    def _piece(self, begin: int, end: int) -> Digests:
        piece = Digests()
        piece._packed = self._packed[begin * KEY_BYTES : max(begin, end) * KEY_BYTES]
        return piece
