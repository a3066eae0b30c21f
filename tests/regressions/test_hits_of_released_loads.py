"""Every hit token is of the device or of the host, also of requests that are released while they load, or whose load fails."""

from __future__ import annotations

import random

import pytest

from unified_tree import Component, Key, OutOfPagesError, Path
from unified_tree.controllers import CacheStats, HostTier, PrefixCache
from unified_tree.controllers.testing import Faults, SimulatedEngine
from unified_tree.controllers.transfer_engines import VirtualClock


def require_sums(stats: CacheStats) -> None:
    assert stats.hit_tokens == stats.device_hit_tokens + stats.host_hit_tokens
    assert stats.prompt_tokens == stats.hit_tokens + sum(stats.misses.values()) + stats.arriving_tokens


@pytest.mark.parametrize("failure_rate", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(10))
def test_hits_are_of_one_tier(seed: int, failure_rate: float) -> None:
    choices = random.Random(seed)
    engine = SimulatedEngine(seed=seed, clock=VirtualClock(), faults=Faults(fails=failure_rate))
    host = HostTier(page_counts={"full": 32}, engine=engine)
    cache = PrefixCache([Component(name="full", coverage=Path())], 1, {"full": 16}, host=host)
    for _ in range(60):
        tokens = [choices.randrange(2)] * choices.randrange(1, 8) + [9]
        try:
            with cache.acquire(Key(tokens)) as lease:
                if not lease.is_loading:
                    cache.allocate(lease, len(tokens))
                    cache.commit(lease, len(tokens))
                elif choices.random() < 0.3:
                    cache.poll()
        except OutOfPagesError:
            pass
        if choices.random() < 0.5:
            cache.drain()
            require_sums(cache.stats())
            cache.evict({"full": 16})
    cache.drain()
    require_sums(cache.stats())
    assert failure_rate or cache.stats().host_hit_tokens
