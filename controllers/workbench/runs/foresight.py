"""When each block of a workload is used next.

Rejected: a sorted list of uses per block, searched at each look. A trace lists tens of millions of (request, block) pairs;
one array with the next use of every block, brought up to date as requests arrive, answers in O(1) from four bytes a block.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.workload import OWN_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.controllers.workbench.traces.workload import Int64s

NEVER = np.iinfo(np.int32).max
"""The next use of a block that nobody to come uses."""


class Foresight:
    """For every block, the number of the next request that uses it.

    Requests may arrive in another order than that of their numbers: the next use is the lowest number that has not arrived.

    Args:
        uses: of each request, by number, the blocks that it uses, as runs.
        block_count: ids of blocks are below it.

    Memory: four bytes a block, and the changes of the next use along each request's blocks, which are few.
    Cost to make: one pass over all runs, backwards.
    """

    def __init__(self, uses: Sequence[Int64s], block_count: int) -> None:
        self._next_use = np.full(block_count, NEVER, np.int32)
        self._changes: list[list[tuple[int, int, int]]] = [[] for _ in uses]
        self._has_arrived = np.zeros(len(uses), np.bool_)
        for number in range(len(uses) - 1, -1, -1):
            for first, count in uses[number].reshape(-1, 2).tolist():
                self._changes[number] += self._uses(first, count)
                self._next_use[first : first + count] = number

    def _uses(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """The next uses of a run's blocks as (first, end, next use)."""
        uses = self._next_use[first : first + count]
        cuts = [0, *(np.flatnonzero(uses[1:] != uses[:-1]) + 1).tolist(), count]
        return [(first + low, first + high, int(uses[low])) for low, high in pairwise(cuts)]

    def arrived(self, number: int) -> None:
        """This request's use of its blocks is no longer in the future. No effect the second time."""
        if not self._has_arrived[number]:
            self._has_arrived[number] = True
            self._pass_on(number, 0, self._next_use.size)

    def _pass_on(self, number: int, low: int, high: int) -> None:
        """Of the blocks from `low` to before `high` that a request was to use next, which has arrived: who comes after it."""
        for first, end, following in self._changes[number]:
            first, end = max(first, low), min(end, high)
            if first < end:
                uses = self._next_use[first:end]
                uses[uses == number] = following
                if following != NEVER and self._has_arrived[following]:
                    self._pass_on(following, first, end)

    def next_use(self, token: int) -> int:
        """The request that next uses the block of this token id; NEVER for a token that is one request's own."""
        return NEVER if token >= OWN_TOKENS else int(self._next_use[token])
