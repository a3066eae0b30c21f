"""Pages, boundaries and arrays that a caller gives the tree, or gets from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grove import Grove, key, lists
from kinds import FULL, MAMBA, OWN_DRAFT, swa
from numpy.typing import NDArray

from unified_tree import (
    Boundary,
    Component,
    ConfigurationError,
    EffectError,
    Key,
    PageError,
    Point,
    Receipt,
    StaleBoundaryError,
    Tier,
    Trailing,
    UnifiedTree,
    UnifiedTreeError,
)
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.pages.page_allocator import PageAllocator
from unified_tree.state import page_set
from unified_tree.state.page_set import PageSource

# An insert named pages as canonical that it handed back as duplicates: a lease then read freed pages.
# Found by the tree's state machine (`full 4`, step 94): pages for the upper part of a node whose own pages are gone.


def test_the_upper_part_of_a_node_on_host_alone_returns_to_the_device() -> None:
    grove = Grove([FULL]).having("abcdef")
    grove.backup("abcdef")
    grove.evict(3)
    result = grove.put("abcd", since=0)
    assert result.duplicates == {}
    assert lists(result.canonical) == {"full": grove.pages("abcd")}
    assert grove.match("abcdef").device == result.boundary
    assert grove.match("abcdef").reachable.length == 6
    grove.check()


def test_an_optional_path_is_filled_in_the_upper_part_of_a_node() -> None:
    grove = Grove([FULL, OWN_DRAFT]).having("abcdef")
    grove.evict(3, "draft")
    result = grove.put("abcd", since=0)
    assert set(result.duplicates) == {"full"}
    assert lists(result.canonical)["draft"] == grove.pages("abcdef", "draft") == [203, 204]
    grove.check()


def test_pages_the_tree_does_not_keep_are_not_canonical() -> None:
    grove = Grove([FULL, OWN_DRAFT])
    grove.tree.insert(key("abcd"), {"full": grove.fresh("full", 2)})
    result = grove.tree.insert(key("abcdef"), {"full": grove.fresh("full", 1), "draft": grove.fresh("draft", 1)})
    assert lists(result.duplicates) == {"draft": [200]}
    assert lists(result.canonical) == {"full": [102], "draft": [-1]}


# Page -1 was taken where the tree knew the place but had no value there: the next hit handed out -1, and `evict` freed it.

BAD: list[Any] = [[-1, -1], [1.0, 2.0], [True, False], ["1", "2"], [1 << 63, 1], [[1, 2]], [3, 3], None]


def tombstoned(grove: Grove) -> None:
    """The tree knows the text, but has neither its window nor its draft on device."""
    grove.put("abcd", [4], without=["draft"] if any(c.name == "draft" for c in grove.tree.components) else ())
    for component in ("swa", "draft", "mamba"):
        if component in grove.tree.state.layout.index:
            grove.evict(10, component)


@pytest.mark.parametrize("pages", BAD, ids=repr)
@pytest.mark.parametrize("component", ["swa", "draft"])
def test_a_tombstone_is_not_filled_with_what_is_no_page(component: str, pages: Any) -> None:
    grove = Grove([FULL, swa(3), OWN_DRAFT, MAMBA])
    tombstoned(grove)
    before = grove.tree.dump()
    with pytest.raises(PageError):
        grove.tree.insert(key("abcd"), {"full": np.empty(0, np.int64), component: pages})
    assert grove.tree.dump() == before
    grove.check()


def test_a_state_is_no_page_below_zero() -> None:
    grove = Grove([FULL, MAMBA])
    tombstoned(grove)
    with pytest.raises(PageError):
        grove.tree.insert(key("abcd"), {"full": np.empty(0, np.int64)}, {"mamba": {4: -1}})
    grove.check()


def test_a_node_that_lives_on_host_alone_is_not_filled_with_it() -> None:
    grove = Grove([FULL]).having("abcd")
    grove.backup("abcd")
    grove.evict(2)
    with pytest.raises(PageError):
        grove.tree.insert(key("abcd"), {"full": np.array([-1, -1])})
    grove.check()


@pytest.mark.parametrize("pages", [*BAD, [1], [1, 2, 3]], ids=repr)
def test_host_pages_are_page_ids(pages: Any) -> None:
    grove = Grove([FULL], host_page_counts={"full": 8}).having("abcd")
    boundary = grove.match("abcd").device
    with pytest.raises((PageError, EffectError)):
        grove.tree.transfers.backup(boundary, {"full": pages})
    grove.check()
    assert grove.tree.pool("full").protected_pages == 0


@pytest.mark.parametrize("pages", [*BAD, [7, 8]], ids=repr)
def test_grafted_pages_are_page_ids(pages: Any) -> None:
    grove = Grove([FULL], host_page_counts={"full": 8})
    with pytest.raises(PageError):
        grove.tree.transfers.graft(key("abcd"), {"full": pages})
    assert grove.tree.pool("full", Tier.HOST).used_pages == grove.tree.node_count == 0
    grove.check()


def test_host_pages_lie_in_the_pool() -> None:
    grove = Grove([FULL], host_page_counts={"full": 8}).having("abcd")
    with pytest.raises(PageError, match="below 8"):
        grove.tree.transfers.backup(grove.match("abcd").device, {"full": np.array([7, 8])})


# A receipt that is to move to what is no boundary, or for components that there are not, says so and stays where it is.


def locked() -> tuple[UnifiedTree, Boundary, Receipt]:
    """A tree of eight tokens, and a lock of them."""
    tree = UnifiedTree([FULL, swa(4)], page_size=4)
    end = tree.insert(Key(range(8)), {"full": np.arange(2), "swa": np.arange(1)}).boundary
    return tree, end, tree.lock(end)


@pytest.mark.parametrize("boundary", [None, "x", 5, (1,), (1.5, 4), (None, 4), (1 << 40, 4)])
def test_what_is_no_boundary_is_refused(boundary: Any) -> None:
    tree, end, receipt = locked()
    with pytest.raises(StaleBoundaryError):
        receipt.move(boundary)
    assert (receipt.boundary, tree.pool("full").protected_pages, tree.check()) == (end, 2, [])
    receipt.release()


@pytest.mark.parametrize("components", [["none"], "full", 5, [None], [["full"]]])
def test_what_is_no_component_is_refused(components: Any) -> None:
    tree, end, receipt = locked()
    for call in (lambda: receipt.move(end, components), lambda: tree.lock(end, components=components)):
        with pytest.raises(UnifiedTreeError):
            call()
    assert tree.check() == []
    receipt.release()
    assert tree.pool("full").protected_pages == 0


# An error in the middle of a call left pages marked as somebody's: of a clock that fails, a source that gives a page twice,
# ids of another type, sizes that no native integer holds; and a number went for a tier.


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
    assert not cache.tree.check()


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

    tree = UnifiedTree([FULL, swa(2)], 1, page_counts={"full": 8, "swa": 8}, host_page_counts={"full": 8, "swa": 8})
    boundary = tree.insert(Key(range(2)), {"full": np.arange(2), "swa": np.arange(2)}).boundary
    source = Twice()
    with pytest.raises(PageError):
        tree.transfers.backup(boundary, source)
    assert [pool.ledger.in_flight_pages for pool in tree.state.host_pools] == [0, 0]
    source.wrong = False
    effect = tree.transfers.backup(boundary, source)
    assert effect is not None
    tree.transfers.acknowledge(effect)
    assert not tree.check()


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
