"""Locks: a receipt pins what a boundary needs until it is released, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from grove import Grove
from kinds import DRAFT, FULL, MAMBA, OWN_DRAFT, swa

from unified_tree import NOWHERE, Boundary, NodeId, Receipt, ReceiptError, StaleBoundaryError, Tier, UnifiedTreeError


def sizes(grove: Grove, component: str = "full") -> tuple[int, int]:
    """Protected and evictable pages."""
    return grove.tree.pool(component).protected_pages, grove.tree.pool(component).evictable_pages


def test_a_lock_cuts_a_page_range_so_that_sizes_are_exact() -> None:
    grove = Grove([FULL]).having("abcdef")
    grove.lock("abcd")
    assert sizes(grove) == (2, 1)
    assert grove.evict(3) == {"full": [102]}
    grove.check()


def test_a_window_start_is_no_reason_to_cut() -> None:
    grove = Grove([FULL, swa(3)]).having("abcdefgh")
    grove.lock("abcdefgh")
    assert grove.tree.node_count == 1
    assert sizes(grove, "swa") == (2, 0)


def test_a_node_counts_one_for_each_locked_child_and_receipt() -> None:
    grove = Grove([FULL]).having("abcd", "abcdef", "abcdxx")
    receipts = [grove.lock("abcdef"), grove.lock("abcdef"), grove.lock("abcdxx")]
    assert grove.tree.dump().splitlines()[1:] == [
        "  #1 [0, 4) full:2**",
        "    #2 [4, 6) full:1**",
        "    #3 [4, 6) full:1*",
    ]
    receipts.append(grove.lock("abcd"))
    assert "#1 [0, 4) full:2***" in grove.tree.dump()
    assert sizes(grove) == (4, 0)
    for receipt, expected in zip(receipts, [(4, 0), (3, 1), (2, 2), (0, 4)], strict=True):
        receipt.release()
        assert sizes(grove) == expected
        grove.check()


def test_a_lock_of_some_components_pins_those_and_the_paths_below_them() -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    grove.put("abcd", [4])
    receipt = grove.lock("abcd", components=["mamba"])
    assert (sizes(grove, "swa"), sizes(grove, "mamba"), sizes(grove)) == ((0, 2), (1, 0), (2, 0))
    assert grove.evict(1) == {}, "the node cannot go while its state is pinned"
    with pytest.raises(ReceiptError, match="a path goes last"):
        receipt.release("full")
    receipt.release()
    assert grove.evict(1) == {"full": [100, 101], "swa": [200, 201], "mamba": [300]}
    grove.check()


@pytest.mark.parametrize(("components", "pinned"), [(None, 2), (["draft"], 2), (["swa"], 0), ([], 0)])
def test_a_lock_of_some_components_pins_an_optional_path_if_it_is_named(components: list[str] | None, pinned: int) -> None:
    grove = Grove([FULL, swa(3), OWN_DRAFT]).having("abcd")
    receipt = grove.lock("abcd", components=components)
    assert (sizes(grove)[0], sizes(grove, "draft")[0]) == (2, pinned)
    grove.evict(1, "draft")
    receipt.move(receipt.boundary, ["swa"])
    assert (sizes(grove)[0], sizes(grove, "draft")[0]) == (2, 0)
    grove.evict(1, "draft")
    grove.check()
    receipt.release()
    grove.check()


@pytest.mark.parametrize("again", [lambda grove, receipt: grove.tree.unlock(receipt), lambda _, receipt: receipt.release()])
def test_a_receipt_is_released_once(again: Callable[[Grove, Receipt], None]) -> None:
    grove = Grove([FULL]).having("abcd")
    kept, receipt = grove.lock("abcd"), grove.lock("abcd")
    receipt.release()
    with pytest.raises(ReceiptError, match="released before"):
        again(grove, receipt)
    assert sizes(grove) == (2, 0)
    kept.release()
    grove.check()


def test_a_foreign_receipt_is_refused() -> None:
    grove, other = Grove([FULL]), Grove([FULL])
    grove.put("abcd")
    other.put("abcd")
    receipt = grove.lock("abcd")
    with pytest.raises(ReceiptError, match="another tree"):
        other.tree.unlock(receipt)
    assert not receipt.is_released
    assert sizes(grove) == (2, 0)


@pytest.mark.parametrize("name", ["nope", "mamba", "draft"])
def test_a_component_that_is_not_held_cannot_be_released(name: str) -> None:
    grove = Grove([FULL, DRAFT]).having("abcd")
    receipt = grove.lock("abcd")
    with pytest.raises(ReceiptError, match="locks no component"):
        receipt.release(name)
    assert sizes(grove) == (2, 0)


def test_a_lock_on_storage_is_refused() -> None:
    grove = Grove([FULL]).having("abcd")
    with pytest.raises(UnifiedTreeError, match=r"(?i)storage"):
        grove.lock("abcd", tier=Tier.STORAGE)
    grove.check()


def test_a_boundary_that_lost_what_it_needs_is_stale() -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    boundary = grove.put("abcd", [4]).boundary
    grove.evict(1, "swa")
    with pytest.raises(StaleBoundaryError, match="evicted"):
        grove.tree.lock(boundary)
    grove.tree.lock(boundary, components=["full"]).release()
    grove.evict(1)
    with pytest.raises(StaleBoundaryError, match="gone"):
        grove.tree.lock(boundary)
    with pytest.raises(StaleBoundaryError):
        grove.tree.lock(Boundary(NodeId(77), 2))
    grove.check()


def test_a_length_that_is_no_boundary_cannot_be_locked() -> None:
    grove = Grove([FULL, MAMBA])
    boundary = grove.put("abcdef", [6]).boundary
    before = grove.tree.dump()
    for length in (4, 3, 8, -2):
        with pytest.raises(StaleBoundaryError):
            grove.tree.lock(Boundary(boundary.node, length))
    assert grove.tree.dump() == before


def test_nowhere_can_be_locked_and_pins_nothing() -> None:
    grove = Grove([FULL])
    receipt = grove.tree.lock(NOWHERE)
    assert isinstance(receipt, Receipt)
    grove.check()
    receipt.release()
    with pytest.raises(ReceiptError):
        receipt.release()


def test_what_is_unlocked_goes_by_its_recency() -> None:
    grove = Grove([FULL]).having("ab")
    receipt = grove.lock("ab")
    grove.put("cd")
    assert grove.evict(1) == {"full": [101]}
    grove.put("ef")
    receipt.release()
    assert grove.evict(1) == {"full": [100]}


def test_a_lock_moves_to_what_is_there_of_a_boundary_that_is_not_covered() -> None:
    grove = Grove([FULL, swa(3)]).having("abcd")
    receipt = grove.lock("abcd")
    end = grove.put("abcdefgh").boundary
    grove.tree.evict({"swa": 2})
    with pytest.raises(StaleBoundaryError):
        receipt.move(end)
    receipt.move_to_present(end)
    assert (receipt.boundary, sizes(grove), sizes(grove, "swa")) == (end, (4, 0), (0, 2))
    grove.check()
    receipt.release()
    assert sizes(grove) == (0, 4)
    with pytest.raises(ReceiptError, match="cannot move"):
        receipt.move_to_present(end)
    grove.check()
