"""A small piece of memory that the client knows, through which pages go that lie elsewhere."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from unified_tree.controllers.storage.registered_memory import address_of


class BounceBuffer:
    """Slots for pages of one size at a time; one caller holds all of it, the others wait.

    Args:
        size_bytes: must hold the largest page.
    """

    def __init__(self, size_bytes: int) -> None:
        self._memory = memoryview(mmap.mmap(-1, size_bytes))
        self._lock = threading.Lock()

    @property
    def memory(self) -> memoryview:
        """All of it, to be registered."""
        return self._memory

    @property
    def address(self) -> int:
        """Where it begins."""
        return address_of(self._memory)

    def batch_pages(self, page_bytes: int) -> int:
        """How many pages of this size fit at once."""
        return self._memory.nbytes // page_bytes

    @contextmanager
    def lent(self, count: int, page_bytes: int) -> Iterator[list[memoryview]]:
        """So many slots, until the block ends; their bytes are left over from others."""
        with self._lock:
            yield [self._memory[index * page_bytes : (index + 1) * page_bytes] for index in range(count)]


def copy_pages(sources: Sequence[memoryview], targets: Sequence[memoryview]) -> None:
    """Copy page by page, whatever the items of the buffers are."""
    for source, target in zip(sources, targets, strict=True):
        target.cast("B")[:] = source.cast("B")
