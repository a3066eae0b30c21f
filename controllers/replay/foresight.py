"""Eviction that knows the future: the value whose content is asked for again last goes first (Belady, 1966).

Belady's rule is optimal for pages of one size, each fetched on its own. A hybrid's values depend on each other and a path can
only be cut from its end, so here it is a reference and not a bound. Requests are foreseen in arrival order, whatever the
scheduler makes of them.

Rejected: a sorted list of uses per block, searched at each look. A trace lists tens of millions of (request, block) pairs;
one array with the next use of every block, brought up to date as requests arrive, answers in O(1) from four bytes a block.
"""

from __future__ import annotations

from itertools import pairwise
from sys import byteorder
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.component import Path
from unified_tree.controllers.replay.workload import OWN_TOKENS

if TYPE_CHECKING:
    from unified_tree.components import Composition
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

    def policy(self, composition: Composition) -> ClairvoyantFactory:
        """A factory of eviction policies that look here."""
        return ClairvoyantFactory(self, composition)


class ClairvoyantFactory:
    """Makes one `Clairvoyant` a pool."""

    def __init__(self, foresight: Foresight, composition: Composition) -> None:
        self._foresight = foresight
        self._page_size = composition.page_size
        self._paths = frozenset(i for i, c in enumerate(composition.components) if isinstance(c.coverage, Path))

    def __call__(self, _: RestoreCost) -> EvictionPolicy:
        return Clairvoyant(self._foresight, self._page_size, self._paths)


class Clairvoyant:
    """Ranks a value by when it is needed again; never comes first, then latest, among equals the least recently used.

    A path value is needed when the first block that it covers is listed again. A window or a state is needed by a request
    that shares its prefix and no more, so not by one that will have passed it by.
    """

    lazy = False

    def __init__(self, foresight: Foresight, page_size: int, paths: frozenset[int]) -> None:
        self._foresight = foresight
        self._page_size = page_size
        self._paths = paths

    def touched(self, value: Value) -> None:
        """Nothing to keep: the rank is looked up."""

    def rank(self, value: Value) -> Rank:
        """Minus the index of the next request to need it."""
        node = value.node
        width = len(node.edge) // (node.end - node.start)
        if value.component in self._paths:
            covered = min(value.page_count * self._page_size, node.end - node.start)
            return (-self._foresight.next_use(_token(node.edge, len(node.edge) - covered * width)), value.touched)
        block = _token(node.edge, len(node.edge) - width)
        if block < OWN_TOKENS and self._foresight.passes_by(node.end, block):
            return (-NEVER, value.touched)
        return (-self._foresight.next_use(block), value.touched)

    def evicted(self, value: Value) -> None:
        """Nothing to learn from a victim."""


def _token(edge: bytes, at: int) -> int:
    return int.from_bytes(edge[at : at + TOKEN_BYTES], byteorder)


__all__ = ["NEVER", "Clairvoyant", "Foresight"]
