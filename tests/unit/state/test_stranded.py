"""Stranded values, which no boundary at a node's end needs, are known at all times."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove
from kinds import FULL, MAMBA, swa

from unified_tree import Key, Tier, UnifiedTree


def stranded(grove: Grove) -> dict[str, int]:
    grove.check()
    return {c.name: grove.tree.pool(c.name).stranded_pages for c in grove.tree.components}


def test_a_state_without_its_window_and_the_reverse() -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    grove.put("abcd", [4], window=0)
    assert stranded(grove) == {"full": 2, "swa": 0, "mamba": 1}
    grove.put("abcd")
    assert stranded(grove) == {"full": 0, "swa": 0, "mamba": 0}
    grove.evict(1, "mamba")
    assert stranded(grove) == {"full": 2, "swa": 2, "mamba": 0}


def test_a_window_that_a_longer_prefix_still_needs() -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    grove.put("abcd", [4])
    grove.put("abcdef", [6], window=1)
    grove.evict(1, "mamba")  # the one at 4
    assert stranded(grove) == {"full": 0, "swa": 0, "mamba": 0}, "[1, 4) still leads to the boundary at 6"


def test_a_path_is_resumed_by_a_rebuild_if_that_leaves_something() -> None:
    grove = Grove([FULL, swa(3, rebuild_tokens=3)])
    assert grove.tree.state.layout.rebuilt_from == 6, "pages of two tokens: the first is reused, and two run again"
    grove.put("abcd", window=0)
    assert stranded(grove) == {"full": 2, "swa": 0}
    grove.put("abcdef", window=1)
    assert grove.match("abcdef").rebuild.length == 6
    assert stranded(grove) == {"full": 0, "swa": 1}
    grove.put("abcdxy", window=0)
    grove.evict(1)
    assert stranded(grove) == {"full": 0, "swa": 0}, "the other branch is still that long"
    grove.evict(1)
    assert stranded(grove) == {"full": 2, "swa": 0}


@pytest.mark.parametrize("page_size", [1, 2, 7, 16])
def test_the_shortest_path_of_which_a_rebuild_leaves_something(page_size: int) -> None:
    for rebuild_tokens in range(3, 60):
        tree = UnifiedTree([FULL, swa(3, rebuild_tokens=rebuild_tokens)], page_size)
        shortest = tree.state.layout.rebuilt_from
        for length in (shortest - page_size, shortest):
            key = Key(list(range(length)), namespace=str(length))
            tree.insert(key, {"full": np.arange(length // page_size) + tree.pool("full").used_pages, "swa": np.arange(0)})
            assert (tree.match_prefix(key).rebuild.length == length) is (length == shortest)


def test_a_path_that_is_cut_is_as_long_as_before() -> None:
    grove = Grove([FULL, swa(3, rebuild_tokens=3)])
    grove.put("abcdefgh", window=0)
    grove.put("abxy", window=0)
    assert stranded(grove) == {"full": 1, "swa": 0}


def test_a_copy_on_host_keeps_a_boundary_alive() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcd", [4])
    grove.backup("abcd")
    grove.evict(1, "mamba")
    assert stranded(grove) == {"full": 0, "mamba": 0}
    grove.evict(1, "mamba", Tier.HOST)
    assert stranded(grove) == {"full": 2, "mamba": 0}
