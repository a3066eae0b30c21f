"""`acquire(reserve_tokens=...)` without room raised the hits of what it would have resumed from, and the clock, each time; with
selective writes the second refusal copied the prompt to host. A load that was refused for room counted its request twice. A
transfer without room left the node of its boundary cut in two.
"""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FULL, MAMBA, swa

from unified_tree import Key, OutOfPagesError, Tier, UnifiedTree
from unified_tree.controllers import HostTier, PrefixCache, WritePolicy
from unified_tree.controllers.transfer_engines import NullEngine

PROMPT = list(range(32))


def cache_of(
    pages: int, policy: WritePolicy = WritePolicy.WRITE_THROUGH_SELECTIVE, policy_name: str = "density"
) -> PrefixCache:
    host = HostTier(page_counts={"full": 64}, engine=NullEngine(), write_policy=policy, selective_hits=2)
    cache = PrefixCache([FULL], 2, {"full": pages}, host=host, policy=policy_name)
    with cache.acquire(Key(PROMPT), reserve_tokens=32) as lease:
        cache.commit(lease, 32)
    return cache


def uses(cache: PrefixCache) -> tuple[object, ...]:
    state = cache.tree.state
    values = [value for node in state.nodes for value in (*node.device, *node.host) if value is not None]
    return state.clock, [(value.hits, value.touched) for value in values], cache.tree.dump()


@pytest.mark.parametrize("policy", ["density", "lru", "lfu", "cost"])
def test_six_refusals_are_no_use(policy: str) -> None:
    cache = cache_of(24, policy_name=policy)
    before = uses(cache)
    for _ in range(6):
        with pytest.raises(OutOfPagesError):
            cache.acquire(Key([*PROMPT, 1, 2]), [2, 4], reserve_tokens=100)
    with pytest.raises(OutOfPagesError):
        cache.acquire_to_fill(Key([*PROMPT, 1, 2]), 100)
    cache.drain()
    assert uses(cache) == before
    assert cache.stats().backed_up.pages == 0 and cache.stats().drops == {} and cache.stats().requests == 1
    assert cache.stats().refused == 7


def test_the_request_that_is_admitted_at_last_is_one_use() -> None:
    cache = cache_of(24)
    other = cache.acquire(Key([7] * 14), reserve_tokens=14)
    for _ in range(3):
        with pytest.raises(OutOfPagesError):
            cache.acquire(Key([*PROMPT, 1, 2, 3]), reserve_tokens=36)
    before = cache.tree.state.clock
    cache.release(other)
    lease = cache.acquire(Key([*PROMPT, 1, 2, 3]), reserve_tokens=36)
    assert cache.tree.state.clock == before + 1 and lease.cached_tokens == 32
    assert [value.hits for node in cache.tree.state.nodes for value in node.device if value is not None] == [1]


def test_what_is_saved_is_not_counted_for_the_refused() -> None:
    cache = PrefixCache([FULL, swa(3), MAMBA], 2, {"full": 8, "swa": 8, "mamba": 4}, save_limit=1)
    with pytest.raises(OutOfPagesError):
        cache.acquire(Key(range(12)), [2, 4, 6], reserve_tokens=40)
    assert cache.stats().drops == {} and cache.stats().refused == 1


def test_a_load_without_room_ticks_once() -> None:
    cache = cache_of(24, WritePolicy.WRITE_THROUGH)
    cache.drain()
    cache.evict({"full": 16})
    running = cache.acquire(Key([9] * 20), reserve_tokens=20)
    before, loads = cache.tree.state.clock, cache.stats().loads
    lease = cache.acquire(Key([*PROMPT, 1]), reserve_tokens=10)
    assert (lease.cached_tokens, cache.tree.state.clock, cache.stats().loads) == (0, before + 1, loads)
    assert cache.stats().drops == {"no room to load": 1} and cache.stats().refused == 0
    hits = [value.hits for node in cache.tree.state.nodes for value in node.host if value is not None]
    assert hits == [1]
    for each in (running, lease):
        cache.release(each)


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DEVICE])
def test_a_transfer_without_room_leaves_no_cut(tier: Tier) -> None:
    tree = UnifiedTree([FULL], 2)
    whole = tree.insert(Key(PROMPT), {"full": np.arange(16)}).boundary
    part = whole._replace(length=8)
    if tier is Tier.DEVICE:
        effect = tree.transfers.backup(whole, {"full": np.arange(16)})
        assert effect is not None
        tree.transfers.acknowledge(effect)
        tree.evict({"full": 16})
    begin, before = (tree.transfers.backup, tree.transfers.load)[tier is Tier.DEVICE], tree.dump()

    def refuse(needs: dict[str, int]) -> dict[str, np.ndarray]:
        assert needs == {"full": 4}
        raise OutOfPagesError("none")

    for _ in range(3):
        with pytest.raises(OutOfPagesError):
            begin(part, refuse)
    assert tree.dump() == before and not tree.locks.open
    effect = begin(part, {"full": np.arange(20, 24)})
    assert effect is not None
    tree.transfers.acknowledge(effect)
    assert not tree.check() and not tree.locks.open and tree.pages(part, "full", tier).tolist() == [20, 21, 22, 23]
