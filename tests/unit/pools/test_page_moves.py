"""Lists of page copies: checked, sorted, cut into runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_tree import PageError
from unified_tree.controllers.pools.page_moves import PageMoves


def moves(source: Any, target: Any) -> PageMoves:
    return PageMoves("full", source, target, source_pages=40, target_pages=30)


@given(st.lists(st.integers(0, 29), unique=True), st.randoms(use_true_random=False))
def test_runs_are_the_moves(targets: list[int], random: Any) -> None:
    sources = [random.randrange(40) if random.random() < 0.5 else min(39, target + 3) for target in targets]
    made = moves(np.array(sources, np.int64), np.array(targets, np.int64))
    spelled = [(source + i, target + i) for source, target, count in made.runs() for i in range(count)]
    assert spelled == sorted(zip(sources, targets, strict=True), key=lambda pair: pair[1])
    assert len(made) == len(targets)
    for (source, target, count), (next_source, next_target, _) in zip(made.runs(), made.runs()[1:], strict=False):
        assert (source + count, target + count) != (next_source, next_target), "two runs that are one"


def test_what_was_given_stays_as_it_was() -> None:
    source, target = np.array([5, 4, 3]), np.array([2, 1, 0])
    source.flags.writeable = target.flags.writeable = False
    made = moves(source, target)
    assert made.runs() == [(3, 0, 3)]
    assert (source.tolist(), target.tolist()) == ([5, 4, 3], [2, 1, 0])
    assert made.source.flags.writeable and made.target.flags.writeable


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        ([0], np.array([0]), "int64 array"), (np.array([0.0]), np.array([0]), "int64 array"), (None, None, "int64 array"),
        (np.array([0], np.int32), np.array([0]), "int64 array"), (np.array([0], np.uint64), np.array([0]), "int64 array"),
        (np.array([[0]]), np.array([[0]]), "int64 array"), (np.array(0), np.array(0), "int64 array"),
        (np.array([True]), np.array([0]), "int64 array"), (np.array([0, 1]), np.array([0]), "2 source pages for 1 targets"),
        (np.array([-1]), np.array([0]), "source names a page outside 0 … 39"),
        (np.array([40]), np.array([0]), "source names a page outside 0 … 39"),
        (np.array([0]), np.array([30]), "target names a page outside 0 … 29"),
        (np.array([0]), np.array([-1]), "target names a page outside"),
        (np.array([0]), np.array([-(1 << 63)]), "target names a page outside"),
        (np.array([0, 1, 2]), np.array([4, 5, 4]), "target page is named twice"),
    ],
)  # fmt: skip
def test_absurd_ids(source: Any, target: Any, why: str) -> None:
    with pytest.raises(PageError, match=why):
        moves(source, target)
