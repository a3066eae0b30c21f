"""A store that keeps nothing: L3 switched off, with the same calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.storage.call_gate import CallGate
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome
from unified_tree.controllers.storage.storage_stats import StorageStats, Tally
from unified_tree.controllers.storage.stored_pool import StoredPool, known_pool, pools_by_name


class NullStorage:
    """A StorageEngine in which every page is missing and every put is dropped.

    Args:
        pools: those it is asked about.
    """

    def __init__(self, pools: Iterable[StoredPool]) -> None:
        self._pools = pools_by_name(pools)
        self._tally = Tally({name: pool.value_bytes for name, pool in self._pools.items()})
        self._gate = CallGate("null")

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""
        return Capabilities(zero_copy=True)

    def register(self, buffers: Sequence[memoryview]) -> None:
        """See StorageEngine.register; any memory will do, so nothing is kept."""
        with self._gate:
            del buffers

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """See StorageEngine.exists."""
        with self._gate:
            known_pool(self._pools, pool).check_keys(keys)
            self._tally.queried(pool, len(keys), 0)
            return np.zeros(len(keys), np.bool_)

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.get."""
        with self._gate:
            known_pool(self._pools, pool).check_batch(keys, pages, writable=True)
            outcomes = [Outcome.MISSING] * len(keys)
            self._tally.got(pool, outcomes)
            return outcomes

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.put."""
        with self._gate:
            known_pool(self._pools, pool).check_batch(keys, pages)
            outcomes = [Outcome.DROPPED] * len(keys)
            self._tally.put(pool, outcomes)
            return outcomes

    def remove(self, pool: str, keys: Sequence[bytes]) -> None:
        """See StorageEngine.remove."""
        with self._gate:
            known_pool(self._pools, pool).check_keys(keys)

    def clear(self) -> None:
        """See StorageEngine.clear."""
        with self._gate:
            pass

    def stats(self) -> StorageStats:
        """See StorageEngine.stats."""
        return self._tally.snapshot()

    def close(self) -> None:
        """See StorageEngine.close."""
        self._gate.close()
