"""A store that keeps nothing: the null implementation of StorageEngine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unified_tree.controllers.storage.guarded_storage import GuardedStorage
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome
from unified_tree.controllers.storage.stored_pool import StoredPool


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
