"""Speculation lost a saved state: growing over a place where the output's state is to be saved moved its page there from the
place before, and taking the drafts back freed it, so that the next turn resumed from the prompt's end.
"""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FULL

from unified_tree import Component, Key, Point
from unified_tree.controllers import Lease, PrefixCache

GRID = 16
MAMBA = Component(name="mamba", coverage=Point(), save_grid_tokens=GRID)
TOKENS = np.arange(400)


def decoding(states: int = 8, **options: int) -> tuple[PrefixCache, Lease]:
    """A prompt of 96 tokens is computed, and its state saved."""
    cache = PrefixCache([FULL, MAMBA], 4, {"full": 200, "mamba": states}, **options)  # type: ignore[arg-type]
    lease = cache.acquire(Key(TOKENS[:96]))
    cache.allocate(lease, 96)
    cache.commit(lease, 96, dict(lease.save_pages))
    return cache, lease


def next_turn(cache: PrefixCache, lease: Lease, length: int) -> int:
    """End the request at so many tokens; where the next one resumes."""
    cache.commit(lease, TOKENS[:length], {at: page for at, page in lease.save_pages.items() if at <= length})
    cache.release(lease)
    return cache.acquire(Key(TOKENS)).cached_tokens


@pytest.mark.parametrize("drafts", [1, 3, 16])
@pytest.mark.parametrize("advances", [False, True])
def test_the_state_before_the_drafts_is_there(drafts: int, advances: bool) -> None:
    cache, lease = decoding()
    for length in range(96, 127):
        cache.allocate(lease, length + drafts)
        if advances:
            cache.advance(lease, length + drafts)
        cache.truncate(lease, length + 1)
    assert next_turn(cache, lease, 127) == 112


def test_drafts_that_take_pages_one_by_one() -> None:
    cache, lease = decoding()
    for length in range(96, 127):
        for more in range(1, 4):
            cache.allocate(lease, length + more)
        cache.truncate(lease, length + 1)
    assert next_turn(cache, lease, 127) == 112


def test_the_output_holds_no_more_than_two_pages_and_mostly_one() -> None:
    cache, lease = decoding(draft_tokens=4)
    held = []
    for length in range(97, 300):
        cache.allocate(lease, length + 2)
        held.append(len(lease.save_pages))
        cache.truncate(lease, length)
    assert max(held) == 2
    assert sum(held) / len(held) < 1.5
    assert next_turn(cache, lease, 299) == 288


def test_a_commit_publishes_the_last_of_them_only() -> None:
    cache, lease = decoding()
    cache.allocate(lease, 120)
    cache.allocate(lease, 130)
    assert set(lease.save_pages) == {112, 128}
    cache.commit(lease, TOKENS[:130], dict(lease.save_pages))
    assert lease.save_pages == {}
    assert cache.stats().pools["mamba"].tree == 3, "the prompt's, the one for its repeat, and the output's"
    assert cache.stats().pools["mamba"].leased == 1, "the running state"
    assert next_turn(cache, lease, 130) == 128


def test_a_pool_that_is_short_has_one_page_follow_the_output() -> None:
    cache, lease = decoding(states=3)
    cache.tree.lock(lease.boundary)
    for length in (113, 129, 145):
        cache.allocate(lease, length)
        assert len(lease.save_pages) == 1
    assert next_turn(cache, lease, 145) == 144
