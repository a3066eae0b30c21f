"""Copies between device and host as the tree keeps account of them: of parts of nodes, of nodes that are cut meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove, key, lists
from kinds import FULL, INDEXER, MAMBA, OWN_DRAFT, SETS, swa
from numpy.typing import NDArray

from unified_tree import Boundary, Component, Effect, EffectKind, StaleBoundaryError, Tier, Trailing

# A load copied the front of a window, the node was cut behind it, the load ended: the lower half stayed marked as being
# copied, and later loads left its pages out. Seed 583 of the simulation, 300 ticks.


@pytest.mark.parametrize("arrives", [True, False])
def test_the_next_load_brings_all_of_it(arrives: bool) -> None:
    grove = Grove([FULL, swa(4)]).having("abcdef")
    grove.backup("abcdef")
    grove.evict(2, "swa")
    grove.put("abcdefgh")
    boundary = grove.match("abcdef").reachable
    assert grove.tree.transfers.load_needs(boundary) == {"swa": 1}
    effect = grove.tree.transfers.load(boundary, {"swa": np.array([901])})
    grove.put("abcdxx")
    if arrives:
        grove.tree.transfers.acknowledge(effect)
    else:
        grove.tree.transfers.abort(effect)
    grove.check()
    grove.evict(grove.tree.pool("swa").used_pages, "swa")
    boundary = grove.match("abcdef").reachable
    assert boundary.length == 6
    assert grove.tree.transfers.load_needs(boundary)["swa"] == 2


def growing() -> tuple[Grove, Effect]:
    """A window is being copied; its node is cut inside it, and the upper half's window grows in front."""
    grove = Grove([FULL, swa(4)]).having("abcdefgh")
    first = grove.tree.transfers.backup(grove.match("abcdefgh").device, {"full": np.arange(4), "swa": np.arange(2)})
    grove.put("abcdef", since=6)
    assert grove.match("abcdef").device.length == 6
    return grove, first


def test_what_grew_in_front_of_a_copy_is_not_marked_once_it_is_cut_off() -> None:
    """Seed 1256, 300 ticks."""
    grove, first = growing()
    grove.put("abcdxx")
    assert not grove.tree.transfers.acknowledge(first)
    grove.check()


@pytest.mark.parametrize("first_arrives", [True, False])
def test_what_grew_in_front_of_a_copy_is_copied_by_the_next(first_arrives: bool) -> None:
    grove, first = growing()
    boundary = grove.match("abcdef").device
    assert grove.tree.transfers.backup_needs(boundary) == {"swa": 1}
    second = grove.tree.transfers.backup(boundary, {"swa": np.array([92])})
    assert second.after == (first,)
    assert grove.tree.transfers.backup_needs(boundary) == {}
    if first_arrives:
        assert not grove.tree.transfers.acknowledge(first)
        assert not grove.tree.transfers.acknowledge(second)
        assert grove.tree.pages(grove.match("abcdef").device, "swa", Tier.HOST).tolist() == [92, 0]
    else:
        assert lists(grove.tree.transfers.abort(first)) == {"full": [0, 1, 2, 3], "swa": [0, 1]}
        assert lists(grove.tree.transfers.acknowledge(second)) == {"swa": [92]}
    grove.check()


SHARER = Component(name="carry", coverage=Trailing(4), shares="swa")


@pytest.mark.parametrize("components", [[FULL, swa(4)], [FULL, INDEXER, swa(4), SHARER]], ids=["alone", "with a sharer"])
def test_a_load_lands_before_a_window_that_came_meanwhile(components: list[Component]) -> None:
    """A load brought a window of which the last page had been inserted meanwhile, and all its pages came back unused: whoever
    had waited for it went on over pages that were free. Seed 478 of the simulation, 300 ticks.
    """
    grove = Grove(components).having("abcdef")
    grove.backup("abcdef")
    assert len(grove.evict(2, "swa")["swa"]) == 2
    boundary = grove.match("abcdef").reachable
    effect = grove.tree.transfers.load(boundary, {"swa": np.array([901, 902])})
    grove.put("abcdefgh")
    grove.check()
    assert lists(grove.tree.transfers.acknowledge(effect)) == {"swa": [902]}
    grove.check()
    match = grove.match("abcdef")
    assert match.device.length == 6
    front, last = grove.tree.pages(match.device, "swa").tolist()
    assert front == 901
    assert last not in {901, 902}


# A boundary inside a node was backed up. Its window reaches further up than the node's, and only the node's was locked while
# host pages were found: finding them evicted a host page of the window's beginning, and the copies had more sources than
# targets. Prefill on one server and decode on another, GPT-OSS with a host tier, 2,000 requests with kills.


def inside() -> Grove:
    """A path of two nodes, `abcd` with its window on both tiers, and `efgh` with its window on device."""
    grove = Grove([FULL, swa(4)]).having("abcd")
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


# A boundary inside a node went stale while it was locked: the lock cut the node, the lower part kept the id, and the boundary
# named a node that nothing held any more.


@pytest.mark.parametrize("kinds", [[FULL], SETS["rebuilt window"], SETS["draft"]], ids=["full", "window", "draft"])
def test_a_locked_boundary_survives_the_eviction_of_what_lies_below(kinds: list[Component]) -> None:
    grove = Grove(kinds).having("abcdefgh")
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
    grove = Grove([FULL]).having("abcdefgh")
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
