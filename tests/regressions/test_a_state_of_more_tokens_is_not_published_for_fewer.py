"""The running state was published as that of fewer tokens than it had seen: at a preemption or a commit of a part of what was
computed, and after a truncation. A later hit there resumed from a wrong state.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kinds import FULL, MAMBA

from unified_tree import Key, LeaseError
from unified_tree.controllers import Lease, PrefixCache

PROMPT = np.arange(5)
TOKENS = np.arange(20)


def decoding(length: int, computed: int | None = None) -> tuple[PrefixCache, Lease]:
    """A request has pages for so many tokens, and has reported that they are computed."""
    cache = PrefixCache([FULL, MAMBA], 2)
    lease = cache.acquire(Key(PROMPT))
    cache.allocate(lease, length)
    cache.advance(lease, length if computed is None else computed)
    return cache, lease


def resumes_at(cache: PrefixCache) -> int:
    with cache.acquire(Key(TOKENS)) as lease:
        return lease.cached_tokens


def truncate(cache: PrefixCache, lease: Lease, length: int) -> None:
    cache.truncate(lease, length)


def truncate_in_a_batch(cache: PrefixCache, lease: Lease, length: int) -> None:
    batch = cache.batch(1, 100)
    batch.add(lease)
    batch.truncate(length)


def test_a_preemption_that_keeps_less_than_was_computed() -> None:
    cache, lease = decoding(10)
    assert cache.preempt(lease, TOKENS[:8]) == 8
    assert resumes_at(cache) == 0


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


@pytest.mark.parametrize("takes_back", [truncate, truncate_in_a_batch])
@pytest.mark.parametrize("reported", [6, 8, 10])
def test_a_truncation(takes_back: Callable[[PrefixCache, Lease, int], None], reported: int) -> None:
    """The run may have seen the tokens that are gone, reported or not."""
    cache, lease = decoding(10, reported)
    takes_back(cache, lease, 8)
    assert lease.state_tokens is None
    assert cache.preempt(lease, TOKENS[:8]) == 8
    assert resumes_at(cache) == 0


@pytest.mark.parametrize("takes_back", [truncate, truncate_in_a_batch])
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


def test_a_preemption_between_the_pages_and_the_run() -> None:
    cache, lease = decoding(8)
    cache.allocate(lease, 12)
    assert cache.preempt(lease, TOKENS[:8]) == 8
    assert resumes_at(cache) == 8


def test_a_preemption_in_the_middle_of_a_run_that_was_not_reported() -> None:
    cache, lease = decoding(12, 6)
    assert cache.preempt(lease, TOKENS[:8]) == 8
    assert resumes_at(cache) == 0, "the run may be anywhere between 6 and 12 tokens"
