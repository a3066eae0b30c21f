"""What a scheduler asks before and while requests run: is there room, and can one stop in the middle and lose nothing."""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FULL, MAMBA, swa

from unified_tree import Key, LeaseError, OutOfPagesError
from unified_tree.controllers import PrefixCache
from unified_tree.terms.tier import Tier

PROMPT = np.arange(24)


def used(cache: PrefixCache) -> dict[str, int]:
    return {name: pool.used for name, pool in cache.stats().pools.items()}


def test_a_prompt_is_admitted_with_all_its_pages_or_not_at_all() -> None:
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 12, "mamba": 4})
    first = cache.acquire(Key(PROMPT[:16]), reserve_tokens=16)
    assert (first.length, first.pages("full").size, used(cache)["full"]) == (16, 8, 8)
    before = used(cache), cache.stats().requests
    with pytest.raises(OutOfPagesError, match="full: 5 pages needed on device, 4 are free"):
        cache.acquire(Key(PROMPT + 100), reserve_tokens=10)
    assert (used(cache), cache.stats().requests, cache.lease_count) == (*before, 1)
    with cache.acquire(Key(PROMPT + 100), reserve_tokens=8) as second:
        assert second.length == 8
    with pytest.raises(LeaseError, match="reserve_tokens"):
        cache.acquire(Key(PROMPT), reserve_tokens=-1)


def test_the_error_says_which_pool_is_short_and_by_how_much() -> None:
    cache = PrefixCache([FULL], 2, {"full": 8})
    with cache.acquire(Key(PROMPT[:8])) as lease:
        cache.allocate(lease, 8)
        cache.commit(lease, 8)
    holder = cache.acquire(Key(PROMPT[:4] + 50), reserve_tokens=4)
    with pytest.raises(OutOfPagesError) as caught:
        cache.acquire(Key(PROMPT + 100), reserve_tokens=14)
    error = caught.value
    assert (error.component, error.tier, error.needed, error.free, error.evictable, error.total) == (
        "full",
        Tier.DEVICE,
        7,
        2,
        4,
        8,
    )
    cache.release(holder)


def test_whether_a_lease_can_grow_is_known_before() -> None:
    cache = PrefixCache([FULL, swa(4)], 2, {"full": 8, "swa": 4})
    lease = cache.acquire(Key(PROMPT))
    before = used(cache)
    for length in range(24):
        can = cache.can_allocate(lease, length)
        assert can == (length <= 8), "the window's pool is the shorter one"
    assert used(cache) == before
    with pytest.raises(OutOfPagesError, match="swa"):
        cache.allocate(lease, 9)
    cache.allocate(lease, 8)
    cache.commit(lease, 8)
    assert cache.can_allocate(lease, 12), "the window has moved on"
    cache.allocate(lease, 12)
    cache.release(lease)
    with pytest.raises(LeaseError, match="released"):
        cache.can_allocate(lease, 1)


@pytest.mark.parametrize("kinds", [[FULL], [FULL, swa(3)], [FULL, MAMBA], [FULL, swa(5), MAMBA]], ids=len)
@pytest.mark.parametrize("computed", [6, 7, 12, 23])
def test_a_preempted_prefill_goes_on_where_it_stopped(kinds: list[object], computed: int) -> None:
    cache = PrefixCache(kinds, 2)  # type: ignore[arg-type]
    lease = cache.acquire(Key(PROMPT))
    cache.allocate(lease, computed)
    committed = cache.preempt(lease, computed)
    assert committed == computed // 2 * 2
    assert lease.is_released
    assert not any(pool.leased for pool in cache.stats().pools.values())
    again = cache.acquire(Key(PROMPT))
    has_state = MAMBA in kinds
    assert again.cached_tokens == (0 if has_state and computed % 2 else committed)
    cache.release(again)


def test_a_preempted_request_keeps_the_states_it_had_saved() -> None:
    cache = PrefixCache([FULL, MAMBA], 2)
    lease = cache.acquire(Key(PROMPT), checkpoints=[8])
    cache.allocate(lease, 13)
    assert lease.next_stop(0) == 8
    cache.preempt(lease, 13, {8: lease.save_pages[8]})
    with cache.acquire(Key(PROMPT)) as again:
        assert again.cached_tokens == 8, "the running state was at 13, in the middle of a page"


def test_the_next_stop_of_a_run_is_the_next_place_to_save() -> None:
    cache = PrefixCache([FULL, MAMBA], 2)
    lease = cache.acquire(Key(PROMPT), checkpoints=[6, 14])
    assert lease.save_at == (6, 14)
    assert [lease.next_stop(at) for at in (0, 5, 6, 13, 14, 23)] == [6, 6, 14, 14, None, None]
    assert cache.acquire(Key(PROMPT + 50)).save_at == (22, 24), "the prompt's end, and where its repeat resumes"
    assert cache.acquire(Key(PROMPT[:23] + 90)).save_at == (22,), "which is the same in the middle of a page"


def test_a_lease_is_filled_from_elsewhere() -> None:
    """As a prefix linker does: of a window only what the length needs, no request counted."""
    cache = PrefixCache([FULL, swa(4)], 2, {"full": 12, "swa": 3})
    lease = cache.acquire_to_fill(Key(PROMPT), 20)
    assert lease.pages("full").size == 10
    assert (lease.pages("swa") >= 0).tolist() == [False] * 8 + [True] * 2
    cache.commit(lease, 20, resumable=True)
    cache.release(lease)
    assert cache.stats().requests == 0
    with cache.acquire(Key(PROMPT)) as request:
        assert request.cached_tokens == 20
    before = used(cache)
    with pytest.raises(OutOfPagesError):
        cache.acquire_to_fill(Key(np.arange(200) + 500), 100)
    assert (used(cache), cache.lease_count, cache.stats().refused) == (before, 0, 1)
