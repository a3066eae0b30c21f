"""Eviction that knows the future: the value whose content is asked for again last goes first (Belady, 1966).

Belady's rule is optimal for pages of one size, each fetched on its own. A hybrid's values depend on each other and a path can
only be cut from its end, so here it is a reference and not a bound. Requests are foreseen in arrival order, whatever the
scheduler makes of them.

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
    from unified_tree.node import Value
    from unified_tree.policies import EvictionPolicy, Rank, RestoreCost

NEVER = np.iinfo(np.int32).max
TOKEN_BYTES = 8


class Foresight:
    """For every block, the index of the next request that lists it.

    Memory: four bytes a block, and the changes of the next use along each request's blocks, which are few.
    Cost to make: one pass over all requests' runs, backwards.
    """

    def __init__(self, workload: Workload) -> None:
        self._next_use = np.full(workload.block_count, NEVER, np.int32)
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
        """This use of the request's blocks is no longer in the future. Once a request."""
        for first, end, following in self._changes.pop(request.index, ()):
            self._next_use[first:end] = following

    def next_use(self, token: int) -> int:
        """The request that next lists the block of this token id; NEVER for a token that is one request's own."""
        return NEVER if token >= OWN_TOKENS else int(self._next_use[token])

    def policy(self, page_size: int) -> ClairvoyantFactory:
        """A factory of eviction policies that look here."""
        return ClairvoyantFactory(self, page_size)


class ClairvoyantFactory:
    """Makes one `Clairvoyant` a pool."""

    def __init__(self, foresight: Foresight, page_size: int) -> None:
        self._foresight = foresight
        self._page_size = page_size

    def __call__(self, _: RestoreCost) -> EvictionPolicy:
        return Clairvoyant(self._foresight, self._page_size)


class Clairvoyant:
    """Ranks a value by when the first block that it covers is asked for again; never comes first, then latest."""

    lazy = False

    def __init__(self, foresight: Foresight, page_size: int) -> None:
        self._foresight = foresight
        self._page_size = page_size

    def touched(self, value: Value) -> None:
        """Nothing to keep: the rank is looked up."""

    def rank(self, value: Value) -> Rank:
        """Minus the index of the next request to use it; among equals the least recently used first."""
        return (-self._foresight.next_use(self._first_token(value)), value.touched)

    def evicted(self, value: Value) -> None:
        """Nothing to learn from a victim."""

    def _first_token(self, value: Value) -> int:
        node = value.node
        covered = min(value.page_count * self._page_size, node.end - node.start)
        width = len(node.edge) // (node.end - node.start)
        at = len(node.edge) - covered * width
        return int(np.frombuffer(node.edge, np.int64, 1, at)[0])


__all__ = ["NEVER", "Clairvoyant", "Foresight"]
