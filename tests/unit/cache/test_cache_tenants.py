"""A cache whose namespaces have shares: a flood leaves the quiet ones what is theirs."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from unified_tree import Amount, BlockBudget, Component, ConfigurationError, Key, OutOfPagesError, Path, TenantGroup, Tenants
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.host import HostTier
from unified_tree.controllers.transfer_engines import NullEngine

FULL = Component(name="full", coverage=Path(), page_bytes=2)
QUIET = TenantGroup(name="quiet", namespaces=("q",), floor=0.25)


def serve(cache: PrefixCache, tokens: list[int], namespace: str) -> int:
    """One request from its prompt to its end; how much of it was cached."""
    with cache.acquire(Key(tokens, namespace)) as lease:
        cache.allocate(lease, len(tokens))
        cache.commit(lease, np.array(tokens))
        return lease.cached_tokens


def flooded(cache: PrefixCache) -> int:
    """Tokens that a quiet tenant's prompts hit after ten times as much of another's."""
    random = Random(1)
    prompts = [[i, *range(100, 104)] for i in range(4)]
    for prompt in prompts:
        serve(cache, prompt, "q")
    for i in range(40):
        serve(cache, [i, *[random.randrange(50) for _ in range(10)]], "flood")
    return sum(serve(cache, prompt, "q") for prompt in prompts)


@pytest.mark.parametrize("policy", ["lru", "cost", "density"])
@pytest.mark.parametrize("budget", [None, BlockBudget(block_count=160, page_blocks={"full": 2})])
def test_a_flood_leaves_a_quiet_tenant_its_floor(policy: str, budget: BlockBudget | None) -> None:
    counts = None if budget else {"full": 80}
    with_floor = PrefixCache([FULL], 1, counts, budget=budget, policy=policy, tenants=Tenants(groups=(QUIET,)))
    without = PrefixCache([FULL], 1, counts, budget=budget, policy="lru")
    assert flooded(with_floor) == 16
    assert flooded(without) == 0
    stats = with_floor.stats().tenants
    assert (stats["quiet"].requests, stats["quiet"].hit_tokens, stats[""].requests) == (8, 16, 40)
    (room,) = stats["quiet"].rooms.values()
    assert (room.share, room.cap, room.victims) == (40 if budget else 20, None, 0)


def test_hints_of_a_flood_do_not_take_another_tenants_floor() -> None:
    """The flood pins each of its prompts; what it pins beyond its share goes all the same."""
    cache = PrefixCache([FULL], 1, {"full": 80}, tenants=Tenants(groups=(QUIET,)))
    prompts = [[i, *range(100, 104)] for i in range(4)]
    for prompt in prompts:
        serve(cache, prompt, "q")
    for i in range(40):
        serve(cache, [1000 + i, *range(10)], "flood")
        assert cache.hints.pin(Key([1000 + i, *range(10)], "flood"))
    assert sum(serve(cache, prompt, "q") for prompt in prompts) == 16
    assert not cache.tree.check()


def test_an_eviction_says_whose_share_was_exceeded() -> None:
    cache = PrefixCache([FULL], 1, {"full": 20}, policy="lru", tenants=Tenants(groups=(QUIET,)))
    for i in range(4):
        serve(cache, [i, *range(10)], "flood")
    said = str(cache.explain(Key([0, *range(10)], "flood")))
    assert "evicted from the device pool of full" in said
    assert "the namespaces without a group hold 11 pages, their share is 0; there: " in said


def test_a_cap_holds_whenever_something_can_go() -> None:
    group = TenantGroup(name="capped", namespaces=("c", "d"), cap=Amount(pages={"full": 12}, host_pages={"full": 9}))
    host = HostTier(page_counts={"full": 60}, engine=NullEngine())
    cache = PrefixCache([FULL], 1, {"full": 60}, host=host, tenants=Tenants(groups=(group,)))
    random = Random(5)
    leases = []
    for _ in range(200):
        tokens = [random.randrange(4) for _ in range(random.randrange(2, 9))]
        try:
            lease = cache.acquire(Key(tokens, random.choice("cde")))
            leases.append(lease)
            cache.allocate(lease, len(tokens))
            cache.commit(lease, np.array(tokens))
        except OutOfPagesError:
            pass
        while len(leases) > random.randrange(5):
            cache.release(leases.pop(random.randrange(len(leases))))
        cache.poll()
        for room, cap in zip(cache.tree.state.rooms, (12, 9), strict=True):
            share = room.of_group(1)
            assert share.used <= cap or not share.has_evictable(0)
        assert not cache.tree.check()
    for lease in leases:
        cache.release(lease)
    cache.drain()
    cache.evict({"full": 60})
    cache.close()
    assert cache.device.allocators["full"].used_pages == cache.tree.pool("full").used_pages == 0


@pytest.mark.parametrize(
    "declared",
    [
        lambda: TenantGroup(name="", namespaces=("a",)),
        lambda: TenantGroup(name="a", namespaces="abc"),  # type: ignore[arg-type]
        lambda: TenantGroup(name="a", namespaces=("a",), floor=1.5),
        lambda: TenantGroup(name="a", namespaces=("a",), weight=-1),
        lambda: Amount(pages={"full": -1}),
        lambda: Tenants(groups=(QUIET, QUIET)),
        lambda: Tenants(groups=(QUIET, TenantGroup(name="other", namespaces=("q",)))),
        lambda: PrefixCache([FULL], 1, {"full": 4}, tenants=Tenants(groups=tuple(half(i) for i in range(3)))),
        lambda: PrefixCache([FULL], 1, {"full": 4}, tenants=Tenants(groups=(paged("draft"),))),
        lambda: PrefixCache([FULL], 1, tenants=Tenants(groups=(sized(4),))),
        lambda: PrefixCache([FULL], 1, {"full": 4}, tenants={"a": 0.5}),  # type: ignore[arg-type]
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(declared: object) -> None:
    assert callable(declared)
    with pytest.raises(ConfigurationError):
        declared()


def half(i: int) -> TenantGroup:
    """A group that may count on half of all."""
    return TenantGroup(name=str(i), namespaces=(str(i),), floor=0.5)


def paged(name: str) -> TenantGroup:
    """A group with a page of one component."""
    return TenantGroup(name="a", namespaces=("a",), floor=Amount(pages={name: 1}))


def sized(size_bytes: int) -> TenantGroup:
    """A group with some bytes."""
    return TenantGroup(name="a", namespaces=("a",), floor=Amount(size_bytes=size_bytes))
