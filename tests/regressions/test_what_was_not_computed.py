"""What a request did not compute is not published, and its lease says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kinds import DRAFT, FULL, MAMBA, OWN_DRAFT, SETS, swa
from published import publish

from unified_tree import BlockBudget, Component, Key, LeaseError, OutOfPagesError, Trailing
from unified_tree.controllers import Lease, PrefixCache

# A request that was preempted before its first run had pages published that nothing was written to: the running state's,
# where an optional state was missing, and those of a window that was still to be rebuilt. The next request resumed from them.

PROMPT = np.arange(21)


def hit_without_a_state() -> tuple[PrefixCache, Lease]:
    """A hit of 8 tokens that lacks the optional state."""
    cache = PrefixCache(SETS["optional mamba"], 2)
    with cache.acquire(Key(PROMPT[:9]), reserve_tokens=8) as lease:
        cache.commit(lease, 8)
    lease = cache.acquire(Key(PROMPT))
    assert (lease.cached_tokens, lease.state_copies) == (8, ())
    return cache, lease


def test_a_state_that_was_missing_is_not_published() -> None:
    cache, lease = hit_without_a_state()
    assert cache.preempt(lease, 8) == 8
    assert cache.acquire(Key(PROMPT)).state_copies == ()


def test_nor_is_one_that_was_computed_without_a_state_to_begin_from() -> None:
    cache, lease = hit_without_a_state()
    cache.allocate(lease, 20)
    cache.advance(lease, 12)
    assert (lease.state_tokens, dict(lease.save_pages)) == (None, {})
    assert lease.state_page is not None
    with pytest.raises(LeaseError, match="had no state to begin from"):
        cache.commit(lease, 12, {12: lease.state_page})
    assert lease.committed == 8
    cache.preempt(lease, 12)
    again = cache.acquire(Key(PROMPT))
    assert (again.cached_tokens, again.state_copies) == (12, ())


def rebuilding() -> tuple[PrefixCache, Lease]:
    """A hit of 20 tokens whose window has to be computed again, from token 14 on."""
    cache = PrefixCache([FULL, swa(4, rebuild_tokens=4)], 2)
    publish(cache, PROMPT[:20])
    cache.evict({"swa": 10})
    lease = cache.acquire(Key(PROMPT))
    assert (lease.cached_tokens, lease.compute_from) == (20, 14)
    return cache, lease


@pytest.mark.parametrize("allocates", [False, True])
@pytest.mark.parametrize("length", [0, 14, 18, 20])
def test_a_window_that_was_not_rebuilt_is_not_published(allocates: bool, length: int) -> None:
    cache, lease = rebuilding()
    if allocates:
        cache.allocate(lease, 21)
    assert cache.preempt(lease, length) == 20
    assert cache.acquire(Key(PROMPT)).compute_from == 14
    assert cache.tree.check() == []


def test_a_window_without_pages_is_not_committed_either() -> None:
    cache, lease = rebuilding()
    cache.commit(lease, 20, resumable=True)
    assert lease.saved == set()
    cache.allocate(lease, 21)
    cache.commit(lease, 21)
    cache.release(lease)
    assert cache.acquire(Key(PROMPT)).compute_from == 20, "it was rebuilt then"


def test_a_rebuilt_window_is_published() -> None:
    cache, lease = rebuilding()
    cache.allocate(lease, 20)
    cache.advance(lease, 20)
    assert cache.preempt(lease, 20) == 20
    assert cache.acquire(Key(PROMPT)).compute_from == 20


# `without` names components that were not computed. It was obeyed for those that share pages, and silently ignored for those
# with pages of their own: an own draft's pages were published as they were, also those that a prefix linker had not filled.


@pytest.mark.parametrize("fills", [False, True])
def test_a_draft_with_pages_of_its_own(fills: bool) -> None:
    cache = PrefixCache([FULL, OWN_DRAFT], 2)
    lease = cache.acquire_to_fill(Key(PROMPT), 20) if fills else cache.acquire(Key(PROMPT), reserve_tokens=20)
    cache.commit(lease, 8, without=["draft"])
    cache.commit(lease, 20)
    cache.release(lease)
    with cache.acquire(Key(PROMPT)) as again:
        assert again.cached_tokens == 20
        assert again.pages("draft").tolist() == [-1] * 10, "a path ends where it has a hole"
    assert not any(pool.leased for pool in cache.stats().pools.values())
    assert cache.tree.check() == []


def test_a_window_that_is_optional() -> None:
    cache = PrefixCache([FULL, swa(3), swa(8, required=False, name="draft")], 2)
    lease = cache.acquire(Key(PROMPT), reserve_tokens=20)
    cache.commit(lease, 14, without=["draft"], resumable=True)
    assert (lease.pages("draft")[:7] < 0).all()
    cache.commit(lease, 18, resumable=True)
    cache.release(lease)
    assert cache.tree.check() == []
    assert not any(pool.leased for pool in cache.stats().pools.values())
    with cache.acquire(Key(PROMPT[:15])) as again:
        assert (again.cached_tokens, bool((again.pages("draft") < 0).all())) == (14, True)
    with cache.acquire(Key(PROMPT)) as again:
        assert again.cached_tokens == 18
        assert (again.pages("draft") >= 0).tolist() == [False] * 7 + [True] * 2, "what was computed since"


@pytest.mark.parametrize("preempts", [False, True])
def test_a_state_that_was_left_out(preempts: bool) -> None:
    cache = PrefixCache(SETS["optional mamba"], 2)
    lease = cache.acquire(Key(PROMPT), reserve_tokens=20)
    page = lease.state_page
    assert page is not None
    with pytest.raises(LeaseError, match="`without` says"):
        cache.commit(lease, 20, {20: page}, without=["mamba"])
    if preempts:
        cache.preempt(lease, 20, without=["mamba"])
    else:
        cache.commit(lease, 20, without=["mamba"])
        cache.release(lease)
    assert cache.acquire(Key(PROMPT)).state_copies == ()


def test_a_preemption_that_leaves_a_draft_out() -> None:
    cache = PrefixCache([FULL, OWN_DRAFT, MAMBA], 2)
    lease = cache.acquire(Key(PROMPT), reserve_tokens=20)
    cache.preempt(lease, 20, without=["draft"])
    with cache.acquire(Key(PROMPT)) as again:
        assert (again.cached_tokens, bool((again.pages("draft") < 0).all())) == (20, True)


# Two requests computed one prompt, the first without a draft. The other's commit swapped its pages for the first one's, and
# its lease went on to tell that they hold the draft's state.


def two_leases(kinds: Sequence[Component] = (FULL, DRAFT)) -> tuple[PrefixCache, Lease, Lease]:
    """On the same prompt, with pages for all of it."""
    cache = PrefixCache(kinds, 2)
    return cache, cache.acquire(Key(PROMPT), reserve_tokens=21), cache.acquire(Key(PROMPT), reserve_tokens=21)


@pytest.mark.parametrize("chunk", [2, 8, 20])
def test_a_draft_in_shared_pages(chunk: int) -> None:
    cache, first, second = two_leases()
    cache.commit(first, 8, without=["draft"])
    own = second.pages("draft").tolist()
    for end in range(chunk, 21, chunk):
        cache.commit(second, end)
    assert second.missing == {"draft": (0, 4)}
    assert second.pages("full").tolist() == [*first.pages("full").tolist()[:4], *own[4:]]
    assert second.pages("draft").tolist() == [-1] * 4 + own[4:]
    assert [second.page("draft", index) for index in range(5)] == [-1] * 4 + own[4:5]
    assert first.missing == {}, "it knows what it left out"


def test_a_hole_behind_pages_that_have_it() -> None:
    cache, first, second = two_leases()
    cache.commit(first, 8)
    cache.commit(second, 8)
    assert second.missing == {}, "the tree's pages hold as much"
    cache.commit(first, 12, without=["draft"])
    cache.commit(second, 14)
    assert second.missing == {"draft": (4, 6)}
    assert (second.pages("draft")[:4] >= 0).all()


def test_a_hole_behind_the_one_of_the_prefix() -> None:
    cache, *before = two_leases()
    cache.commit(before[0], 4, without=["draft"])
    for lease in before:
        cache.release(lease)
    first, second = (cache.acquire(Key(PROMPT), reserve_tokens=21) for _ in range(2))
    assert second.missing == {"draft": (0, 2)}
    cache.commit(first, 12)
    cache.commit(second, 12)
    assert second.missing == {"draft": (0, 6)}, "a path ends at its first hole"


def test_a_carry_over_in_a_windows_pages() -> None:
    carry = Component(name="carry", coverage=Trailing(2), required=False, shares="swa")
    cache, first, second = two_leases([FULL, swa(6), carry])
    cache.commit(first, 8, without=["carry"], resumable=True)
    cache.commit(second, 8, resumable=True)
    assert second.missing == {"carry": (0, 4)}
    assert (second.pages("swa")[1:4] >= 0).all()
    assert (second.pages("carry")[:4] < 0).all()
    cache.commit(second, 14, resumable=True)
    assert (second.pages("carry")[4:7] >= 0).all(), "what it has computed since"


def test_pages_without_a_lease_are_given_up_for_those_with_a_draft() -> None:
    cache, first, second = two_leases()
    cache.commit(first, 8, without=["draft"])
    cache.release(first)
    cache.commit(second, 8)
    assert second.missing == {}
    assert cache.tree.pages(second.boundary, "draft").tolist() == second.pages("full").tolist()[:4]


# A request that had computed nothing could not be preempted where states are kept, and one that had hit something could not
# ask for less than that: the call raised LeaseError, and the victim kept the pages that another request waited for.


@pytest.mark.parametrize("kinds", SETS)
@pytest.mark.parametrize("nothing", [0, [], (), np.array([], np.int64), np.int64(0)], ids=repr)
def test_nothing_is_published_of_nothing(kinds: str, nothing: Sequence[int] | int) -> None:
    cache = PrefixCache(SETS[kinds], 2)
    for reserved in (0, 12):
        lease = cache.acquire(Key(PROMPT), reserve_tokens=reserved)
        assert cache.preempt(lease, nothing) == 0
        assert lease.is_released
    assert cache.tree.node_count == 0
    assert not any(pool.leased for pool in cache.stats().pools.values())


@pytest.mark.parametrize("kinds", SETS)
@pytest.mark.parametrize("length", [0, 1, 7, 8, 12])
def test_less_than_was_hit_leaves_the_hit(kinds: str, length: int) -> None:
    cache = PrefixCache(SETS[kinds], 2)
    lease = cache.acquire(Key(PROMPT))
    cache.allocate(lease, 12)
    assert cache.preempt(lease, 12) == 12
    lease = cache.acquire(Key(PROMPT))
    hit = lease.compute_from
    assert hit == 12
    nodes = cache.tree.node_count
    assert cache.preempt(lease, PROMPT[:length]) == 12
    assert cache.tree.node_count == nodes
    assert cache.acquire(Key(PROMPT)).compute_from == hit


def test_the_victim_of_a_full_pool() -> None:
    cache = PrefixCache(SETS["mamba"], 2, {"full": 8, "mamba": 4})
    first, victim = cache.acquire(Key(PROMPT)), cache.acquire(Key(PROMPT + 50))
    cache.allocate(first, 10)
    cache.allocate(victim, 6)
    with pytest.raises(OutOfPagesError):
        cache.allocate(first, 12)
    cache.preempt(victim, [])
    cache.allocate(first, 12)


def test_other_mistakes_in_a_preemption_are_refused() -> None:
    cache = PrefixCache(SETS["mamba"], 2)
    with cache.acquire(Key(PROMPT), reserve_tokens=8) as lease:
        cache.commit(lease, 8)
        page = lease.state_page
        assert page is not None
        mistakes: list[tuple[Any, dict[int, int]]] = [(9, {}), (-1, {}), (PROMPT[:4] + 1, {}), (0, {2: page}), (0, {0: page})]
        for tokens, states in mistakes:
            with pytest.raises(LeaseError):
                cache.preempt(lease, tokens, states)
        assert not lease.is_released


# A lease that went on without its draft locked its prefix anew, which is refused once the namespace is invalidated: the call
# raised, the lease had grown all the same, and could never give the draft up.


@pytest.mark.parametrize("has_budget", [False, True], ids=["counts", "budget"])
@pytest.mark.parametrize("kind", [OWN_DRAFT, replace(OWN_DRAFT, coverage=Trailing(3))], ids=["path", "window"])
def test_a_lease_gives_its_draft_up_after_new_weights(kind: Component, has_budget: bool) -> None:
    counts = {"full": 32, kind.name: 6}
    sizes: dict[str, Any] = {"page_counts": counts}
    if has_budget:
        sizes = {"budget": BlockBudget(block_count=20, page_blocks=dict.fromkeys(counts, 1))}
    cache = PrefixCache([FULL, kind], 4, **sizes)
    publish(cache, PROMPT[:16])
    lease = cache.acquire(Key(PROMPT))
    assert lease.cached_tokens == 16
    cache.allocate(lease, 20)
    cache.advance(lease, 20)
    cache.invalidate()
    cache.allocate(lease, 28, without=(kind.name,))
    assert (lease.given_up, lease.length) == ((kind.name,), 28)
    assert cache.stats().pools[kind.name].leased == 0
    cache.allocate(lease, 40)
    assert cache.tree.check() == []
    cache.release(lease)
    assert [pool.leased for pool in cache.stats().pools.values()] == [0, 0]
