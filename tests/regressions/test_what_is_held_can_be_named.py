"""A boundary inside a node went stale while it was locked: the lock cut the node, the lower part kept the id, and the boundary
named a node that nothing held any more."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove, key
from kinds import FULL, MAMBA, OWN_DRAFT, SETS, swa
from numpy.typing import NDArray

from unified_tree import Boundary, Component, StaleBoundaryError, Tier


@pytest.mark.parametrize("kinds", [[FULL], SETS["rebuilt window"], SETS["draft"]], ids=["full", "window", "draft"])
def test_a_locked_boundary_survives_the_eviction_of_what_lies_below(kinds: list[Component]) -> None:
    grove = Grove(kinds)
    grove.put("abcdefgh")
    inside = Boundary(grove.tree.transfers.boundaries()[0].node, 4)
    receipt = grove.tree.lock(inside, components=["full"])
    pages = grove.tree.pages(inside, "full").tolist()
    grove.evict(100)
    grove.check()
    for name in (inside, receipt.boundary):
        assert grove.tree.pages(name, "full").tolist() == pages
        again = grove.tree.lock(name, components=["full"])
        assert grove.tree.key_of(name).length == 4
        again.release()
    receipt.release()
    grove.evict(100)
    for name in (inside, receipt.boundary):
        with pytest.raises(StaleBoundaryError):
            grove.tree.pages(name, "full")
    grove.check()


def test_a_name_holds_as_long_as_the_last_receipt_does() -> None:
    grove = Grove([FULL])
    grove.put("abcdefgh")
    inside = grove.match("abcd").device
    first = grove.tree.lock(inside)
    second = grove.tree.transfers.lock_present(inside)
    third = grove.tree.lock(grove.match("ab").device)
    grove.evict(100)
    first.release()
    assert grove.tree.pages(inside, "full").size == 2
    third.release()
    assert grove.tree.pages(inside, "full").size == 2
    second.release()
    grove.evict(100)
    with pytest.raises(StaleBoundaryError):
        grove.tree.pages(inside, "full")
    assert not grove.tree.locks.renamed


def test_a_load_of_a_boundary_inside_a_node_arrives() -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    grove.put("abcd", [4])
    grove.put("abcdefgh", [8])
    for text in ("abcd", "abcdefgh"):
        grove.backup(text)
    grove.evict(100)
    plain = Grove([FULL])
    plain.put("abcdefgh")
    plain.backup("abcdefgh")
    plain.evict(100)
    inside = plain.match("abcd").reachable
    effect = plain.tree.transfers.load(inside, {"full": np.array([1, 2])})
    pin = plain.tree.transfers.lock_present(inside)
    plain.evict(100, tier=Tier.HOST)
    assert not plain.tree.transfers.acknowledge(effect)
    plain.evict(100, tier=Tier.HOST)
    assert plain.tree.pages(inside, "full").tolist() == [1, 2]
    pin.release()
    plain.check()
    grove.check()


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST])
@pytest.mark.parametrize("draft", [{}, {"draft": np.array([2, 3])}], ids=["draft ends above", "draft goes on"])
def test_a_name_holds_as_long_as_a_path_is_locked_up_to_it(draft: dict[str, NDArray[np.int64]], tier: Tier) -> None:
    """The random machine (500 steps of the seed "draft q26") took a name for valid after `full` had been released early and
    the draft that stayed locked ended above."""
    grove = Grove([FULL, OWN_DRAFT])
    put = grove.tree.transfers.graft if tier else grove.tree.insert
    put(key("ab"), {"full": np.array([1]), "draft": np.array([1])})
    inside = Boundary(put(key("abcdef"), {"full": np.array([2, 3]), **draft}).boundary.node, 4)
    receipt = grove.tree.lock(inside, tier)
    receipt.release("full")
    grove.evict(9, tier=tier)
    grove.check()
    for name in (inside, receipt.boundary):
        if draft:
            assert grove.tree.pages(name, "draft", tier).tolist() == [1, 2]
        else:
            with pytest.raises(StaleBoundaryError):
                grove.tree.pages(name, "draft", tier)
    receipt.release()
    grove.evict(9, tier=tier)
    assert grove.tree.node_count == 0
    assert not grove.tree.locks.renamed
