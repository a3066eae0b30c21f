"""The name of every namespace that was ever invalidated stayed with the cache, at 160 bytes each."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
from kinds import FULL

from unified_tree import Key
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.weights.generations import Generations


def test_names_do_not_stay() -> None:
    generations = Generations()
    held = generations.current("held")
    counts = generations.count(100)
    tracemalloc.start()
    for i in range(20_000):
        generations.current(f"tenant {i}")
        generations.end(f"tenant {i}")
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 64 << 10
    assert not held.has_ended
    assert generations.current("held") is held
    assert counts.of("held") != (0, 0), "beyond the bound all count as invalidated"


def test_a_lease_knows_that_its_namespace_was_invalidated() -> None:
    cache = PrefixCache([FULL], 2)
    tokens = np.arange(6)
    for name in ("tenant", None):
        lease, other = cache.acquire(Key(tokens, "tenant")), cache.acquire(Key(tokens, "other"))
        for each in (lease, other):
            cache.allocate(each, 6)
        cache.invalidate("tenant")
        cache.invalidate(name)
        later = cache.acquire(Key(tokens, "tenant"))
        cache.allocate(later, 6)
        for each in (lease, other, later):
            cache.commit(each, tokens)
            cache.release(each)
        assert cache.acquire(Key(tokens, "tenant")).cached_tokens == 4, "what was computed after it counts"
        assert cache.acquire(Key(tokens, "other")).cached_tokens == (4 if name else 0)
    assert cache.stats().drops["commit of what was invalidated"] == 3
