"""What a full cache gives up of a prompt: its end, and no more than is needed."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from unified_tree import BlockBudget, Component, Key, MissCause, Path, Tier
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.host import WritePolicy
from unified_tree.controllers.pages.tier_pages import least_cut
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.terms.errors import OutOfPagesError

FULL = Component(name="full", coverage=Path(), page_bytes=100, flops_per_token=1e9)
DRAFT = Component(name="draft", coverage=Path(), page_bytes=100, flops_per_token=1e9)
PAGE = 32
PAGES = 40

Prefix = tuple[int, ...]
"""Of a prompt, whole pages, each by a number."""


def cache_of(kinds: list[Component], pages: int = PAGES, *, shared: bool = False, **options: Any) -> PrefixCache:
    if shared:
        blocks = {kind.name: 1 + 2 * at for at, kind in enumerate(kinds)}
        budget = BlockBudget(block_count=pages * sum(blocks.values()), page_blocks=blocks, block_bytes=100)
        return PrefixCache(kinds, PAGE, budget=budget, **options)
    return PrefixCache(kinds, PAGE, {kind.name: pages for kind in kinds}, **options)


def serve(cache: PrefixCache, prompt: Prefix, *, polls: int = 3) -> int:
    """One request, all of it published; how many pages it had on device."""
    tokens = np.repeat(np.array(prompt), PAGE)
    with cache.acquire(Key(np.append(tokens, 0))) as lease:
        cached = lease.cached_tokens
        cache.allocate(lease, tokens.size)
        cache.commit(lease, tokens)
    for _ in range(polls):
        cache.poll()
    assert not cache.tree.check()
    return cached // PAGE


class ByPages:
    """Least recently used, page by page."""

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._used: dict[Prefix, int] = {}
        self._now = 0

    def serve(self, prompt: Prefix) -> int:
        """As `serve`."""
        own = [prompt[:count] for count in range(1, len(prompt) + 1)]
        hit = sum(prefix in self._used for prefix in own)
        for prefix in own[:hit]:
            self._used[prefix] = self._now
        for _ in range(max(0, len(self._used) + len(prompt) - hit - self._pages)):
            oldest = min(self._used.keys() - set(own), key=lambda prefix: (self._used[prefix], -len(prefix)))
            del self._used[oldest]
        self._now += 1
        self._used |= dict.fromkeys(own, self._now)
        self._now += 1
        return hit


def prompts(seed: int, count: int) -> list[Prefix]:
    """Some go on from an earlier one, some fork off, some are new."""
    draw, known = Random(seed), [tuple[int, ...]()]
    for _ in range(count):
        before = draw.choice(known[-12:])
        kept = before if draw.random() < 0.5 else before[: draw.randrange(len(before) + 1)]
        new = tuple(draw.randrange(1, 1 << 30) for _ in range(draw.randrange(1, 15)))
        known.append((kept + new)[:PAGES])
    return known[1:]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kinds", [[FULL], [FULL, DRAFT]], ids=["full", "full+draft"])
def test_it_hits_what_a_cache_by_pages_hits(kinds: list[Component], shared: bool, seed: int) -> None:
    cache, by_pages = cache_of(kinds, shared=shared, policy="lru"), ByPages(PAGES)
    hits = [(serve(cache, prompt), by_pages.serve(prompt)) for prompt in prompts(seed, 150)]
    assert [ours for ours, _ in hits] == [theirs for _, theirs in hits]
    assert sum(ours for ours, _ in hits) > 100
    cache.close()


@pytest.mark.parametrize("shared", [False, True])
def test_the_misses_behind_a_cut_are_evictions(shared: bool) -> None:
    cache = cache_of([FULL], shared=shared)
    long, other = tuple(range(1, 31)), tuple(range(101, 118))
    serve(cache, long)
    serve(cache, other)
    with cache.acquire(Key(np.append(np.repeat(np.array(long), PAGE), 0))) as lease:
        assert lease.cached_tokens == 23 * PAGE
        assert [(miss.cause, miss.tokens) for miss in lease.misses[:1]] == [(MissCause.EVICTED, 7 * PAGE)]
    assert [(serve(cache, long)) for _ in range(2)] == [23, 30]
    cache.close()


def test_with_a_host_tier_what_was_cut_off_comes_back_from_there() -> None:
    tier = HostTier(page_counts={"full": 4 * PAGES}, engine=NullEngine())
    cache = cache_of([FULL], host=tier)
    long, other = tuple(range(1, 31)), tuple(range(101, 118))
    serve(cache, long)
    serve(cache, other)
    assert cache.tree.pool("full").evicted_pages == 7
    with cache.acquire(Key(np.append(np.repeat(np.array(long), PAGE), 0))) as lease:
        assert lease.is_loading and lease.host_tokens == 7 * PAGE
        assert lease.cached_tokens == 30 * PAGE
    assert not cache.tree.check()
    cache.close()


@pytest.mark.parametrize("write_policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK])
def test_what_is_left_of_a_prompt_that_was_cut_before_its_copy_is_copied(write_policy: WritePolicy) -> None:
    tier = HostTier(page_counts={"full": 4 * PAGES}, engine=NullEngine(), write_policy=write_policy)
    cache = cache_of([FULL], host=tier)
    long, other = tuple(range(1, 31)), tuple(range(101, 118))
    serve(cache, long, polls=0)
    serve(cache, other, polls=0)
    assert cache.tree.pool("full").evicted_pages == 7 and not cache.tree.pool("full", Tier.HOST).used_pages
    cache.drain()
    assert cache.tree.match_prefix(Key(np.repeat(np.array(long), PAGE))).reachable.length == 23 * PAGE
    assert not cache.stats().drops.get("backup stale")
    assert not cache.tree.check()
    cache.close()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kinds", [[FULL], [FULL, DRAFT]], ids=["full", "full+draft"])
@pytest.mark.parametrize("write_policy", list(WritePolicy))
def test_nothing_breaks_where_cuts_meet_copies(write_policy: WritePolicy, kinds: list[Component], seed: int) -> None:
    draw = Random(seed)
    counts = {kind.name: draw.choice([PAGES // 2, PAGES, 3 * PAGES]) for kind in kinds}
    tier = HostTier(page_counts=counts, engine=NullEngine(), write_policy=write_policy, low_water=draw.random() / 4)
    cache = cache_of(kinds, host=tier, policy=draw.choice(["lru", "density"]))
    for prompt in prompts(seed, 120):
        try:
            serve(cache, prompt, polls=draw.choice([0, 0, 1, 3]))
        except OutOfPagesError:  # copies under way lock what they read
            cache.drain()
    cache.drain()
    assert cache.tree.pool("full").evicted_pages > 100
    assert not cache.tree.check()
    cache.close()


def test_an_idle_prompt_that_is_cut_waits_once_and_with_what_it_has_left() -> None:
    tier = HostTier(page_counts={"full": 4 * PAGES}, engine=NullEngine(), write_policy=WritePolicy.WRITE_BACK, low_water=0.0)
    cache = cache_of([FULL], host=tier)
    long, other = tuple(range(1, 31)), tuple(range(101, 118))
    serve(cache, long, polls=0)
    serve(cache, other, polls=0)
    assert cache.tree.pool("full").evicted_pages == 7
    serve(cache, (*long[:23], 999), polls=0)  # goes on from what is left, and supersedes it
    assert cache.controller is not None
    idle = cache.controller._backups._idle
    assert idle is not None and idle.count == 2, "the other prompt, and what went on"
    assert idle._pages["full"] <= cache.tree.pool("full").evictable_pages
    assert not cache.tree.check()
    cache.close()


@pytest.mark.parametrize(
    ("pages", "page_size", "least"),
    [(None, 1, 32), (100, 1, 32), (12_800, 1, 100), (100, 16, 2), (1_024, 64, 8), (127, 64, 1), (1_280_000, 64, 10_000)],
)
def test_a_cut_takes_32_tokens_and_a_128th_of_the_pool(pages: int | None, page_size: int, least: int) -> None:
    assert least_cut(pages, page_size) == least


def test_a_large_pool_loses_no_less_of_a_leaf() -> None:
    cache = cache_of([FULL], 384)
    long = tuple(range(1, 371))
    serve(cache, long)
    serve(cache, tuple(range(1_001, 1_016)))
    assert cache.tree.pool("full").evicted_pages == 3, "one page was needed"
    assert serve(cache, long) == 367
    cache.close()
