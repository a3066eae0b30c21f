"""When each block of a workload is listed next.

Rejected: a sorted list of uses per block, searched at each look. A trace lists tens of millions of (request, block) pairs;
one array with the next use of every block, brought up to date as requests arrive, answers in O(1) from four bytes a block.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.replay.workload import OWN_TOKENS

if TYPE_CHECKING:
    from unified_tree.controllers.replay.workload import Request, Workload

NEVER = np.iinfo(np.int32).max
"""The next use of a block that no request to come lists."""


class Foresight:
    """For every block, the index of the next request that lists it.

    Memory: four bytes a block, and the changes of the next use along each request's blocks, which are few.
    Cost to make: one pass over all requests' runs, backwards.
    """

    def __init__(self, workload: Workload) -> None:
        self._next_use = np.full(workload.block_count, NEVER, np.int32)
        self._block_tokens = workload.requests[0].block_tokens if workload.requests else 1
        self._arriving = np.empty(0, np.int64)
        self._changes: dict[int, list[tuple[int, int, int]]] = {}
        for request in reversed(workload.requests):
            changes: list[tuple[int, int, int]] = []
            for first, count in request.runs.reshape(-1, 2).tolist():
                changes += self._uses(first, count)
                self._next_use[first : first + count] = request.index
            self._changes[request.index] = changes

    def _uses(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """The next uses of a run's blocks as (first, end, next use)."""
        uses = self._next_use[first : first + count]
        cuts = [0, *(np.flatnonzero(uses[1:] != uses[:-1]) + 1).tolist(), count]
        return [(first + low, first + high, int(uses[low])) for low, high in pairwise(cuts)]

    def arrived(self, request: Request) -> None:
        """This use of the request's blocks is no longer in the future."""
        self._block_tokens = request.block_tokens
        self._arriving = request.blocks()
        for first, end, following in self._changes.pop(request.index, ()):
            self._next_use[first:end] = following

    def next_use(self, token: int) -> int:
        """The request that next lists the block of this token id; NEVER for a token that is one request's own."""
        return NEVER if token >= OWN_TOKENS else int(self._next_use[token])

    def passes_by(self, length_tokens: int, block: int) -> bool:
        """Whether the next request to list `block`, which ends at `length_tokens`, shares more than that with the one
        arriving now. It will then resume behind that length, from what the one arriving now leaves.
        """
        arriving, size = self._arriving, self._block_tokens
        last, following = (length_tokens - 1) // size, length_tokens // size
        if following >= arriving.size or arriving[last] != block:
            return False
        return bool(self._next_use[arriving[following]] == self._next_use[block])
