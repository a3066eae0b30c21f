"""Eviction that knows the future: what is needed again last goes first (Belady, 1966).

Belady's rule is optimal for pages of one size, each fetched on its own. A hybrid's values depend on each other and a path can
only be cut from its end, so here it is a reference and not a bound. Requests are foreseen in arrival order, whatever the
scheduler makes of them; `PlannedClairvoyance` knows the scheduler, too.

A use that passes a value by (its request branched off before, or had no need of that window) is not seen by the value's
pool. So every value is noted under the request expected to need it, and ranked anew when that request has arrived.
"""

from __future__ import annotations

from sys import byteorder
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.runs.foresight import NEVER, Foresight
from unified_tree.policies.eviction_policy import EvictionPolicy

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.workbench.traces.workload import Request, Workload
    from unified_tree.nodes.node import Value
    from unified_tree.policies.eviction_policy import Rank
    from unified_tree.policies.tree_view import TreeView

TOKEN_BYTES = 8


class Clairvoyance:
    """The factory of one cache's clairvoyant policy, and who tells it what has arrived."""

    def __init__(self, workload: Workload, composition: Composition) -> None:
        self._foresight = Foresight([request.runs for request in workload.requests], workload.block_count)
        self._page_size = composition.page_size
        self._paths = frozenset(i for i, c in enumerate(composition.components) if c.coverage.is_path)
        self._policy: Clairvoyant | None = None
        self._arriving: Request | None = None

    def __call__(self, view: TreeView) -> Clairvoyant:
        """The policy of the cache that is made with this factory."""
        self._policy = Clairvoyant(self, view)
        return self._policy

    def offered(self, request: Request) -> None:
        """A request is offered to the cache: its use of its blocks is no longer in the future."""
        self._arriving = request
        self._foresight.arrived(request.index)
        self._revise(request.index)

    def admitted(self, request: Request) -> None:
        """A request got its place."""

    def _revise(self, number: int) -> None:
        if self._policy is not None:
            self._policy.revise(number)

    def need(self, value: Value) -> tuple[int, int]:
        """The request after which a value is to be ranked anew, and the one that needs it next; NEVER for none.

        A path value is needed when the first page that it covers is asked for again. A window or a state is needed by a request
        that shares its prefix and no more, so not by one that will pass it by.
        """
        if value.component in self._paths:
            use = self._foresight.next_use(self._first_token(value))
            return use, use
        token = last_token(value)
        use = self._foresight.next_use(token)
        return use, NEVER if use != NEVER and self._passes_by(value.node.end, token) else use

    def _first_token(self, value: Value) -> int:
        """A token of the first page that a value covers."""
        node = value.node
        page_bytes = len(node.edge) // (node.end - node.start) * self._page_size
        return _token(value, len(node.edge) - max(0, value.page_count - 1) * page_bytes)

    def _passes_by(self, length_tokens: int, block: int) -> bool:
        """Whether the next request to list `block`, which ends at `length_tokens`, shares more than that with the one
        arriving now. It will then resume behind that length, from what the one arriving now leaves.
        """
        if self._arriving is None:
            return False
        arriving, size = self._arriving.blocks(), self._arriving.block_tokens
        last, following = (length_tokens - 1) // size, length_tokens // size
        if following >= arriving.size or arriving[last] != block:
            return False
        return self._foresight.next_use(int(arriving[following])) == self._foresight.next_use(block)


class Clairvoyant(EvictionPolicy):
    """Ranks a value by when it is needed again; never comes first, then latest, among equals the least recently used."""

    compares_across_pools = True

    def __init__(self, clairvoyance: Clairvoyance, view: TreeView) -> None:
        self._clairvoyance = clairvoyance
        self._view = view
        self._due: dict[int, set[Value]] = {}

    def rank(self, value: Value) -> Rank:
        """Minus the number of the next request to need it. Notes the value under the request that may change that."""
        revised_at, use = self._clairvoyance.need(value)
        if revised_at != NEVER:
            self._due.setdefault(revised_at, set()).add(value)
        return (-use, value.touched)

    def revise(self, number: int) -> None:
        """The request has arrived: rank anew what it was expected to need. Cost: O(log n) a value."""
        for value in sorted(self._due.pop(number, ()), key=_place):
            self._view.reorder(value)


def _place(value: Value) -> tuple[int, int, int]:
    return value.node.id, value.component, int(value.tier)


def last_token(value: Value) -> int:
    """The last token before a value's end."""
    return _token(value, len(value.node.edge))


def _token(value: Value, end: int) -> int:
    """The token of the value's edge that ends at this byte."""
    return int.from_bytes(value.node.edge[end - TOKEN_BYTES : end], byteorder)
