"""The weights version of every namespace: its generation, and its name in a store. An invalidation also retires the tree's
state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unified_tree.controllers.weights.generations import Generation, Generations, InvalidationCounters
from unified_tree.controllers.weights.weights_names import WeightsNames

if TYPE_CHECKING:
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.tree import UnifiedTree


class Weights:
    """The weights versions of one cache.

    Args:
        tree: its state is retired by an invalidation.
        ranks: the ranks that share the cache; all make the same calls.
        max_versions: how many namespaces may have their own names in a store; see WeightsNames.
    """

    def __init__(self, tree: UnifiedTree, ranks: RankAgreement, max_versions: Any) -> None:
        self._tree = tree
        self._ranks = ranks
        self._generations = Generations()
        self._names = WeightsNames(ranks, max_versions)

    def generation(self, namespace: str) -> Generation:
        """The current version of a namespace; an invalidation ends it. Cost: O(1)."""
        return self._generations.current(namespace)

    def name(self, namespace: str) -> str | None:
        """Its name in a store; see WeightsNames.of. Cost: O(1)."""
        return self._names.of(namespace)

    @property
    def named_count(self) -> int:
        """See WeightsNames.named_count."""
        return self._names.named_count

    def attached(self, name: str) -> None:
        """A store is attached whose settings give the weights this name."""
        self._ranks.record(f"attach {name}")
        self._names.attached(name)

    def invalidate(self, namespace: str | None, name: str | None) -> None:
        """Start a new version of one namespace or of all; see PrefixCache.invalidate."""
        self._ranks.record(f"invalidate {namespace!r} {name!r}")
        self._tree.invalidate(namespace)
        self._generations.end(namespace)
        self._names.invalidated(namespace, name)

    def count_invalidations(self, max_names: int) -> InvalidationCounters:
        """Count invalidations from now on, for as long as the result is alive; see InvalidationCounters."""
        return self._generations.count(max_names)
