"""A store that counts what its calls would have moved, had its pages their true sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.storage.storage_engine import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.storage.storage_engine import Capabilities, StorageEngine
    from unified_tree.controllers.storage.storage_stats import StorageStats


class MeteredStorage:
    """A StorageEngine over another, used by one thread.

    Args:
        inner: does all the work, and is closed with this one.
        page_bytes: the true size of a page, by pool; of a pool that is left out nothing is counted but its calls.

    Attributes:
        read_bytes, written_bytes: of pages read or stored so far.
    """

    def __init__(self, inner: StorageEngine, page_bytes: Mapping[str, int]) -> None:
        self.read_bytes = 0
        self.written_bytes = 0
        self._inner = inner
        self._page_bytes = dict(page_bytes)
        self._calls = 0
        self._moved_bytes = 0

    def take(self) -> tuple[int, int]:
        """Calls, and bytes that they moved, since this was asked last."""
        taken = self._calls, self._moved_bytes
        self._calls = self._moved_bytes = 0
        return taken

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""
        return self._inner.capabilities

    def register(self, buffers: Sequence[memoryview]) -> None:
        """See StorageEngine.register."""
        self._inner.register(buffers)

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """See StorageEngine.exists."""
        self._calls += 1
        return self._inner.exists(pool, keys)

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.get."""
        self._calls += 1
        outcomes = self._inner.get(pool, keys, pages)
        self.read_bytes += self._moved(pool, outcomes)
        return outcomes

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.put."""
        self._calls += 1
        outcomes = self._inner.put(pool, keys, pages)
        self.written_bytes += self._moved(pool, outcomes)
        return outcomes

    def remove(self, pool: str, keys: Sequence[bytes]) -> None:
        """See StorageEngine.remove."""
        self._inner.remove(pool, keys)

    def clear(self) -> None:
        """See StorageEngine.clear."""
        self._inner.clear()

    def stats(self) -> StorageStats:
        """See StorageEngine.stats."""
        return self._inner.stats()

    def close(self) -> None:
        """See StorageEngine.close."""
        self._inner.close()

    def _moved(self, pool: str, outcomes: Sequence[Outcome]) -> int:
        moved_bytes = self._page_bytes.get(pool, 0) * sum(outcome is Outcome.DONE for outcome in outcomes)
        self._moved_bytes += moved_bytes
        return moved_bytes
