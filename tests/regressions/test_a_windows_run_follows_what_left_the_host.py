"""The marks of the nodes below kept a boundary that was none any more, though nothing waited to be settled: when a window left
the host, its own run, which was out of date, took the place of the one that the node's device value kept, and so the loss went
unnoticed.

Long random lives found it over "everything" (seed "everything w26"), and over "two windows" (seed "two windows w36") that a
node which is to be looked at again was not taken for one that waits.
"""

from __future__ import annotations

import numpy as np
from grove import Grove, key
from kinds import FULL, swa

from unified_tree import Tier, TreeSettings


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
