"""Host pages as bytes that a store can keep, read and written as what the fake memory's cells hold.

A page is one digest a layer, and room for a trailer. Which content a digest stands for is remembered for ever, so bytes that
come back from a store are understood, and others are garbage.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from hashlib import sha256
from typing import Any

from unified_tree.controllers.pools.host_layout import TRAILER_BYTES

DIGEST_BYTES = 32
EMPTY = bytes(DIGEST_BYTES)


class HostPages:
    """One component's host pages; there are as many as are asked for."""

    def __init__(self, layer_count: int) -> None:
        self.body_bytes = DIGEST_BYTES * layer_count
        self._pages: dict[int, bytearray] = {}

    @property
    def value_bytes(self) -> int:
        """Of a stored page."""
        return self.body_bytes + TRAILER_BYTES

    @property
    def payload_bytes(self) -> int:
        """See PageMemory of the storage tier."""
        return self.body_bytes

    def page_memory(self, page: int) -> memoryview:
        """See PageMemory of the storage tier."""
        return memoryview(self._pages.setdefault(page, bytearray(self.value_bytes)))

    def numbers(self) -> list[int]:
        """Pages that were ever touched."""
        return list(self._pages)


class HostCells(MutableMapping[int, Any]):
    """One layer of one component's host pages: content by page."""

    def __init__(self, pages: HostPages, index: int, known: dict[bytes, Any]) -> None:
        self._pages = pages
        self._at = index * DIGEST_BYTES
        self._known = known

    def __getitem__(self, page: int) -> Any:
        digest = bytes(self._pages.page_memory(page)[self._at : self._at + DIGEST_BYTES])
        return self._known[digest]

    def __setitem__(self, page: int, content: Any) -> None:
        digest = sha256(repr(content).encode()).digest()
        self._known[digest] = content
        self._pages.page_memory(page)[self._at : self._at + DIGEST_BYTES] = digest

    def __delitem__(self, page: int) -> None:
        self[page]
        self._pages.page_memory(page)[self._at : self._at + DIGEST_BYTES] = EMPTY

    def __iter__(self) -> Iterator[int]:
        return (page for page in self._pages.numbers() if self.get(page) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
