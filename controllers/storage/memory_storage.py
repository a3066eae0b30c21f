"""A store in this process's memory, for tests and for estimates of what L3 would gain; and one that keeps nothing.

`MemoryStorage` is an ordered dictionary of copies by (pool, key), the least recently used first. Cost: O(1) a page and one copy
of its bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from unified_tree.controllers.storage.engine_settings import BYTES, check_number
from unified_tree.controllers.storage.guarded_storage import GuardedStorage
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome, StoredPool
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError


class MemoryStorage(GuardedStorage):
    """A StorageEngine over a dictionary, which evicts the least recently used values.

    Args:
        pools: what it keeps.
        capacity_bytes: of all values together.

    Raises ConfigurationError for a capacity that does not hold one value of every pool.
    """

    def __init__(self, pools: Iterable[StoredPool], capacity_bytes: int = 1 << 30) -> None:
        super().__init__("memory", pools)
        check_number("capacity_bytes", capacity_bytes, int, BYTES)
        need = sum(pool.value_bytes for pool in self._pools.values())
        if capacity_bytes < need:
            raise ConfigurationError(
                f"capacity_bytes must hold a value of every pool, {need} bytes, not {repr_of(capacity_bytes)}"
            )
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self._held_bytes = 0

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""
        return Capabilities(zero_copy=False, largest_value_bytes=self._capacity_bytes)

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool]:
        with self._lock:
            return [(pool, key) in self._values for key in keys]

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        with self._lock:
            return [self._read((pool, key), page) for key, page in zip(keys, pages, strict=True)]

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        with self._lock:
            return [self._write((pool, key), page) for key, page in zip(keys, pages, strict=True)]

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._held_bytes -= len(self._values.pop((pool, key), b""))

    def _clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._held_bytes = 0

    def _close(self) -> None:
        self._clear()

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


class NullStorage(GuardedStorage):
    """A StorageEngine in which every page is missing and every put is dropped.

    Args:
        pools: those it is asked about.
    """

    def __init__(self, pools: Iterable[StoredPool]) -> None:
        super().__init__("null", pools)

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""
        return Capabilities(zero_copy=True)

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool]:
        del pool
        return [False] * len(keys)

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        del pool, pages
        return [Outcome.MISSING] * len(keys)

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        del pool, pages
        return [Outcome.DROPPED] * len(keys)

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        pass

    def _clear(self) -> None:
        pass
