"""What `acquire` does with a prompt's tokens: it looks at them once, and copies none that it need not."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from kinds import FULL, MAMBA, swa
from numpy.typing import NDArray

from unified_tree import Component, InvalidKeyError, Key
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.page_tables import PageTable
from unified_tree.controllers.debugging import SealedPages

PAGE = 16
LONG = 100_000 // PAGE * PAGE


def cache_of(kinds: list[Component], pages: int, *prompts: NDArray[np.int64]) -> PrefixCache:
    """A cache that has computed these prompts, in this order."""
    cache = PrefixCache(kinds, PAGE, {component.name: pages for component in kinds})
    for prompt in prompts:
        with cache.acquire(Key(prompt), [prompt.size]) as lease:
            cache.allocate(lease, prompt.size)
            cache.commit(lease, prompt, lease.save_pages)
    return cache


@pytest.mark.parametrize("kinds", [[FULL], [FULL, swa(64)], [FULL, MAMBA]])
def test_the_tokens_of_an_uncopied_prompt_are_not_copied(kinds: list[Component]) -> None:
    prompt = np.arange(LONG + 1)
    cache = cache_of(kinds, LONG // PAGE + 1, prompt[:LONG])
    cache.release(cache.acquire(Key(prompt)))
    tracemalloc.start()
    try:
        lease = cache.acquire(Key(prompt, copy=False))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lease.cached_tokens == LONG
    assert peak < 4 * LONG // PAGE * 8 < prompt.nbytes // 3


@pytest.mark.parametrize("at", [0, 5, 40, 63, 64])
@pytest.mark.parametrize("kinds", [[FULL], [FULL, swa(64)], [FULL, MAMBA]])
def test_a_negative_id_is_refused_and_uses_nothing(kinds: list[Component], at: int) -> None:
    older, newer = np.arange(64), np.arange(1000, 1064)
    cache = cache_of(kinds, 16, older, newer)
    asked = np.append(older, 7)
    asked[at] = -3
    for key in (Key(asked), Key(asked, copy=False)):
        with pytest.raises(InvalidKeyError, match="zero or more, got -3"):
            cache.acquire(key)
    assert (cache.lease_count, cache.stats().requests) == (0, 2)
    cache.evict({"full": 4})
    assert cache.explain(Key(older)).device_length == 0
    assert cache.tree.match_prefix(Key(newer)).device.length == 64


def test_a_debugging_cache_finds_a_prompt_that_changed() -> None:
    pool = np.zeros((16, 4))
    cache = PrefixCache([FULL], PAGE, {"full": 16})
    seals = SealedPages(cache, read_page=lambda _, page: pool[page])
    prompt = np.arange(64)
    lease = cache.acquire(Key(prompt, copy=False), request="changes", reserve_tokens=64)
    cache.commit(lease, 32)
    prompt[40] = 3
    cache.commit(lease, 48)
    assert seals.changed_prompts == ["changes"]
    prompt[40] = 40
    cache.commit(lease, 64)
    assert len(seals.changed_prompts) == 1
    cache.release(lease)


@pytest.mark.parametrize("size", [0, 1, 5, 63, 64, 65, 200, 5000])
def test_a_filled_table_holds_the_ids_and_nothing_else(size: int) -> None:
    ids = np.arange(100, 100 + size)
    for held in {0, size // 2, size}:
        parts = [part.tobytes() for part in np.array_split(ids[:held], 3)]
        front, end = PageTable(1), PageTable(1)
        front.fill(list(parts), size)
        end.fill_end(list(parts), size)
        assert front.slice(0, front.size).tolist() == [*ids[:held].tolist(), *[-1] * (size - held)]
        assert end.slice(0, end.size).tolist() == [*[-1] * (size - held), *ids[:held].tolist()]
        assert (end.first_held, end.size, front.size) == (size - held, size, size)
        for table in (front, end):
            table.put(size, np.array([7, 8]))
            table.put(size + 200, np.array([9]))
            assert table.slice(size, size + 201).tolist() == [7, 8, *[-1] * 198, 9]
