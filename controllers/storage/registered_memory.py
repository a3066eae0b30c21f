"""The memory registered with a store's client, so that pages in it are transferred without a copy."""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from unified_tree.terms.errors import PageError


def address_of(memory: memoryview) -> int:
    """Where contiguous memory begins. Raises PageError for other memory. Cost: about a microsecond."""
    if not memory.nbytes or not memory.c_contiguous:
        raise PageError(f"a buffer must be contiguous memory of at least a byte, not {memory.nbytes} bytes of other memory")
    if memory.readonly:
        return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))  # eight times faster


@dataclass(frozen=True, slots=True)
class _Region:
    start: int
    end: int
    owner: memoryview


class RegisteredMemory:
    """Disjoint regions, kept alive while they are registered. Thread-safe.

    Of a buffer that overlaps registered regions only the rest is registered, because clients refuse overlaps. Idempotent.

    Args:
        register: registers (address, size in bytes) with the client; raises if it refuses.
        unregister: the opposite, by address.
    """

    def __init__(self, register: Callable[[int, int], None], unregister: Callable[[int], None]) -> None:
        self._register = register
        self._unregister = unregister
        self._lock = threading.Lock()
        self._regions: tuple[_Region, ...] = ()

    def add(self, buffer: memoryview) -> None:
        """Register a buffer. If the client refuses a part, the parts before it stay registered. Cost: O(regions)."""
        start = address_of(buffer)
        with self._lock:
            for gap_start, gap_end in self._gaps(start, start + buffer.nbytes):
                self._register(gap_start, gap_end - gap_start)
                self._regions = tuple(sorted((*self._regions, _Region(gap_start, gap_end, buffer)), key=lambda r: r.start))

    def __contains__(self, memory: memoryview) -> bool:
        """Whether all of it lies in one region. Cost: O(log regions)."""
        return self.holds(address_of(memory), memory.nbytes)

    def holds(self, address: int, size_bytes: int) -> bool:
        """The same of an address and a size."""
        regions = self._regions
        index = bisect_right(regions, address, key=lambda region: region.start) - 1
        return index >= 0 and address + size_bytes <= regions[index].end

    def release(self) -> None:
        """Unregister everything."""
        with self._lock:
            regions, self._regions = self._regions, ()
            for region in regions:
                self._unregister(region.start)

    def _gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        for region in self._regions:
            if region.end <= start or region.start >= end:
                continue
            if start < region.start:
                yield start, region.start
            start = region.end
        if start < end:
            yield start, end
