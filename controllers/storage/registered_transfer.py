"""Transfers between a store and memory: pages in registered memory directly, others through a bounce buffer."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

from unified_tree.controllers.storage.registered_memory import RegisteredMemory, address_of


class Direction(Enum):
    """The direction of a transfer."""

    TO_STORE = "to the store"
    FROM_STORE = "from the store"


Call = Callable[[list[int], list[int]], list[int]]
"""Given indices into the batch and the address of each page; answers a number for each."""


class RegisteredTransfer:
    """Splits a batch of pages into calls of the client.

    Args:
        memory: the registered memory; the bounce buffer is added to it.
        bounce: for pages in other memory.
        batch_bytes: of one call, but at least a page.
    """

    def __init__(self, memory: RegisteredMemory, bounce: BounceBuffer, batch_bytes: int) -> None:
        self._memory = memory
        self._bounce = bounce
        self._batch_bytes = batch_bytes
        memory.add(bounce.memory)

    def answers(self, call: Call, pages: Sequence[memoryview], way: Direction) -> Iterator[tuple[int, int]]:
        """Each page's index and answer, direct ones first; ending early leaves the rest untried.

        Pages are of one size. Pages from the store are filled whatever the answer was, their bytes being good if that is.
        """
        if not pages:
            return
        size = pages[0].nbytes
        direct: list[int] = []
        bounced: list[int] = []
        addresses = [address_of(page) for page in pages]
        for index, address in enumerate(addresses):
            (direct if self._memory.holds(address, size) else bounced).append(index)
        for some in _batches(direct, max(1, self._batch_bytes // size)):
            yield from zip(some, call(some, [addresses[index] for index in some]), strict=True)
        for some in _batches(bounced, self._bounce.batch_pages(size)):
            yield from zip(some, self._bounced(call, some, [pages[index] for index in some], way), strict=True)

    def _bounced(self, call: Call, indices: list[int], pages: list[memoryview], way: Direction) -> list[int]:
        with self._bounce.lent(len(indices), pages[0].nbytes) as slots:
            if way is Direction.TO_STORE:
                copy_pages(pages, slots)
            answers = call(indices, [address_of(slot) for slot in slots])
            if way is Direction.FROM_STORE:
                copy_pages(slots, pages)
            return answers


def _batches(indices: list[int], batch_size: int) -> Iterator[list[int]]:
    for start in range(0, len(indices), batch_size):
        yield indices[start : start + batch_size]


class BounceBuffer:
    """Slots for pages of one size at a time; one caller uses all of it while others wait.

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
