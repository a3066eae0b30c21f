"""Making block ids dense, so that a plain array can be indexed by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.workload import expand_runs, pack_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.controllers.workbench.traces.workload import Int64s

SLACK_IDS = 1 << 16


def densify(scope: Sequence[Int64s], base: int) -> tuple[list[Int64s], int]:
    """Renumber the ids of one scope (a file, a session) from `base` on; ids that are dense already are only shifted.

    Args:
        scope: runs, one array a request; equal ids anywhere in the scope are equal blocks.
        base: the first id that no earlier scope uses.

    Returns the new runs and the first id that is free after them. Cost: O(runs), or a sort of the ids where they are sparse
    (64-bit hashes, say).
    """
    listed = sum(int(runs[1::2].sum()) for runs in scope)
    highest = max((int((runs[::2] + runs[1::2]).max()) for runs in scope if runs.size), default=0)
    if 0 <= highest <= 4 * listed + SLACK_IDS:
        return [_shift(runs, base) for runs in scope], base + highest
    ids = [expand_runs(runs) for runs in scope]
    unique, dense = np.unique(np.concatenate(ids), return_inverse=True)
    cuts = np.cumsum([part.size for part in ids])[:-1]
    return [_shift(pack_runs(part), base) for part in np.split(dense.astype(np.int64), cuts)], base + unique.size


def _shift(runs: Int64s, base: int) -> Int64s:
    if base == 0:
        return runs
    shifted = runs.copy()
    shifted[::2] += base
    return shifted
