"""The order of waiting requests, against a depth-first walk over the whole tree."""

from __future__ import annotations

import itertools
import random

import numpy as np

from unified_tree import Component, Key, Path, UnifiedTree
from unified_tree.controllers.adapters.sglang.waiting_order import depth_first_order
from unified_tree.terms.results import NOWHERE, Boundary
from unified_tree.terms.tier import ROOT_ID


def walked(tree: UnifiedTree, boundaries: list[Boundary]) -> list[int]:
    """A subtree with more requests first, then the one that was met first; what ends in a node after its children."""
    below: dict[int, list[int]] = {}
    children: dict[int, set[int]] = {}
    for index, boundary in enumerate(boundaries):
        path, node = [int(boundary.node)], tree.state.nodes.get(boundary.node)
        while node is not None and node.parent is not None:
            node = node.parent
            path.append(int(node.id) if node.parent is not None else ROOT_ID)
        if path[-1] != ROOT_ID:
            path.append(ROOT_ID)
        for at in path:
            below.setdefault(at, []).append(index)
        for child, parent in itertools.pairwise(path):
            children.setdefault(parent, set()).add(child)

    def visit(at: int) -> list[int]:
        order = sorted(children.get(at, ()), key=lambda child: (-len(below[child]), below[child][0]))
        inside = [index for child in order for index in visit(child)]
        return inside + [index for index in below[at] if boundaries[index].node == at]

    return visit(ROOT_ID) if boundaries else []


def test_the_order_is_that_of_a_walk() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        tree = UnifiedTree([Component(name="full", coverage=Path())], 1)
        ends, page = [NOWHERE], 0
        for _ in range(rng.randrange(1, 30)):
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 9))]
            key = Key(tokens, rng.choice(["", "other"]))
            pages = np.arange(page, page + len(tokens), dtype=np.int64)
            page += len(tokens)
            ends.append(tree.insert(key, {"full": pages}).boundary)
        if rng.random() < 0.3:
            tree.evict({"full": rng.randrange(1, 12)})  # some of these boundaries are gone then
        asked = [rng.choice(ends) for _ in range(rng.randrange(0, 20))]
        assert depth_first_order(tree, asked) == walked(tree, asked), seed
