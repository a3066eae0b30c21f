"""A boundary inside a node was backed up. Its window reaches further up than the node's, and only the node's was locked while
host pages were found: finding them evicted a host page of the window's beginning, and the copies had more sources than targets.
Prefill on one server and decode on another, GPT-OSS with a host tier, 2,000 requests with kills."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove
from kinds import FULL, swa
from numpy.typing import NDArray

from unified_tree import Effect, EffectKind, Tier


def inside() -> Grove:
    """A path of two nodes, `abcd` with its window on both tiers, and `efgh` with its window on device."""
    grove = Grove([FULL, swa(4)])
    grove.put("abcd")
    grove.backup("abcd")
    grove.put("abcdefgh")
    return grove


def test_a_backup_of_a_boundary_inside_a_node_locks_its_window_on_host() -> None:
    grove = inside()
    boundary = grove.match("abcdef", touch=False).device
    assert boundary.length == 6
    assert grove.tree.transfers.backup_needs(boundary) == {"full": 1, "swa": 1}

    def found(needs: dict[str, int]) -> dict[str, NDArray[np.int64]]:
        assert grove.evict(1, "swa", Tier.HOST) == {}, "the window's beginning is needed"
        return {name: grove.fresh(name, count) for name, count in needs.items()}

    effect = grove.tree.transfers.backup(boundary, found)
    assert all(len(copy.source) == len(copy.target) for copy in effect.copies)
    assert not grove.tree.transfers.acknowledge(effect)
    assert len(grove.tree.pages(boundary, "swa", Tier.HOST)) == 2
    grove.check()


def test_a_refused_backup_unlocks_it() -> None:
    grove = inside()
    boundary = grove.match("abcdef", touch=False).device
    with pytest.raises(RuntimeError, match="none"):
        grove.tree.transfers.backup(boundary, refusing)
    assert grove.evict(1, "swa", Tier.HOST) != {}
    grove.check()


def refusing(_: dict[str, int]) -> dict[str, NDArray[np.int64]]:
    raise RuntimeError("none")


def test_a_load_of_a_boundary_inside_a_node_locks_its_window_on_device() -> None:
    grove = inside()
    whole = grove.match("abcdefgh", touch=False).device
    grove.tree.transfers.acknowledge(
        grove.tree.transfers.backup(whole, {n: grove.fresh(n, c) for n, c in grove.tree.transfers.backup_needs(whole).items()})
    )
    evicted = grove.evict(4, "swa")
    assert evicted
    boundary = grove.match("abcdef", touch=False).reachable
    needs = grove.tree.transfers.load_needs(boundary)

    def found(needs: dict[str, int]) -> dict[str, NDArray[np.int64]]:
        grove.evict(2, "swa")
        grove.evict(2, "swa", Tier.HOST)
        return {name: grove.fresh(name, count) for name, count in needs.items()}

    effect: Effect = grove.tree.transfers.load(boundary, found)
    assert effect.kind is EffectKind.LOAD
    assert {copy.component: len(copy.source) for copy in effect.copies} == needs
    assert all(len(copy.source) == len(copy.target) for copy in effect.copies)
    grove.check()
