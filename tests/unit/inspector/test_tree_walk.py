"""A walk in slices sees every node that stays, whatever happens to the tree meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from inspected_cache import PAGE, busy_cache, serve

from unified_tree import Key
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.inspector.tree_walk import (
    COLUMNS,
    COMPONENT_MASK,
    LOCKED,
    ON_HOST,
    PAGES_SHIFT,
    STRANDED,
    TreeWalk,
)


def walked(walk: TreeWalk) -> tuple[list[list[int]], list[int], list[bytes], list[tuple[str, bool, bool]]]:
    rows, values, edges, roots = walk.take()
    return [rows[at : at + COLUMNS] for at in range(0, len(rows), COLUMNS)], values, edges, roots


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_a_walk_reads_each_node_as_it_is(limit: int) -> None:
    cache = busy_cache()
    held = cache.acquire(Key([ord(letter) for letter in "system prompt of shop    "], "shop"))
    state = cache.tree.state
    walk = TreeWalk(state, has_tokens=True)
    while not walk.has_ended:
        walk.step(limit)
    rows, values, edges, roots = walked(walk)
    assert walk.seen == len(rows) == cache.tree.node_count
    assert {name for name, _, _ in roots} == {"shop", "code", ""}
    at = 0
    for row, edge in zip(rows, edges, strict=True):
        node = state.nodes.get(row[0])
        assert node is not None and node.parent is not None and node.root is not None
        assert row[1:4] == [node.parent.id, node.start, node.end]
        assert roots[row[4]][0] == node.root.name[0]
        assert row[5] == node.resumable and edge == node.edge
        there = [value for tier in (node.device, node.host) for value in tier if value is not None]
        assert row[6] == max((value.touched for value in there), default=0)
        for word, value in zip(values[at : at + row[7]], there, strict=True):
            assert (word >> PAGES_SHIFT, word & COMPONENT_MASK) == (value.page_count, value.component)
            assert bool(word & ON_HOST) == bool(value.tier)
            assert bool(word & LOCKED) == bool(value.locks or value.locked_by)
            assert bool(word & STRANDED) == value.stranded
        at += row[7]
    assert at == len(values)
    assert any(word & LOCKED for word in values)
    cache.release(held)


@pytest.mark.parametrize("seed", range(5))
def test_a_tree_that_changes_does_not_break_a_walk(seed: int) -> None:
    cache = busy_cache(seed=seed)
    rng = np.random.default_rng(seed)
    before = {node.id for node in cache.tree.state.nodes}
    walk = TreeWalk(cache.tree.state, has_tokens=False)
    while not walk.has_ended:
        walk.step(3)
        serve(cache, 1, rng)
    after = {node.id for node in cache.tree.state.nodes}
    rows, values, _, _ = walked(walk)
    seen = [row[0] for row in rows]
    assert len(seen) == len(set(seen)), "no node is read twice"
    assert set(seen) >= before & after, "what stayed was read"
    assert sum(row[7] for row in rows) == len(values)


def test_an_empty_tree_and_a_retired_namespace() -> None:
    cache = PrefixCache(busy_cache(0).tree.components, PAGE)
    walk = TreeWalk(cache.tree.state, has_tokens=False)
    walk.step(10)
    assert walk.has_ended and walk.seen == 0
    cache = busy_cache(20)
    cache.invalidate("shop")
    walk = TreeWalk(cache.tree.state, has_tokens=False)
    while not walk.has_ended:
        walk.step(10)
    roots = walked(walk)[3]
    assert ("shop", False, True) in roots and ("code", False, False) in roots
