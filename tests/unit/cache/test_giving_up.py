"""Optional kinds of state without pages: a request runs without them, and hits what it hits with them."""

from __future__ import annotations

from typing import Any

import pytest
from kinds import FULL, OWN_DRAFT, swa

from unified_tree import Component, Key, LeaseError, OutOfPagesError, Path
from unified_tree.controllers import HostTier, LoadCost, PrefixCache, WritePolicy
from unified_tree.controllers.transfer_engines import NullEngine

NOTES = Component(name="notes", coverage=Path(), required=False, shares="draft")
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


@pytest.mark.parametrize("kind", [OWN_DRAFT, WINDOW])
def test_what_is_on_host_is_loaded_without_an_optional_kind_that_has_no_room(kind: Component) -> None:
    host = HostTier(
        page_counts={"full": 40, "draft": 40},
        engine=NullEngine(),
        write_policy=WritePolicy.WRITE_THROUGH,
        load_cost=LoadCost(min_tokens=1),
    )
    cache = cache_of(kind, host=host)
    with cache.acquire(Key(PROMPT)) as lease:
        cache.allocate(lease, 16)
        cache.commit(lease, PROMPT)
    cache.drain()
    cache.evict({"full": 8, "draft": 8})
    other = cache.acquire(Key([7, 8]))
    cache.allocate(other, 16)
    with cache.acquire(Key([*PROMPT, 1])) as lease:
        assert (lease.cached_tokens, lease.host_tokens) == (16, 16)
        cache.drain()
        assert (lease.pages("full") >= 0).all()
        assert (lease.pages("draft") < 0).all()
    assert cache.stats().hit_tokens_without == {"draft": 16}
    assert "no room to load" not in cache.stats().drops
    cache.release(other)
    cache.close()
