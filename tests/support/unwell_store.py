"""A store in memory that is not well: pages that it lists and does not give, spoilt ones, no room, no answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from stored_cache import Kept

from unified_tree.controllers.storage import Outcome, StoredPool
from unified_tree.terms.errors import StorageError


class Unwell(Kept):
    """A store that a test makes ill and well again.

    Attributes:
        stale: keys that are listed and not given.
        answer: what becomes of these: an outcome, or an error that is raised for the whole batch.
        is_full: nothing is taken.
        is_away: nothing is answered, as by an engine whose breaker is open.
        is_raising: every call raises.
        failing_reads: how often each key was read in vain.
        on_failure: called when a read fails.
    """

    def __init__(self, pools: Sequence[StoredPool], capacity_bytes: int = 1 << 26) -> None:
        super().__init__(pools, capacity_bytes)
        self.stale: set[bytes] = set()
        self.answer: Outcome | type[StorageError] = Outcome.FAILED
        self.is_full = self.is_away = self.is_raising = False
        self.failing_reads: Counter[bytes] = Counter()
        self.on_failure: Callable[[], object] = lambda: None

    def heal(self) -> None:
        """Everything is as it should be."""
        self.stale.clear()
        self.is_full = self.is_away = self.is_raising = False

    def lose(self) -> None:
        """What was stored is gone, as after a restart."""
        self._clear()

    def _admits(self) -> bool:
        if self.is_raising:
            raise StorageError("the store is broken")
        return not self.is_away

    def _is_degraded(self) -> bool:
        return self.is_away

    def exists(self, pool: str, keys: Sequence[bytes]) -> Any:
        """Those that are stale seem to be there."""
        found = super().exists(pool, keys)
        return found if self.is_away else found | np.array([key in self.stale for key in keys], np.bool_)

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        outcomes = super()._get(pool, keys, pages)
        stale = [index for index, key in enumerate(keys) if key in self.stale]
        if not stale:
            return outcomes
        self.failing_reads.update(keys[index] for index in stale)
        self.on_failure()
        if not isinstance(self.answer, Outcome):
            raise self.answer("the node is gone")
        for index in stale:
            outcomes[index] = self.answer
        return outcomes

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        if self.is_full:
            return [Outcome.DROPPED] * len(keys)
        outcomes = super()._put(pool, keys, pages)
        return [Outcome.PRESENT if key in self.stale else outcome for key, outcome in zip(keys, outcomes, strict=True)]


class Rotten(Unwell):
    """Whose stale pages are given, and are something else."""

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        outcomes = Kept._get(self, pool, keys, pages)
        for key, page in zip(keys, pages, strict=True):
            if key in self.stale:
                self.failing_reads[key] += 1
                page[0] ^= 255
        return outcomes

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        super()._remove(pool, keys)
        self.stale.difference_update(keys)
