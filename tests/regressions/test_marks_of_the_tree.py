"""Marks that the tree settles later: which nodes are boundaries, and which belong to a namespace that was invalidated."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove, key
from kinds import FULL, MAMBA, swa

from unified_tree import Key, Tier, TreeSettings, UnifiedTree


@pytest.mark.parametrize("cuts", [(6,), (5, 7)], ids=["two parts", "three"])
def test_a_node_cut_while_windows_above_wait_is_looked_at(cuts: tuple[int, ...]) -> None:
    """A node was cut while the windows above it had changed, and its own runs had not been looked at yet. What waited found
    the upper part as it should be, and went no further: the lower part was no boundary any more, and its values went first.
    """
    tree = UnifiedTree([FULL, swa(8)], 1, settings=TreeSettings(settle_limit=1))
    base = list(range(4))
    texts = [[*base, *range(100 * i, 100 * i + 4)] for i in range(1, 6)]
    tree.insert(Key(base), {"full": np.arange(4)})
    for i, text in enumerate(texts, 1):
        tree.insert(Key(text), dict.fromkeys(["full", "swa"], np.arange(4 * i, 4 * i + 4)))
    tree.settle()
    tree.insert(Key(base), dict.fromkeys(["full", "swa"], np.arange(4)))
    for text in texts:
        for length in cuts:
            tree.lock(tree.match_prefix(Key(text[:length]), touch=False).known, components=["full"]).release()
    tree.settle()
    assert tree.check() == []
    assert all(tree.match_prefix(Key(text), touch=False).device.length == 8 for text in texts)


# The marks of the nodes below kept a boundary that was none any more, though nothing waited to be settled: when a window left
# the host, its own run, which was out of date, took the place of the one that the node's device value kept, and so the loss
# went unnoticed.
# Long random lives found it over "everything" (seed "everything w26"), and over "two windows" (seed "two windows w36") that a
# node which is to be looked at again was not taken for one that waits.


def branches(settle_limit: int) -> Grove:
    """Two continuations of "ab", which resume only with the two pages of its window; one is on device."""
    grove = Grove([FULL, swa(3)], page_size=1, settings=TreeSettings(settle_limit=settle_limit))
    for text in ("ab", "abc", "abd"):
        grove.put(text, window=1)
    grove.tree.settle()
    grove.check()
    return grove


def graft_window(grove: Grove) -> None:
    grove.tree.transfers.graft(key("ab"), {"full": np.array([0, 1]), "swa": np.array([0, 1])})
    grove.check()


def test_a_boundary_ends_with_the_host_part_of_its_window() -> None:
    grove = branches(settle_limit=32)
    assert grove.tree.transfers.boundaries() == []
    graft_window(grove)
    assert len(grove.tree.transfers.boundaries()) == 3
    assert grove.evict(9, "swa", tier=Tier.HOST) == {"swa": [0, 1]}
    assert grove.tree.transfers.boundaries() == []
    grove.check()


def test_what_is_looked_at_again_waits() -> None:
    grove = branches(settle_limit=1)
    graft_window(grove)
    grove.evict(9, "swa", tier=Tier.HOST)
    grove.check()
    assert grove.tree.settle()
    grove.check()
    assert grove.tree.transfers.boundaries() == []


# One eviction paid for all continuations of a prompt whose window went: each was no boundary any more, its values stranded.


def a_prompt_with_continuations(count: int, settle_limit: int) -> Grove:
    grove = Grove([FULL, swa(8)], policy="fifo", settings=TreeSettings(settle_limit=settle_limit)).having("abcdefgh")
    for i in range(count):
        grove.put(f"abcdefgh{chr(0x100 + i)}x", window=1)
    grove.tree.settle()
    assert grove.tree.settle() == 0
    return grove


def test_the_rest_waits_and_is_done_in_the_end() -> None:
    grove = a_prompt_with_continuations(200, settle_limit=5)
    assert grove.tree.pool("swa").stranded_pages == 0
    assert grove.evict(1, "swa")["swa"] == [200, 201, 202, 203], "the window of the prompt was there first"
    grove.check()
    assert grove.tree.pool("swa").stranded_pages < 20
    while grove.tree.settle(7) == 7:
        grove.check()
    assert grove.tree.pool("swa").stranded_pages == 200, "every continuation has lost its window"


def test_what_waits_is_no_boundary_meanwhile() -> None:
    grove = a_prompt_with_continuations(50, settle_limit=1)
    last = grove.match("abcdefgh" + chr(0x100) + "x").device
    assert grove.tree.transfers.is_boundary(last)
    grove.evict(1, "swa")
    assert not grove.tree.transfers.is_boundary(last), "whatever its mark still says"
    assert last not in grove.tree.transfers.boundaries()


def test_children_that_go_while_it_is_their_turn() -> None:
    grove = a_prompt_with_continuations(60, settle_limit=1)
    grove.evict(1, "swa")
    for _ in range(40):
        grove.evict(1)
        grove.check()
    while grove.tree.settle(1):
        grove.check()


# Nodes of an invalidated namespace were forgotten: where a second one was invalidated while the first was being taken apart,
# and where something was locked when `reclaim` came by.


def filled(grove: Grove, namespace: str, count: int) -> None:
    for i in range(count):
        grove.put(f"a{chr(0x100 + i)}", namespace=namespace)


def reclaim_all(grove: Grove) -> None:
    while grove.tree.is_reclaimable:
        grove.tree.reclaim(1)


def test_a_second_invalidation_while_the_first_is_taken_apart() -> None:
    grove = Grove([FULL])
    filled(grove, "one", 50)
    filled(grove, "two", 50)
    filled(grove, "live", 1)
    grove.tree.invalidate("one")
    grove.tree.reclaim(20)
    grove.tree.invalidate("two")
    while grove.tree.is_reclaimable:
        grove.tree.reclaim(7)
        grove.check()
    assert grove.tree.node_count == 1


def test_dead_pages_go_before_live_ones() -> None:
    grove = Grove([FULL])
    filled(grove, "live", 5)
    filled(grove, "dead", 100)
    grove.tree.invalidate("dead")
    grove.evict(100)
    assert grove.tree.node_count == 5
    assert grove.match("a\u0100", "live").device.length == 2


def test_what_was_locked_comes_back_when_it_is_unlocked() -> None:
    grove = Grove([FULL, MAMBA])
    for text in ("abcd", "abcdef", "abxx"):
        grove.put(text, [len(text)])
    first, second = grove.lock("abcdef"), grove.lock("abxx")
    grove.tree.invalidate()
    reclaim_all(grove)
    assert grove.tree.node_count == 4, "all of it stands above what is locked"
    first.release()
    grove.check()
    reclaim_all(grove)
    assert grove.tree.node_count == 2
    second.release()
    grove.check()
    grove.tree.reclaim(100)
    assert grove.tree.node_count == 0
    grove.check()


def test_a_limit_is_a_limit() -> None:
    grove = Grove([FULL], page_size=1)
    text = "".join(chr(0x100 + i) for i in range(500))
    for length in range(1, 501):
        grove.put(text[:length])
    grove.tree.invalidate()
    while grove.tree.is_reclaimable:
        assert grove.tree.reclaim(10).deleted_nodes <= 10
    assert grove.tree.node_count == 0


def test_an_eviction_looks_at_a_bounded_number_of_retired_nodes() -> None:
    grove = Grove([FULL], page_size=1, settings=TreeSettings(evict_reclaim_limit=5))
    text = "".join(chr(0x100 + i) for i in range(100))
    for length in range(1, 101):
        grove.put(text[:length])
    grove.put("z", namespace="live")
    grove.tree.invalidate("")
    result = grove.tree.evict({"full": 1})
    assert result.deleted_nodes == 1
    assert grove.tree.is_reclaimable
    grove.check()
