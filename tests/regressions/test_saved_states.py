"""States: which page holds the state of which length, and what is published of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kinds import FULL, MAMBA, SETS

from unified_tree import Component, Key, LeaseError, Point
from unified_tree.controllers import HostTier, Lease, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine


def test_a_state_is_published_only_where_it_was_saved() -> None:
    """A page that held the state of one length was accepted at another: a later hit there would have resumed from a wrong
    state.
    """
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 8, "mamba": 4})
    with cache.acquire(Key(np.arange(8)), checkpoints=(4,)) as lease:
        cache.allocate(lease, 8)
        before = cache.tree.dump()
        with pytest.raises(LeaseError, match="saves the state at 6"):
            cache.commit(lease, 8, {6: lease.save_pages[4]})
        assert cache.tree.dump() == before
        cache.commit(lease, 8, dict(lease.save_pages))
    assert cache.acquire(Key(np.arange(9))).cached_tokens == 4
    assert cache.tree.check() == []


def test_a_state_below_the_end_is_backed_up() -> None:
    """Write-through copied only what ends where a commit ends, so a state saved on a coarser grid than pages never got to
    host.
    """
    host = HostTier(page_counts={}, engine=NullEngine())
    cache = PrefixCache(SETS["gridded mamba"], 2, {"full": 32, "mamba": 4}, host=host)
    with cache.acquire(Key(np.arange(11)), save_output=False) as lease:
        assert lease.save_at == (8,)
        cache.allocate(lease, 11)
        cache.commit(lease, np.arange(11), {8: lease.save_pages[8]})
    cache.drain()
    pools = cache.stats().host_pools
    assert (pools["full"].used, pools["mamba"].used) == (4, 1)
    cache.device.free_evicted(cache.tree.evict({"mamba": 4, "full": 32}))
    assert cache.tree.match_prefix(Key(np.arange(11))).reachable.length == 8
    cache.close()


# The running state was published as that of fewer tokens than it had seen: at a preemption or a commit of a part of what was
# computed, and after a truncation. A later hit there resumed from a wrong state.


TOKENS = np.arange(20)


def decoding(length: int, computed: int | None = None) -> tuple[PrefixCache, Lease]:
    """A request has pages for so many tokens, and has reported that they are computed."""
    cache = PrefixCache([FULL, MAMBA], 2)
    lease = cache.acquire(Key(TOKENS[:5]))
    cache.allocate(lease, length)
    cache.advance(lease, length if computed is None else computed)
    return cache, lease


def resumes_at(cache: PrefixCache) -> int:
    with cache.acquire(Key(TOKENS)) as lease:
        return lease.cached_tokens


def truncate_in_a_batch(cache: PrefixCache, lease: Lease, length: int) -> None:
    batch = cache.batch(1, 100)
    batch.add(lease)
    batch.truncate(length)


@pytest.mark.parametrize(
    ("length", "reported", "grown", "resumes"),
    [(10, 10, 10, 0), (8, 8, 12, 8), (12, 6, 12, 0)],  # in the last the run may be anywhere between 6 and 12 tokens
    ids=["that keeps less than was computed", "between the pages and the run", "in the middle of a run that was not reported"],
)
def test_a_preemption_publishes_no_state_of_more_tokens(length: int, reported: int, grown: int, resumes: int) -> None:
    cache, lease = decoding(length, reported)
    cache.allocate(lease, grown)
    assert cache.preempt(lease, TOKENS[:8]) == 8
    assert resumes_at(cache) == resumes


def test_a_commit_of_less_than_was_computed() -> None:
    cache, lease = decoding(10)
    page = lease.state_page
    assert page is not None
    dump = cache.tree.dump()
    with pytest.raises(LeaseError, match="of 10 tokens, not 8"):
        cache.commit(lease, TOKENS[:8], {8: page})
    assert (lease.state_page, lease.committed, cache.tree.dump()) == (page, 0, dump)
    cache.commit(lease, TOKENS[:10], {10: page})
    assert resumes_at(cache) == 10


@pytest.mark.parametrize("takes_back", [PrefixCache.truncate, truncate_in_a_batch])
@pytest.mark.parametrize("reported", [6, 8, 10])
def test_a_truncation_publishes_no_state_of_more_tokens(
    takes_back: Callable[[PrefixCache, Lease, int], None], reported: int
) -> None:
    """The run may have seen the tokens that are gone, reported or not."""
    cache, lease = decoding(10, reported)
    takes_back(cache, lease, 8)
    assert lease.state_tokens is None
    assert cache.preempt(lease, TOKENS[:8]) == 8
    assert resumes_at(cache) == 0


@pytest.mark.parametrize("takes_back", [PrefixCache.truncate, truncate_in_a_batch])
def test_a_truncation_of_what_was_computed(takes_back: Callable[[PrefixCache, Lease, int], None]) -> None:
    cache, lease = decoding(10)
    takes_back(cache, lease, 8)
    assert lease.state_page is not None
    with pytest.raises(LeaseError, match="was truncated"):
        cache.commit(lease, TOKENS[:8], {8: lease.state_page})
    cache.allocate(lease, 10)
    cache.advance(lease, 10)
    assert lease.state_tokens == 10, "the engine has run on from where it was"
    cache.commit(lease, TOKENS[:10], {10: lease.state_page})
    assert resumes_at(cache) == 10


@pytest.mark.parametrize("in_batch", [False, True])
def test_drafts_that_are_truncated_before_they_are_reported(in_batch: bool) -> None:
    """The order that speculation takes: then the next report says what the state is."""
    cache, lease = decoding(6)
    batch = cache.batch(1, 100)
    if in_batch:
        batch.add(lease)
        batch.allocate(4)
        batch.truncate(8)
        batch.advance()
        batch.remove(lease)
    else:
        cache.allocate(lease, 10)
        cache.truncate(lease, 8)
        cache.advance(lease, 8)
    assert lease.state_tokens == 8
    assert cache.preempt(lease, TOKENS[:8]) == 8
    assert resumes_at(cache) == 8


def test_a_commit_that_reports_what_it_publishes() -> None:
    cache, lease = decoding(10, 6)
    cache.truncate(lease, 8)
    assert lease.state_page is not None
    cache.commit(lease, TOKENS[:8], {8: lease.state_page})
    assert resumes_at(cache) == 8


@pytest.mark.parametrize(("reached", "offered"), [(8, {8}), (9, set())], ids=["in time", "too late"])
def test_no_page_is_offered_for_a_state_that_was_passed(reached: int, offered: set[int]) -> None:
    """When a pool had been short at a length where a state was due, a page for it was offered after the run had passed that
    length. An engine that gives what it is offered published a page that nothing was written to.
    """
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 64, "mamba": 2})
    other = cache.acquire(Key(TOKENS + 100))
    lease = cache.acquire(Key(TOKENS), checkpoints=[8, 14])
    cache.allocate(lease, 10)
    assert lease.save_pages == {}, "both pages are running states"
    cache.advance(lease, reached)
    cache.release(other)
    cache.allocate(lease, 10)
    assert set(lease.save_pages) == offered, "the running state's, while it is that"
    cache.advance(lease, 10)
    if offered:
        cache.commit(lease, 10)
    else:
        cache.allocate(lease, 14)
        assert set(lease.save_pages) == {14}
    cache.release(lease)


# Speculation lost a saved state: growing over a place where the output's state is to be saved moved its page there from the
# place before, and taking the drafts back freed it, so that the next turn resumed from the prompt's end.

GRIDDED = Component(name="mamba", coverage=Point(), save_grid_tokens=16)
LONG = np.arange(400)


def speculating(states: int = 8, **options: int) -> tuple[PrefixCache, Lease]:
    """A prompt of 96 tokens is computed, and its state saved."""
    cache = PrefixCache([FULL, GRIDDED], 4, {"full": 200, "mamba": states}, **options)  # type: ignore[arg-type]
    lease = cache.acquire(Key(LONG[:96]))
    cache.allocate(lease, 96)
    cache.commit(lease, 96, dict(lease.save_pages))
    return cache, lease


def next_turn(cache: PrefixCache, lease: Lease, length: int) -> int:
    """End the request at so many tokens; where the next one resumes."""
    cache.commit(lease, LONG[:length], {at: page for at, page in lease.save_pages.items() if at <= length})
    cache.release(lease)
    return cache.acquire(Key(LONG)).cached_tokens


@pytest.mark.parametrize("drafts", [1, 3, 16])
@pytest.mark.parametrize("advances", [False, True])
def test_the_state_before_the_drafts_is_there(drafts: int, advances: bool) -> None:
    cache, lease = speculating()
    for length in range(96, 127):
        cache.allocate(lease, length + drafts)
        if advances:
            cache.advance(lease, length + drafts)
        cache.truncate(lease, length + 1)
    assert next_turn(cache, lease, 127) == 112


def test_drafts_that_take_pages_one_by_one() -> None:
    cache, lease = speculating()
    for length in range(96, 127):
        for more in range(1, 4):
            cache.allocate(lease, length + more)
        cache.truncate(lease, length + 1)
    assert next_turn(cache, lease, 127) == 112


def test_the_output_holds_no_more_than_two_pages_and_mostly_one() -> None:
    cache, lease = speculating(draft_tokens=4)
    held = []
    for length in range(97, 300):
        cache.allocate(lease, length + 2)
        held.append(len(lease.save_pages))
        cache.truncate(lease, length)
    assert max(held) == 2
    assert sum(held) / len(held) < 1.5
    assert next_turn(cache, lease, 299) == 288


def test_a_commit_publishes_the_last_of_them_only() -> None:
    cache, lease = speculating()
    cache.allocate(lease, 120)
    cache.allocate(lease, 130)
    assert set(lease.save_pages) == {112, 128}
    cache.commit(lease, LONG[:130], dict(lease.save_pages))
    assert lease.save_pages == {}
    assert cache.stats().pools["mamba"].tree == 3, "the prompt's, the one for its repeat, and the output's"
    assert cache.stats().pools["mamba"].leased == 1, "the running state"
    assert next_turn(cache, lease, 130) == 128


def test_a_pool_that_is_short_has_one_page_follow_the_output() -> None:
    cache, lease = speculating(states=3)
    cache.tree.lock(lease.boundary)
    for length in (113, 129, 145):
        cache.allocate(lease, length)
        assert len(lease.save_pages) == 1
    assert next_turn(cache, lease, 145) == 144
