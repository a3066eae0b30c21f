"""A load copied the front of a window, the node was cut behind it, the load ended: the lower half stayed marked as being
copied, and later loads left its pages out. Seed 583 of the simulation, 300 ticks."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove
from kinds import FULL, swa


@pytest.mark.parametrize("arrives", [True, False])
def test_the_next_load_brings_all_of_it(arrives: bool) -> None:
    grove = Grove([FULL, swa(4)])
    grove.put("abcdef")
    grove.backup("abcdef")
    grove.evict(2, "swa")
    grove.put("abcdefgh")
    boundary = grove.match("abcdef").reachable
    assert grove.tree.load_needs(boundary) == {"swa": 1}
    effect = grove.tree.load(boundary, {"swa": np.array([901])})
    grove.put("abcdxx")
    if arrives:
        grove.tree.acknowledge(effect)
    else:
        grove.tree.abort(effect)
    grove.check()
    grove.evict(grove.tree.pool("swa").used_pages, "swa")
    boundary = grove.match("abcdef").reachable
    assert boundary.length == 6
    assert grove.tree.load_needs(boundary)["swa"] == 2
