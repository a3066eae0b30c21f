"""Runs and their sums, against a naive count; and the rectangles of the flame view."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from inspected_cache import busy_cache

from unified_tree.controllers import PrefixCache
from unified_tree.controllers.inspector.tree_picture import (
    EVERYTHING,
    MAX_TICKS,
    RECTANGLE,
    TIERS,
    TreePicture,
    flame,
    run_details,
)
from unified_tree.controllers.inspector.tree_walk import COLUMNS, TreeWalk
from unified_tree.nodes.node import Node


def picture_of(cache: PrefixCache) -> TreePicture:
    walk = TreeWalk(cache.tree.state, has_tokens=False)
    while not walk.has_ended:
        walk.step(1000)
    rows, values, _, roots = walk.take()
    page_bytes = [component.page_bytes for component in cache.tree.components]
    picture = TreePicture(np.array(rows), np.array(values), roots, page_bytes, cache.tree.state.clock, 0.0)
    picture.prepare()
    return picture


def size_of(cache: PrefixCache, node: Node, tier: str) -> int:
    """Bytes of a node and all below it."""
    values = [*(node.device if tier != "host" else ()), *(node.host if tier != "device" else ())]
    own = sum(v.page_count * cache.tree.components[v.component].page_bytes for v in values if v is not None)
    return own + sum(size_of(cache, child, tier) for child in node.children())


@pytest.mark.parametrize("seed", range(4))
def test_runs_and_their_sums(seed: int) -> None:
    cache = busy_cache(seed=seed)
    state = cache.tree.state
    picture = picture_of(cache)
    assert sum(len(picture.nodes(run)) for run in range(picture.run_count)) == cache.tree.node_count
    for run in range(picture.run_count):
        nodes = [state.nodes.get(number) for number in picture.rows[picture.nodes(run), 0].tolist()]
        first, last = nodes[0], nodes[-1]
        assert first is not None and last is not None and first.parent is not None
        assert (picture.start[run], picture.end[run]) == (first.start, last.end)
        for above, below in itertools.pairwise(nodes):
            assert below is not None and below.parent is above and above is not None and above.child_count == 1
        assert last.child_count != 1
        assert first.parent.parent is None or first.parent.child_count > 1
        for tier in TIERS:
            assert picture.total[tier][run] == size_of(cache, first, tier)
        children = picture.children(run, "both")
        assert len(children) == last.child_count
        assert picture.run_of_node(last.id) == run
    for number, (name, bigram, _) in enumerate(picture.roots):
        run = picture.run_count + number
        assert picture.total["both"][run] == size_of(cache, state.roots[name, bigram], "both")
    for tier, pools in (("device", state.device_pools), ("host", state.host_pools)):
        whole = sum(pool.used_pages * pool.component.page_bytes for pool in pools)
        assert picture.total[tier][picture.run_count :].sum() == whole


def test_rectangles_lie_within_those_above() -> None:
    picture = picture_of(busy_cache())
    for top in (EVERYTHING, picture.run_count, 0):
        for tier in TIERS:
            shown = flame(picture, top, tier, 1200, 30)
            levels: dict[int, list[tuple[float, float]]] = {}
            for _, level, left, width, *_ in shown["rectangles"]:
                levels.setdefault(level, []).append((left, left + width))
            assert levels[0] == [(0.0, 1.0)]
            for level, spans in levels.items():
                spans.sort()
                assert all(end <= begin + 1e-5 for (_, end), (begin, _) in itertools.pairwise(spans))
                if level:
                    above = levels[level - 1]
                    assert all(any(l - 1e-5 <= begin and end <= r + 1e-5 for l, r in above) for begin, end in spans)  # noqa: E741


def test_what_is_too_narrow_is_one_rectangle() -> None:
    picture = picture_of(busy_cache(400, device=2000, host=2000))
    wide, narrow = flame(picture, EVERYTHING, "both", 100_000, 60), flame(picture, EVERYTHING, "both", 60, 60)
    assert not [shape for shape in wide["rectangles"] if shape[0] == -2]
    assert len(wide["rectangles"]) == picture.run_count + len(picture.roots) + 1
    assert [shape for shape in narrow["rectangles"] if shape[0] == -2]
    assert len(narrow["rectangles"]) < 60 * 30
    tokens = sum(int(end - start) for start, end in zip(picture.start, picture.end, strict=True))
    for shown in (wide, narrow):
        fields = [dict(zip(RECTANGLE, shape, strict=True)) for shape in shown["rectangles"]]
        assert fields[0]["tokens"] == tokens, "all of them, however many runs are drawn as one"
        assert sum(shape["tokens"] for shape in fields if shape["level"] == 1) == tokens
        for shape in fields:
            assert shape["tokens"] >= shape["end"] - shape["start"]
            assert len(shape["ticks"]) == min(shape["boundaries"], MAX_TICKS)


def test_a_run_tells_what_it_holds() -> None:
    cache = busy_cache()
    picture = picture_of(cache)
    run = int(picture.children(picture.run_count, "both")[0])
    told = run_details(picture, run)
    assert sum(held["bytes"] for held in told["holdings"]) == picture.own["both"][run]
    assert [entry[0] for entry in told["path"]] == [EVERYTHING, picture.run_count, run]
    assert [entry[0] for entry in told["largest"]] == picture.children(run, "both")[:30].tolist()
    assert "holdings" not in run_details(picture, EVERYTHING)


def test_a_snapshot_may_lack_parents() -> None:
    rows = np.array([[7, 3, 8, 12, 0, 1, 5, 1], [9, 7, 12, 16, 0, 1, 6, 1]])
    picture = TreePicture(rows.ravel(), np.array([1 << 16, 2 << 16]), [("", False, False)], [10], 6, 0.0)
    assert rows.shape[1] == COLUMNS
    assert picture.run_count == 1 and picture.total["device"].tolist() == [30, 30]
    empty = TreePicture(np.empty(0, np.int64), np.empty(0, np.int64), [], [10], 0, 0.0)
    assert flame(empty, EVERYTHING, "both", 100, 5)["bytes"] == 0
