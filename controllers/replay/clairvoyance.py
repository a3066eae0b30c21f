"""Eviction that knows the future: what is needed again last goes first (Belady, 1966).

Belady's rule is optimal for pages of one size, each fetched on its own. A hybrid's values depend on each other and a path can
only be cut from its end, so here it is a reference and not a bound. Requests are foreseen in arrival order, whatever the
scheduler makes of them.

A use that passes a value by (its request branched off before, or had no need of that window) is not seen by the value's
pool. So every value is noted under the request expected to need it, and ranked anew when that request has arrived.
"""

from __future__ import annotations

from sys import byteorder
from typing import TYPE_CHECKING

from unified_tree.controllers.replay.foresight import NEVER, Foresight
from unified_tree.node import Tier

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.replay.workload import Request, Workload
    from unified_tree.eviction_policy import Rank, RestoreCost
    from unified_tree.node import Value
    from unified_tree.pool import Pool

TOKEN_BYTES = 8


class Clairvoyance:
    """The factory of one cache's clairvoyant policies, and who tells them what has arrived."""

    def __init__(self, workload: Workload, composition: Composition) -> None:
        self._foresight = Foresight(workload)
        self._page_size = composition.page_size
        self._paths = frozenset(i for i, c in enumerate(composition.components) if c.coverage.is_path)
        self._policies: list[Clairvoyant] = []

    def __call__(self, _: RestoreCost) -> Clairvoyant:
        """A policy for one pool."""
        policy = Clairvoyant(self._foresight, self._page_size, self._paths)
        self._policies.append(policy)
        return policy

    def attach(self, cache: PrefixCache) -> None:
        """Tell the policies whose order they keep; once, after the cache was made with this factory."""
        stats = cache.stats()
        pools = [cache.tree.pool(name) for name in stats.pools]
        for pool in pools + [cache.tree.pool(name, Tier.HOST) for name in stats.host_pools]:
            next(policy for policy in self._policies if policy is pool.policy).pool = pool

    def arrived(self, request: Request) -> None:
        """A request is offered to the cache: its use of its blocks is no longer in the future."""
        self._foresight.arrived(request)
        for policy in self._policies:
            policy.revise(request.index)


class Clairvoyant:
    """Ranks a value by when it is needed again; never comes first, then latest, among equals the least recently used.

    A path value is needed when the first page that it covers is asked for again. A window or a state is needed by a request
    that shares its prefix and no more, so not by one that will pass it by.
    """

    def __init__(self, foresight: Foresight, page_size: int, paths: frozenset[int]) -> None:
        self.pool: Pool | None = None
        self._foresight = foresight
        self._page_size = page_size
        self._paths = paths
        self._due: dict[int, set[Value]] = {}

    def touched(self, value: Value) -> None:
        """Nothing to keep: the rank is looked up."""

    def rank(self, value: Value) -> Rank:
        """Minus the index of the next request to need it. Notes the value under that request."""
        node = value.node
        page_bytes = len(node.edge) // (node.end - node.start) * self._page_size
        is_path = value.component in self._paths
        end = len(node.edge) - max(0, value.page_count - 1) * page_bytes if is_path else len(node.edge)
        token = int.from_bytes(node.edge[end - TOKEN_BYTES : end], byteorder)
        use = self._foresight.next_use(token)
        if use != NEVER:
            self._due.setdefault(use, set()).add(value)
            if not is_path and self._foresight.passes_by(node.end, token):
                use = NEVER
        return (-use, value.touched)

    def evicted(self, value: Value) -> None:
        """Nothing to learn from a victim."""

    def revise(self, request_index: int) -> None:
        """The request has arrived: rank anew what it was expected to need. Cost: O(log n) a value."""
        for value in sorted(self._due.pop(request_index, ()), key=lambda value: value.node.id):
            if self.pool is not None:
                self.pool.reorder(value)
