"""Pages of one tier in chunks that never move: a pool without end, the memory of whose pages a store can be handed."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.pools.host_layout import TRAILER_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.workbench.server.page_content import Bytes

    Ids = NDArray[np.int64]

CHUNK_PAGES = 1024


class ChunkedPages:
    """A PageStore, and a PageMemory with a trailer behind every page. Safe to use from two threads.

    Memory is taken a chunk at a time, as pages are used first. A page never written is all zero.

    Args:
        page_bytes: of a page without its trailer.
    """

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._stride = page_bytes + TRAILER_BYTES
        self._lock = Lock()
        self._chunks: dict[int, Bytes] = {}

    @property
    def payload_bytes(self) -> int:
        """See PageMemory."""
        return self._page_bytes

    def page_memory(self, page: int) -> memoryview:
        """See PageMemory."""
        chunk = self._chunk(page // CHUNK_PAGES)
        return memoryview(chunk[page % CHUNK_PAGES])

    def read(self, ids: Ids) -> Bytes:
        """See PageStore."""
        content = np.empty((ids.size, self._page_bytes), np.uint8)
        for number, where in self._by_chunk(ids):
            content[where] = self._chunk(number)[ids[where] % CHUNK_PAGES, : self._page_bytes]
        return content

    def write(self, ids: Ids, content: Bytes) -> None:
        """See PageStore."""
        for number, where in self._by_chunk(ids):
            self._chunk(number)[ids[where] % CHUNK_PAGES, : self._page_bytes] = content[where]

    def _by_chunk(self, ids: Ids) -> list[tuple[int, Ids]]:
        """The chunks of some pages, each with the places in `ids` of its pages."""
        numbers = ids // CHUNK_PAGES
        return [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist()]

    def _chunk(self, number: int) -> Bytes:
        with self._lock:
            if number not in self._chunks:
                self._chunks[number] = np.zeros((CHUNK_PAGES, self._stride), np.uint8)
            return self._chunks[number]
