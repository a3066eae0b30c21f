"""Statistics go to other processes: `unified-tree replay` died of those of tenants in a compiled build."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from unified_tree import BlockBudget, Component, Key, Path, TenantGroup, Tenants
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine

GROUPS = (
    TenantGroup(name="gold", namespaces=("acme", "more"), floor=0.3, shares=True),
    TenantGroup(name="rest", namespaces=("other",), shares=True),
    TenantGroup(name="last", namespaces=("new", "newer"), shares=True),
)


@pytest.mark.parametrize("read", [copy.deepcopy, lambda stats: pickle.loads(pickle.dumps(stats))])
@pytest.mark.parametrize("has_budget", [False, True])
def test_stats_are_copied_and_pickled(read: Callable[[object], object], has_budget: bool) -> None:
    blocks = BlockBudget(block_count=50, page_blocks={"full": 1}) if has_budget else None
    host = HostTier(engine=NullEngine(), page_counts={} if has_budget else {"full": 50}, budget=blocks)
    cache = PrefixCache(
        [Component(name="full", coverage=Path())],
        2,
        {} if has_budget else {"full": 50},
        budget=blocks,
        host=host,
        tenants=Tenants(groups=GROUPS, share_after=2),
    )
    for namespace in ("acme", "other", "new", "newer", "more"):
        with cache.acquire(Key(range(9), namespace=namespace)) as lease:
            cache.allocate(lease, 9)
            cache.commit(lease, 9)
    cache.drain()
    stats = cache.stats()
    assert stats.sharing is not None and stats.sharing.common_tokens and stats.tenants["gold"].requests == 2
    assert read(stats) == stats
