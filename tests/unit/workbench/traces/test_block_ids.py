"""Ids of blocks made dense: what was equal stays equal, behind equal beginnings."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from unified_tree.controllers.workbench.traces.block_ids import densify
from unified_tree.controllers.workbench.traces.workload import expand_runs, pack_runs

IDS = st.one_of(st.integers(0, 6), st.integers(-3, 3), st.sampled_from([(1 << 63) - 1, -(1 << 63), 1 << 62]))


def common(one: list[int], other: list[int]) -> int:
    """How many ids two lists begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(st.lists(st.lists(IDS, max_size=6), max_size=5), st.integers(0, 9))
@example([[0, 1, 2], [0, 2], [0, 1, 2, 3]], 0)
@example([[1, 2, 1, 2]], 5)
@example([[5, 6], [6]], 0)
@example([[(1 << 63) - 1] * 2, [(1 << 63) - 1, -(1 << 63)]], 0)
def test_requests_begin_alike_as_far_as_they_did(scope: list[list[int]], base: int) -> None:
    runs, end = densify([pack_runs(np.array(ids, np.int64)) for ids in scope], base)
    dense = [expand_runs(each).tolist() for each in runs]
    assert [len(ids) for ids in dense] == [len(ids) for ids in scope]
    assert all(base <= block < end for ids in dense for block in ids)
    for i, ids in enumerate(dense):
        assert len(set(ids)) == len(ids), "a block stands for all that comes before it"
        for other, given_ids in zip(dense[:i], scope, strict=False):
            assert common(ids, other) == common(scope[i], given_ids)
            assert set(ids) & set(other) == set(ids[: common(ids, other)])
