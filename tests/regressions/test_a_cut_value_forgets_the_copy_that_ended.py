"""A load copied the front of a window, the node was cut behind it, the load ended: the lower half stayed marked as being
copied, and later loads left its pages out. Seed 583 of the simulation, 300 ticks."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove, lists
from kinds import FULL, swa

from unified_tree import Effect, Tier


@pytest.mark.parametrize("arrives", [True, False])
def test_the_next_load_brings_all_of_it(arrives: bool) -> None:
    grove = Grove([FULL, swa(4)])
    grove.put("abcdef")
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
    grove = Grove([FULL, swa(4)])
    grove.put("abcdefgh")
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
