"""Optional kinds of state without pages: a request runs without them, and hits what it hits with them."""

from __future__ import annotations

from typing import Any

import pytest
from kinds import FULL, OWN_DRAFT, swa

from unified_tree import BlockBudget, Component, Key, LeaseError, OutOfPagesError, Path, Point
from unified_tree.controllers import HostTier, Lease, LoadCost, PrefixCache, WritePolicy
from unified_tree.controllers.transfer_engines import NullEngine

NOTES = Component(name="notes", coverage=Path(), required=False, shares="draft")
STATE = Component(name="draft", coverage=Point(), required=False)
WINDOW = swa(4, required=False, name="draft")
PROMPT = list(range(16))


def cache_of(*kinds: Component, drafts: int = 8, **options: Any) -> PrefixCache:
    return PrefixCache([FULL, *kinds], 2, {"full": 40, "draft": drafts}, policy="lru", **options)


@pytest.mark.parametrize("kinds", [(OWN_DRAFT,), (OWN_DRAFT, NOTES), (WINDOW,)])
def test_a_request_gives_up_what_has_no_pages(kinds: tuple[Component, ...]) -> None:
    cache = cache_of(*kinds, drafts=9)
    other, lease = cache.acquire(Key([7, 8])), cache.acquire(Key(PROMPT))
    cache.allocate(other, 10)
    cache.allocate(lease, 8)
    with pytest.raises(OutOfPagesError) as refused:
        cache.allocate(lease, 16)
    assert refused.value.component == "draft"
    assert not cache.can_allocate(lease, 16)
    assert cache.can_allocate(lease, 16, without=["draft"])
    cache.allocate(lease, 16, without=["draft"])
    assert lease.given_up == ("draft",)
    assert lease.pages("draft").tolist() == [-1] * 8
    assert cache.device.allocators["draft"].free_pages == 4, "its own pages are free"
    cache.allocate(lease, 18, without=["draft"])
    assert (lease.pages("draft", 6).tolist(), lease.page("draft", 0)) == ([-1] * 3, -1)
    cache.commit(lease, PROMPT)
    cache.release(lease)
    cache.release(other)
    assert cache.stats().drops["ran without an optional component"] == 1
    with cache.acquire(Key([*PROMPT, 1])) as again:
        assert again.cached_tokens == 16
        assert again.given_up == ()
    assert cache.stats().hit_tokens_without == {kind.name: 16 for kind in kinds}
    assert cache.tree.check() == []


def test_a_row_of_a_batch_gives_up_what_has_no_pages() -> None:
    cache = cache_of(OWN_DRAFT, drafts=2)
    batch = cache.batch(max_leases=2, max_tokens=20)
    leases = [cache.acquire(Key([n, n])) for n in (1, 2)]
    for lease in leases:
        cache.allocate(lease, 2)
        batch.add(lease)
    with pytest.raises(OutOfPagesError, match="draft"):
        batch.allocate(1)
    cache.allocate(leases[0], 2, without=["draft"])
    news = batch.allocate(1)
    assert (news["draft"].rows.tolist(), news["full"].rows.tolist()) == ([1], [0, 1])
    assert (batch.tables["draft"][0] == -1).all()
    batch.remove(leases[0])
    cache.commit(leases[0], [1, 1])
    other = cache.batch(max_leases=1, max_tokens=20)
    other.add(leases[0])
    assert (other.tables["draft"][0] == -1).all()
    for lease in leases:
        cache.release(lease)
    assert cache.stats().pools["draft"].used == 0


@pytest.mark.parametrize("without", [["full"], ["none"], [3], ["notes"], 7])
def test_only_optional_kinds_with_pages_of_their_own_are_given_up(without: Any) -> None:
    cache = cache_of(OWN_DRAFT, NOTES)
    with cache.acquire(Key(PROMPT)) as lease:
        for call in (cache.allocate, cache.can_allocate):
            with pytest.raises(LeaseError, match="without"):
                call(lease, 4, without=without)
        assert (lease.length, lease.given_up) == (0, ())


@pytest.mark.parametrize("kind", [OWN_DRAFT, WINDOW, STATE])
@pytest.mark.parametrize("reserve", [0, 18])
def test_what_is_on_host_is_loaded_without_an_optional_kind_that_has_no_room(kind: Component, reserve: int) -> None:
    cache = cache_of(kind, host=a_host())
    others = prompt_on_host_alone(cache)
    with cache.acquire(Key([*PROMPT, 1]), reserve_tokens=reserve) as lease:
        assert (lease.cached_tokens, lease.host_tokens) == (16, 16)
        assert lease.given_up == (("draft",) if reserve or kind is STATE else ())
        cache.drain()
        assert (lease.pages("full") >= 0).all()
        assert lease.state_copies == ()
        if kind is not STATE:
            assert (lease.pages("draft") < 0).all()
    assert cache.stats().hit_tokens_without == {"draft": 16}
    assert "no room to load" not in cache.stats().drops
    for other in others:
        cache.release(other)
    cache.close()


def test_a_prefetch_brings_what_there_is_room_for() -> None:
    cache = cache_of(STATE, host=a_host())
    others = prompt_on_host_alone(cache)
    assert cache.hints.prefetch(Key(PROMPT))
    cache.drain()
    with cache.acquire(Key([*PROMPT, 1])) as lease:
        assert (lease.cached_tokens, lease.host_tokens) == (16, 0)
    for other in others:
        cache.release(other)
    cache.close()
    assert cache.stats().hints == {("prefetch", "used"): 1}


@pytest.mark.parametrize("kind", [OWN_DRAFT, WINDOW, STATE])
def test_a_request_begins_without_what_has_no_pages(kind: Component) -> None:
    cache = cache_of(kind)
    with cache.acquire(Key(PROMPT)) as lease:
        cache.allocate(lease, 16)
        cache.commit(lease, PROMPT, dict(lease.save_pages))
    others = hold_all(cache)
    for reserve in (18, 22):
        with cache.acquire(Key([*PROMPT, 1]), reserve_tokens=reserve) as lease:
            assert (lease.cached_tokens, lease.length, lease.given_up) == (16, reserve, ("draft",))
            assert (lease.state_page, lease.state_copies, dict(lease.save_pages)) == (None, (), {})
            cache.allocate(lease, 24, without=["draft"])
            cache.commit(lease, [*PROMPT, 1, *range(7)])
            assert lease.given_up == ("draft",)
        assert cache.tree.check() == []
    assert cache.stats().drops["ran without an optional component"] == 2
    for other in others:
        cache.release(other)
    with pytest.raises(OutOfPagesError) as refused:
        cache.acquire(Key([8]), reserve_tokens=82)
    assert refused.value.component == "full"
    assert not any(pool.leased for pool in cache.stats().pools.values())
    with cache.acquire(Key([8]), reserve_tokens=6) as lease:
        assert lease.given_up == ()


def test_a_state_is_given_up_in_a_batch_or_outside() -> None:
    cache = cache_of(STATE)
    batch = cache.batch(max_leases=1, max_tokens=40)
    with cache.acquire(Key(PROMPT)) as lease:
        cache.allocate(lease, 16)
        batch.add(lease)
        cache.allocate(lease, 16, without=["draft"])
        assert (lease.given_up, lease.state_page, dict(lease.save_pages)) == (("draft",), None, {})
        assert cache.stats().pools["draft"].used == 0
        batch.allocate(4)
        batch.advance()
        batch.remove(lease)
        cache.commit(lease, [*PROMPT, 1, 2, 3, 4])
        assert (lease.committed, lease.length) == (20, 20)


def test_a_request_goes_on_when_its_optional_state_was_published() -> None:
    cache = cache_of(STATE)
    with cache.acquire(Key(PROMPT), save_output=False) as lease:
        cache.allocate(lease, 16)
        assert lease.state_page is not None
        cache.commit(lease, PROMPT, {16: lease.state_page})
        assert lease.given_up == ("draft",)
        cache.allocate(lease, 18)
        cache.commit(lease, [*PROMPT, 1, 2])
    with cache.acquire(Key([*PROMPT, 1])) as lease:
        assert (lease.cached_tokens, len(lease.state_copies)) == (16, 1)
    with cache.acquire(Key([*PROMPT, 1, 2, 3])) as lease:
        assert (lease.cached_tokens, lease.state_copies) == (18, ())


def test_a_shared_budget_names_the_kind_to_go_on_without() -> None:
    budget = BlockBudget(block_count=30, page_blocks={"full": 2, "draft": 1})
    cache = PrefixCache([FULL, OWN_DRAFT], 2, budget=budget, policy="lru")
    with cache.acquire(Key(PROMPT)) as lease:
        for length, component in ((32, "full"), (22, "draft")):
            with pytest.raises(OutOfPagesError) as refused:
                cache.allocate(lease, length)
            assert refused.value.component == component
        cache.allocate(lease, 22, without=["draft"])
    with cache.acquire(Key(PROMPT), reserve_tokens=30) as lease:
        assert lease.given_up == ("draft",)


@pytest.mark.parametrize("later", [False, True])
def test_a_draft_that_the_hit_locks_makes_room_in_a_shared_budget(later: bool) -> None:
    budget = BlockBudget(block_count=24, page_blocks={"full": 2, "draft": 1})
    cache = PrefixCache([FULL, OWN_DRAFT], 2, budget=budget, policy="lru")
    with cache.acquire(Key(PROMPT)) as lease:
        cache.allocate(lease, 16)
        cache.commit(lease, PROMPT)
    with cache.acquire(Key([*PROMPT, 0]), reserve_tokens=0 if later else 24) as lease:
        if later:
            with pytest.raises(OutOfPagesError) as refused:
                cache.allocate(lease, 24)
            assert (refused.value.component, lease.given_up) == ("full", ())
            cache.allocate(lease, 24, without=["draft"])
        assert (lease.cached_tokens, lease.given_up) == (16, ("draft",))
        assert cache.stats().pools["draft"].used == 0, "it went for the request's own sake"
        cache.commit(lease, [*PROMPT, *range(8)])
        assert cache.tree.check() == []
    with cache.acquire(Key([*PROMPT, *range(8), 1])) as lease:
        assert lease.cached_tokens == 24


def test_a_lease_that_gave_up_a_draft_locks_nothing_of_it() -> None:
    cache = cache_of(OWN_DRAFT, swa(4, required=False), drafts=8)
    with cache.acquire(Key(PROMPT)) as lease:
        cache.allocate(lease, 16)
        cache.commit(lease, PROMPT)
    with cache.acquire(Key([*PROMPT, 1])) as lease:
        pools = cache.tree.state.device_pools
        locked = {pool.component.name for pool in pools if pool.protected_pages}
        cache.allocate(lease, 16, without=["draft"])
        cache.allocate(lease, 16, without=["draft"])
        assert locked - {pool.component.name for pool in pools if pool.protected_pages} == {"draft"}
        cache.commit(lease, [*PROMPT])
        assert {pool.component.name for pool in pools if pool.protected_pages} == locked - {"draft"}


def a_host() -> HostTier:
    return HostTier(
        page_counts={"full": 40, "draft": 40},
        engine=NullEngine(),
        write_policy=WritePolicy.WRITE_THROUGH,
        load_cost=LoadCost(min_tokens=1),
    )


def prompt_on_host_alone(cache: PrefixCache) -> list[Lease]:
    """Serve PROMPT, leave it on host alone, and fill the device; returns what fills it."""
    with cache.acquire(Key(PROMPT)) as lease:
        cache.allocate(lease, 16)
        cache.commit(lease, PROMPT, dict(lease.save_pages))
    cache.drain()
    cache.evict({"full": 8, "draft": 8})
    return hold_all(cache)


def hold_all(cache: PrefixCache) -> list[Lease]:
    """Requests that hold all pages of the draft that can be had."""
    others: list[Lease] = []
    while cache.device.has_room({"draft": 1}):
        others.append(cache.acquire(Key([77, len(others)])))
        room = cache.device.allocators["draft"].free_pages
        if cache.layout.point is None:
            cache.allocate(others[-1], 2 * room if room else 2 * cache.stats().pools["draft"].evictable)
    return others
