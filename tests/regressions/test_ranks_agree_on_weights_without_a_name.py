"""`invalidate()` without a name drew a random one on each rank: a pool that one writes was never found by the others again.

The name comes from a session that rank 0 draws when the ranks are started, so nobody else has it either.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import pytest
from kinds import FULL
from rank_threads import RankThreads
from stored_cache import Kept, StoredCache

from unified_tree.controllers.ranks import Consensus, LocalConsensus

PROMPT = list(range(41))
WAYS: dict[str, list[str | None]] = {
    "all": [None],
    "one namespace": ["lora"],
    "one after the other": ["lora", None],
    "one forgotten": ["lora", "b", "c"],
}
"""What is invalidated, in this order; None for all."""


def invalidate(cache: StoredCache, way: str) -> None:
    for namespace in WAYS[way]:
        cache.runner.invalidate(namespace)


class Shared:
    """One store for all ranks, in which the pages of one of them are understood by the others."""

    def __init__(self) -> None:
        self.known: dict[bytes, Any] = {}
        self._kept: Kept | None = None
        self._lock = Lock()

    def open(self, pools: list[Any]) -> Kept:
        with self._lock:
            self._kept = self._kept or Kept(pools)
            return self._kept

    def cache(self, consensus: Consensus | None, rank: int = 0) -> StoredCache:
        written = None if rank == 0 else ()
        return StoredCache([FULL], store=self.open, ranks=consensus, written=written, known=self.known, max_versions=2)


def one_rank(consensus: Consensus, rank: int, shared: Shared, way: str) -> list[int]:
    cache = shared.cache(consensus, rank)
    cache.compute(PROMPT, "lora")
    invalidate(cache, way)
    found = [cache.fetch(PROMPT, "lora")]
    cache.compute(PROMPT, "lora")
    cache.forget()
    found.append(cache.fetch(PROMPT, "lora"))
    cache.end()
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_one_rank_stores_all_find_and_nobody_else(way: str) -> None:
    shared = Shared()
    assert RankThreads(2).run(one_rank, shared=shared, way=way) == [[0, 40]] * 2
    later: Consensus | None
    for later in (None, LocalConsensus()):
        other = shared.cache(later)
        other.runner.versions["lora"] = 1_000_000  # of its own: a byte of anybody else's is a wrong one
        invalidate(other, way)
        assert other.fetch(PROMPT, "lora") == 0
        other.end()
