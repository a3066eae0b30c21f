"""Numbers and arguments at which a batch of leases failed in other words than the library's, or did not fail at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_tree import Component, Key, LeaseError, Path, Trailing
from unified_tree.controllers import DecodeBatch, Lease, PrefixCache

PARTS = [Component(name="full", coverage=Path()), Component(name="swa", coverage=Trailing(7))]


def running(page_size: int = 4) -> tuple[PrefixCache, DecodeBatch, list[Lease]]:
    """Two leases of nine tokens in a batch."""
    cache = PrefixCache(PARTS, page_size)
    batch = cache.batch(3, 100)
    leases = [cache.acquire(Key(np.arange(first, first + 9))) for first in (0, 100)]
    for lease in leases:
        cache.allocate(lease, 9)
        cache.commit(lease, 9)
        batch.add(lease)
    return cache, batch, leases


@pytest.mark.parametrize("tokens", [92, 1 << 40, (1 << 62) - 1, 1 << 62, (1 << 63) - 1])
def test_a_length_that_overflows_is_too_long(tokens: int) -> None:
    _, batch, _ = running()
    for call in (batch.allocate, batch.can_allocate):
        with pytest.raises(LeaseError, match="leases of 100"):
            call(tokens)
    assert batch.lengths.tolist() == [9, 9, 0]
    assert batch.can_allocate(91)


def test_a_lease_in_a_larger_batch_is_not_in_this_one() -> None:
    cache, batch, leases = running()
    other = cache.batch(1, 100)
    with pytest.raises(LeaseError, match="not in this batch"):
        other.remove(leases[1])
    assert batch.leases == leases


@pytest.mark.parametrize("sizes", [(1 << 62, 1 << 62), (1, 1 << 62)])
def test_rows_for_which_there_is_no_memory_are_refused(sizes: tuple[int, int]) -> None:
    cache, _, _ = running()
    with pytest.raises(LeaseError, match="no memory"):
        cache.batch(*sizes)


@pytest.mark.parametrize("given", [(["full"],), ("full", True), ("full", np.array([1, 2])), ("full", 1.0), ("full", 1 << 62)])
def test_slots_of_what_means_nothing_are_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(LeaseError):
        running()[1].slots(*given)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_token_before_the_window_has_no_slot(page_size: int) -> None:
    _, batch, leases = running(page_size)
    batch.allocate(20)
    batch.advance()
    held = 29 // page_size * page_size - 7
    wanted = [
        [-1 if at < held // page_size * page_size else ids[at // page_size] * page_size + at % page_size for at in range(29)]
        for ids in (lease.pages("swa").tolist() for lease in leases)
    ]
    assert batch.slots("swa", 29).tolist() == wanted


def test_a_released_lease_says_nothing_of_the_next_in_its_row() -> None:
    cache, batch, leases = running()
    cache.release(leases[1])
    after = cache.acquire(Key(np.arange(500, 520)))
    cache.allocate(after, 20)
    assert batch.add(after) == 1
    assert (leases[1].length, leases[1].computed) == (9, 9)


def test_the_rows_are_read_only() -> None:
    cache, batch, _ = running()
    for array in (batch.rows, batch.lengths, *batch.tables.values(), cache.batch(1, 1).rows):
        assert not array.flags.writeable
