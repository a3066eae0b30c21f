"""An error in the middle of a call left pages marked as somebody's: of a clock that fails, a source that gives a page twice,
ids of another type, sizes that no native integer holds; and a number went for a tier.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from unified_tree import Component, Key, PageError, Path, Point, Tier, Trailing, UnifiedTree
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.pages.page_allocator import PageAllocator
from unified_tree.state import page_set
from unified_tree.state.page_set import PageSource
from unified_tree.terms.errors import ConfigurationError, UnifiedTreeError

FULL = Component(name="full", coverage=Path())
SWA = Component(name="swa", coverage=Trailing(2))


def test_a_clock_that_fails_in_a_commit_leaves_the_pages_to_the_lease() -> None:
    fails = [False]

    def clock() -> float:
        if fails[0]:
            raise OSError("no time")
        return 1.0

    cache = PrefixCache([FULL], 2, {"full": 4}, time_s=clock)
    lease = cache.acquire(Key(range(8)))
    cache.allocate(lease, 8)
    fails[0] = True
    with pytest.raises(OSError, match="no time"):
        cache.commit(lease, 8)
    fails[0] = False
    cache.commit(lease, 8)
    cache.release(lease)
    cache.tree.check()


@pytest.mark.skipif(not page_set.__file__.endswith(".py"), reason="a compiled class has no interpreted subclass")
def test_pages_that_are_refused_are_nobodys() -> None:
    class Twice(PageSource):
        """Gives a page of the second component twice, once."""

        wrong = True

        def take_each(self, components: list[int], counts: list[int]) -> list[NDArray[np.int64]]:
            """The first pages of each."""
            given = [np.arange(count, dtype=np.int64) for _, count in zip(components, counts, strict=True)]
            if self.wrong:
                given[-1][:] = 3
            return given

    tree = UnifiedTree([FULL, SWA], 1, page_counts={"full": 8, "swa": 8}, host_page_counts={"full": 8, "swa": 8})
    boundary = tree.insert(Key(range(2)), {"full": np.arange(2), "swa": np.arange(2)}).boundary
    source = Twice()
    with pytest.raises(PageError):
        tree.transfers.backup(boundary, source)
    assert [pool.ledger.in_flight_pages for pool in tree.state.host_pools] == [0, 0]
    source.wrong = False
    effect = tree.transfers.backup(boundary, source)
    assert effect is not None
    tree.transfers.acknowledge(effect)
    tree.check()


def test_ids_of_another_type_free_nothing() -> None:
    pages = PageAllocator("full", 16)
    taken = pages.allocate(8)
    for wrong in (taken[6:].astype(np.int32), np.array([99], np.int64)):
        with pytest.raises((PageError, TypeError)):
            pages.free(wrong)  # type: ignore[arg-type]
    pages.free(taken)
    assert sorted(pages.allocate(16).tolist()) == list(range(16))


def test_sizes_beyond_native_integers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="2\\*\\*48"):
        Trailing(1 << 63)
    coarse = [Component(name=f"m{each}", coverage=Point(), save_grid_tokens=grid) for each, grid in enumerate((1 << 31, 3**20))]
    with pytest.raises(ConfigurationError, match="2\\*\\*48"):
        UnifiedTree([FULL, *coarse], 1)


def test_a_number_is_no_tier() -> None:
    tree = UnifiedTree([FULL], 1)
    boundary = tree.insert(Key(range(2)), {"full": np.arange(2)}).boundary
    with pytest.raises((UnifiedTreeError, TypeError)):
        tree.lock(boundary, 1)  # type: ignore[arg-type]
    assert tree.pages(boundary, "full", Tier.DEVICE).tolist() == [0, 1]
