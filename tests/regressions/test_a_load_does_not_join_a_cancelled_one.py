"""A request asked for what a cancelled load was bringing, before that load had ended, and failed with it."""

from __future__ import annotations

import numpy as np

from unified_tree import Component, Key, Path
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.testing import SimulatedEngine
from unified_tree.controllers.transfer_engines import VirtualClock

TOKENS = np.arange(13)


def commit(cache: PrefixCache, tokens: np.ndarray) -> None:
    with cache.acquire(Key(tokens)) as lease:
        cache.allocate(lease, tokens.size)
        cache.commit(lease, tokens)


def test_it_computes_instead() -> None:
    tier = HostTier(page_counts={"full": 16}, engine=SimulatedEngine(0, VirtualClock()))
    cache = PrefixCache([Component(name="full", coverage=Path())], 2, {"full": 8}, host=tier)
    commit(cache, TOKENS)
    cache.drain()
    commit(cache, np.arange(100, 114))
    cache.drain()
    first = cache.acquire(Key(TOKENS))
    assert first.is_loading
    cache.poll()
    cache.release(first)
    second = cache.acquire(Key(TOKENS))
    assert not second.is_loading
    assert cache.stats().drops["load beside a cancelled one"] == 1
    cache.release(second)
    cache.drain()
    third = cache.acquire(Key(TOKENS))
    assert third.cached_tokens == 12
    cache.drain()
    assert (third.is_loading, third.failure) == (False, None)
    cache.release(third)
    cache.close()
