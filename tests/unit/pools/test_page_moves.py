"""Lists of page copies: checked and sorted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_tree import PageError
from unified_tree.controllers.pools.page_moves import PageMoves


def moves(source: Any, target: Any) -> PageMoves:
    return PageMoves("full", source, target, source_pages=40, target_pages=30)


def test_targets_ascend_and_what_was_given_stays_as_it_was() -> None:
    source, target = np.array([5, 9, 3]), np.array([2, 0, 1])
    source.flags.writeable = target.flags.writeable = False
    made = moves(source, target)
    assert (made.source.tolist(), made.target.tolist(), len(made)) == ([9, 3, 5], [0, 1, 2], 3)
    assert (source.tolist(), target.tolist()) == ([5, 9, 3], [2, 0, 1])
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
