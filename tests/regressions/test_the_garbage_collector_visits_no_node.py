"""A full garbage collection stopped a server for most of a second: it visited eight objects a node. Compiled, it visits none,
and so what goes has to be taken apart by hand."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from grove import Grove

import unified_tree.nodes.node
from unified_tree import Component, Key, Path, Point, Trailing, UnifiedTree

COMPILED = not str(unified_tree.nodes.node.__file__).endswith(".py")
KINDS = [
    Component(name="full", coverage=Path()),
    Component(name="swa", coverage=Trailing(4)),
    Component(name="mamba", coverage=Point()),
]


def grown(node_count: int) -> UnifiedTree:
    tree = UnifiedTree(KINDS, 1)
    for i in range(node_count):
        tree.insert(Key([7, i]), {"full": np.array([2 * i, 2 * i + 1][i > 0 :]), "swa": np.array([i])}, {"mamba": {2: i}})
    return tree


@pytest.mark.skipif(not COMPILED, reason="interpreted objects are all visited")
def test_tracked_objects_do_not_grow_with_the_tree() -> None:
    counts = []
    for node_count in (100, 5_000):
        tree = grown(node_count)
        gc.collect()
        gc.collect()
        counts.append(len(gc.get_objects()))
        assert tree.node_count > node_count
        del tree
    assert counts[1] - counts[0] < 100


def test_a_tree_that_goes_leaves_no_circles() -> None:
    tree = grown(20)
    nodes = list(tree.state.nodes)
    del tree
    gc.collect()
    assert all(node.parent is None and node.first_child is None and not any(node.device) for node in nodes)


def test_a_node_that_goes_leaves_no_circles() -> None:
    grove = Grove(KINDS)
    grove.put("abcd", [4])
    [node] = grove.tree.state.nodes
    [*values] = node.device
    grove.evict(10)
    assert node.parent is None
    assert not any(node.device)
    assert all(value is not None and value.above is value.before is value.behind is None for value in values)
