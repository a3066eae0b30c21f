"""A boundary inside a node went stale while it was locked: the lock cut the node, the lower part kept the id, and the boundary
named a node that nothing held any more."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove
from kinds import FULL, MAMBA, SETS, swa

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
