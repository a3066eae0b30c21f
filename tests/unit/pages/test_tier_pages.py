"""The pages of a tier, taken in several pools at once."""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FULL, swa

from unified_tree import Key, OutOfPagesError, Tier
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.pages.tier_pages import TierPages
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.declare.block_budget import BlockBudget

KINDS = [FULL, swa(3)]


def host_of(cache: PrefixCache) -> TierPages:
    """Its host pages."""
    assert cache.controller is not None
    return cache.controller.host


def test_each_pool_gives_its_pages_or_none_does() -> None:
    host = host_of(PrefixCache(KINDS, 2, host=HostTier(page_counts={"full": 4, "swa": 2}, engine=NullEngine())))
    with pytest.raises(OutOfPagesError, match="swa: 3 pages needed on host, 2 are free"):
        host.take_each([0, 1], [3, 3])
    assert [host.allocators[name].free_pages for name in ("full", "swa")] == [4, 2]
    full, window = host.take_each([0, 1], [3, 2])
    assert (sorted(set(full.tolist())), sorted(window.tolist())) == ([0, 1, 2], [0, 1])
    assert host.take_each([0], [1])[0].tolist() == [3]


def test_what_is_taken_is_evicted_if_it_must_be() -> None:
    cache = PrefixCache(KINDS, 2, host=HostTier(page_counts={"full": 4, "swa": 4}, engine=NullEngine()))
    with cache.acquire(Key(range(6))) as lease:
        cache.allocate(lease, 6)
        cache.commit(lease, list(range(6)))
    cache.drain()
    assert cache.tree.pool("full", Tier.HOST).used_pages == 3
    (ids,) = host_of(cache).take_each([0], [4])
    assert sorted(ids.tolist()) == [0, 1, 2, 3]
    assert cache.tree.pool("full", Tier.HOST).used_pages == 0


def test_pools_of_a_budget_give_as_many_as_it_has_blocks_for() -> None:
    budget = BlockBudget(block_count=8, page_blocks={"full": 2, "swa": 1})
    host = host_of(PrefixCache(KINDS, 2, host=HostTier(budget=budget, engine=NullEngine())))
    with pytest.raises(OutOfPagesError):
        host.take_each([0, 1], [3, 3])
    taken = host.take_each([0, 1], [3, 2])
    assert [len(np.unique(ids)) for ids in taken] == [3, 2]
    with pytest.raises(OutOfPagesError):
        host.take_each([1], [1])
