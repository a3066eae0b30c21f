"""A store in this process's memory: for tests, and to see what L3 would be worth without a disk.

An ordered dictionary of copies by (pool, key), the least recently used first. Cost: O(1) a page and one copy of its bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.storage.call_gate import CallGate
from unified_tree.controllers.storage.setting_checks import BYTES, check_number
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome
from unified_tree.controllers.storage.storage_stats import StorageStats, Tally
from unified_tree.controllers.storage.stored_pool import StoredPool, known_pool, pools_by_name
from unified_tree.errors import ConfigurationError


class MemoryStorage:
    """A StorageEngine over a dictionary, which evicts the least recently used values.

    Args:
        pools: what it keeps.
        capacity_bytes: of all values together.

    Raises ConfigurationError for a capacity that does not hold one value of every pool.
    """

    def __init__(self, pools: Iterable[StoredPool], capacity_bytes: int = 1 << 30) -> None:
        self._pools = pools_by_name(pools)
        check_number("capacity_bytes", capacity_bytes, int, BYTES)
        need = sum(pool.value_bytes for pool in self._pools.values())
        if capacity_bytes < need:
            raise ConfigurationError(f"capacity_bytes must hold a value of every pool, {need} bytes, not {capacity_bytes!r}")
        self._capacity_bytes = capacity_bytes
        self._tally = Tally({name: pool.value_bytes for name, pool in self._pools.items()})
        self._gate = CallGate("memory")
        self._lock = threading.Lock()
        self._values: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self._held_bytes = 0

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""
        return Capabilities(zero_copy=False, largest_value_bytes=self._capacity_bytes)

    def register(self, buffers: Sequence[memoryview]) -> None:
        """See StorageEngine.register; any memory will do, so nothing is kept."""
        with self._gate:
            del buffers

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """See StorageEngine.exists."""
        with self._gate, self._lock:
            known_pool(self._pools, pool).check_keys(keys)
            found = np.fromiter(((pool, key) in self._values for key in keys), np.bool_, len(keys))
            self._tally.queried(pool, len(keys), int(found.sum()))
            return found

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.get."""
        with self._gate, self._lock:
            known_pool(self._pools, pool).check_batch(keys, pages, writable=True)
            outcomes = [self._read((pool, key), page) for key, page in zip(keys, pages, strict=True)]
            self._tally.got(pool, outcomes)
            return outcomes

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.put."""
        with self._gate, self._lock:
            known_pool(self._pools, pool).check_batch(keys, pages)
            outcomes = [self._write((pool, key), page) for key, page in zip(keys, pages, strict=True)]
            self._tally.put(pool, outcomes)
            return outcomes

    def remove(self, pool: str, keys: Sequence[bytes]) -> None:
        """See StorageEngine.remove."""
        with self._gate, self._lock:
            known_pool(self._pools, pool).check_keys(keys)
            for key in keys:
                self._held_bytes -= len(self._values.pop((pool, key), b""))

    def clear(self) -> None:
        """See StorageEngine.clear."""
        with self._gate, self._lock:
            self._forget()

    def stats(self) -> StorageStats:
        """See StorageEngine.stats."""
        return self._tally.snapshot()

    def close(self) -> None:
        """See StorageEngine.close; forgets everything."""
        self._gate.close()
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._values.clear()
        self._held_bytes = 0

    def _read(self, where: tuple[str, bytes], page: memoryview) -> Outcome:
        value = self._values.get(where)
        if value is None:
            return Outcome.MISSING
        self._values.move_to_end(where)
        page[:] = value
        return Outcome.DONE

    def _write(self, where: tuple[str, bytes], page: memoryview) -> Outcome:
        if where in self._values:
            self._values.move_to_end(where)
            return Outcome.PRESENT
        self._values[where] = bytes(page)
        self._held_bytes += len(page)
        while self._held_bytes > self._capacity_bytes:
            _, lost = self._values.popitem(last=False)
            self._held_bytes -= len(lost)
        return Outcome.DONE
