"""A tier's memory as one budget: what fits, what is refused, what goes first, and what the figures say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_tree import (
    POLICIES,
    BlockBudget,
    Component,
    ConfigurationError,
    Key,
    OutOfPagesError,
    Path,
    Point,
    Tier,
    Trailing,
    UnifiedTree,
    Value,
)
from unified_tree.components import composition_for
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.cache.metrics import CacheCollector
from unified_tree.controllers.doctor import Figures
from unified_tree.controllers.doctor.findings import findings
from unified_tree.controllers.pages.shared_tier_pages import SharedTierPages
from unified_tree.controllers.pools import host_budget
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.controllers.workbench.sizing.live_sizes import LiveSizes

FULL = Component(name="full", coverage=Path(), page_bytes=100, flops_per_token=1.0)
SWA = Component(name="swa", coverage=Trailing(3), page_bytes=300, flops_per_token=1.0)
MAMBA = Component(name="mamba", coverage=Point(), page_bytes=500, flops_per_token=1.0)


def budget_of(blocks: int, **page_blocks: int) -> BlockBudget:
    return BlockBudget(block_count=blocks, page_blocks=page_blocks)


def cache_of(blocks: int, *kinds: Component, **options: Any) -> PrefixCache:
    pages = {kind.name: kind.page_bytes // 100 for kind in kinds}
    return PrefixCache(kinds, 2, budget=BlockBudget(block_count=blocks, page_blocks=pages, block_bytes=100), **options)


def run(cache: PrefixCache, text: str) -> int:
    """One request, all of it published; how many tokens it had cached."""
    tokens = np.array([ord(letter) for letter in text])
    with cache.acquire(Key(tokens)) as lease:
        cache.allocate(lease, len(tokens))
        state = lease.state_page
        cache.commit(lease, tokens, states={} if state is None or len(tokens) % 2 else {len(tokens): state})
        return lease.cached_tokens


def used(cache: PrefixCache) -> dict[str, int]:
    budget = cache.stats().budget
    assert budget is not None
    return dict(budget.pool_blocks)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"block_count": 0, "page_blocks": {"full": 1}}, "block_count"),
        ({"block_count": 5, "page_blocks": {}}, "page_blocks"),
        ({"block_count": 5, "page_blocks": {"full": 0}}, "page_blocks"),
        ({"block_count": 5, "page_blocks": {"full": 6}}, "takes 6 blocks, and there are 5"),
        ({"block_count": 5, "page_blocks": {"full": 1}, "block_bytes": 0}, "block_bytes"),
    ],
)
def test_a_budget_that_cannot_be(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        BlockBudget(**given)


def test_sizes_in_bytes_become_blocks_without_padding() -> None:
    budget = BlockBudget.of({"full": 600, "swa": 400}, 100_000)
    assert (budget.block_bytes, dict(budget.page_blocks), budget.block_count) == (200, {"full": 3, "swa": 2}, 500)
    assert BlockBudget.of({"full": 600, "swa": 400}, 100_000, block_bytes=512).page_blocks == {"full": 2, "swa": 1}
    with pytest.raises(ConfigurationError, match="no block"):
        BlockBudget.of({"full": 600}, 599)
    with pytest.raises(ConfigurationError, match="page_bytes"):
        BlockBudget.of({"full": 0}, 599)


def test_a_model_says_its_own() -> None:
    model = composition_for("gemma-3-27b")
    budget, on_host = model.budget(1 << 34), host_budget(model, 1 << 34)
    assert budget.size_bytes == 1 << 34
    sizes = model.pool_page_bytes()
    assert all(on_host.page_blocks[name] * on_host.block_bytes > size for name, size in sizes.items()), "with trailers"
    tier = HostTier(budget=on_host, engine=NullEngine())
    cache = PrefixCache(model.components, model.page_size, budget=budget, host=tier)
    assert isinstance(cache.device, SharedTierPages)
    assert cache.controller is not None and isinstance(cache.controller.host, SharedTierPages)


@pytest.mark.parametrize(
    "options",
    [
        {"page_counts": {"full": 5}, "budget": budget_of(9, full=1, swa=1)},
        {"budget": budget_of(9, full=1)},
        {"budget": budget_of(9, full=1, swa=1, other=1)},
        {"budget": 9},
    ],
)
def test_a_cache_refuses_budgets_that_do_not_fit_it(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        PrefixCache([FULL, SWA], 2, **options)


class MyOrder:
    """A policy of one's own that ranks by a time of the whole tree."""

    def touched(self, value: Value) -> None:
        """Nothing to keep."""

    def rank(self, value: Value) -> float:
        return value.touched


def test_a_policy_must_say_that_its_ranks_compare() -> None:
    with pytest.raises(ConfigurationError, match="compares_across_pools"):
        cache_of(20, FULL, SWA, policy=lambda _: MyOrder())

    class Comparing(MyOrder):
        compares_across_pools = True

    assert run(cache_of(20, FULL, SWA, policy=lambda _: Comparing()), "abcd") == 0
    for policy in POLICIES:
        assert run(cache_of(20, FULL, SWA, policy=policy), "abcd") == 0


def test_memory_moves_to_the_kind_that_needs_it() -> None:
    cache = cache_of(24, FULL, SWA)
    for text in ("aaaa", "bbbb", "cccc"):
        run(cache, text)
    assert used(cache) == {"full": 6, "swa": 18}
    run(cache, "d" * 12)
    assert used(cache)["full"] >= 6
    assert sum(used(cache).values()) <= 24
    assert run(cache, "d" * 12 + "e") == 12
    assert cache.tree.check() == []


def test_what_was_not_used_for_longest_goes_first_whatever_its_kind() -> None:
    cache = cache_of(17, FULL, MAMBA)
    run(cache, "aa")
    run(cache, "bb")
    assert used(cache) == {"full": 2, "mamba": 10}
    assert run(cache, "bbc") == 2
    assert cache.tree.pool("full").evicted_pages >= 1
    assert cache.explain(Key([ord("a"), ord("a"), 0])).reachable_length == 0


def test_pages_of_several_pools_fit_together_or_not_at_all() -> None:
    cache = cache_of(10, FULL, SWA)
    device = cache.device
    assert device.fits({"full": 10}) and device.fits({"swa": 3}) and device.fits({"full": 4, "swa": 2})
    assert not device.fits({"full": 5, "swa": 2})
    before = cache.stats()
    with pytest.raises(OutOfPagesError) as refusal:
        device.allocate_all({"full": 5, "swa": 2})
    assert refusal.value.tier is Tier.DEVICE
    assert cache.stats().budget == before.budget
    taken = device.allocate_all({"full": 4, "swa": 2})
    with pytest.raises(OutOfPagesError, match="leased"):
        device.reserve({"full": 1})
    assert not device.try_reserve("full")
    device.free_all(taken)
    assert used(cache) == {"full": 0, "swa": 0}


def test_costs_age_together() -> None:
    cache = cache_of(12, FULL, SWA, policy="cost")
    for text in ("aaaa", "bbbb", "cccc"):
        run(cache, text)
    policy: Any = cache.tree.state.policy
    assert policy.inflation(0, Tier.DEVICE) == policy.inflation(1, Tier.DEVICE) > 0
    apart: Any = PrefixCache([FULL, SWA], 2, policy="cost").tree.state.policy
    apart._inflation[0] = 5.0
    assert (apart.inflation(0, Tier.DEVICE), apart.inflation(1, Tier.DEVICE)) == (5.0, 0.0)


def test_blocks_can_be_asked_for_only_where_pools_share_them() -> None:
    tree = UnifiedTree([FULL, SWA], 2, page_counts={"full": 4, "swa": 4})
    with pytest.raises(ConfigurationError, match="share no budget"):
        tree.evict_blocks(1)
    cache = cache_of(40, FULL, SWA)
    for text in ("aaaa", "bbbb"):
        run(cache, text)
    result = cache.tree.evict_blocks(1)
    assert {name: ids.size for name, ids in result.freed.items()} == {"full": 2, "swa": 2}
    cache.device.free_evicted(result)
    assert cache.tree.evict_blocks(0).victims == 0
    cache.device.free_evicted(cache.tree.evict_blocks(10_000))
    assert used(cache) == {"full": 0, "swa": 0}


def test_invalidated_state_goes_first() -> None:
    cache = cache_of(16, FULL, SWA)
    run(cache, "aaaa")
    run(cache, "bbbb")
    cache.invalidate()
    run(cache, "cccc")
    assert used(cache) == {"full": 2 + 2, "swa": 6 + 6}
    assert run(cache, "cccce") == 4


def test_the_figures_of_a_budget() -> None:
    cache = cache_of(20, FULL, SWA)
    for text in ("aaaa", "bbbb", "cccc", "aaaab"):
        run(cache, text)
    stats = cache.stats()
    assert stats.budget is not None and stats.host_budget is None
    assert stats.budget.used == sum(stats.budget.pool_blocks.values())
    free = stats.budget.total - stats.budget.used
    assert stats.pools["full"].total == stats.pools["full"].used + free
    found = {metric.name: metric for metric in CacheCollector(lambda: stats).collect()}
    sizes = {(s.labels["tier"], s.labels["state"]): s.value for s in found["unified_tree_budget_bytes"].samples}
    assert sizes["device", "total"] == 2000
    assert sum(s.value for s in found["unified_tree_budget_pool_bytes"].samples) == sizes["device", "used"]
    advice = " ".join(f"{finding.what} {finding.advice}" for finding in findings(Figures.of(cache)))
    assert "memory that all pools share" in advice and "Give the device's pools" in advice


def test_sizes_are_not_watched_where_pools_have_none() -> None:
    with pytest.raises(ConfigurationError, match="share"):
        LiveSizes.watch(cache_of(20, FULL, SWA))


def test_what_is_evicted_by_pool_is_short_by_what_has_left_since() -> None:
    cache = cache_of(60, FULL, SWA)
    for letter in "abcdefghijklmnopqrstuvwxyz":  # much leaves, of both pools
        run(cache, letter * 8)
    run(cache, "0123456789")
    cache.evict({"full": 100})
    assert run(cache, "0123456789xx") == 0
    sizes = [size for by_size in cache.ledger.short_by.values() for size, tokens in enumerate(by_size) if tokens]
    assert sizes
    assert max(sizes) <= (60).bit_length(), "no more than the budget has left since"
