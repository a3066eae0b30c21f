"""A load brought a window of which the last page had been inserted meanwhile, and all its pages came back unused: whoever had
waited for it went on over pages that were free. Seed 478 of the simulation, 300 ticks."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove, lists
from kinds import FULL, INDEXER, swa

from unified_tree import Component, Trailing

SHARER = Component(name="carry", coverage=Trailing(4), shares="swa")


@pytest.mark.parametrize("components", [[FULL, swa(4)], [FULL, INDEXER, swa(4), SHARER]], ids=["alone", "with a sharer"])
def test_the_front_joins_what_is_there(components: list[Component]) -> None:
    grove = Grove(components)
    grove.put("abcdef")
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
