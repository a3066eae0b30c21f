"""The weights version of every namespace: which it is now, and what a store calls it. The tree forgets what others computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.cache.generations import Generation, Generations, InvalidationCounters
from unified_tree.controllers.cache.weights_names import WeightsNames

if TYPE_CHECKING:
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.tree import UnifiedTree


class Weights:
    """The weights versions of one cache.

    Args:
        tree: retires what another version computed.
        ranks: that share the cache; all make the same calls.
        max_versions: how many namespaces may have names of their own in a store; see WeightsNames.
    """

    def __init__(self, tree: UnifiedTree, ranks: RankAgreement, max_versions: int) -> None:
        self._tree = tree
        self._ranks = ranks
        self._generations = Generations()
        self._names = WeightsNames(ranks, max_versions)

    def generation(self, namespace: str) -> Generation:
        """The version that a namespace is in; an invalidation ends it. Cost: O(1)."""
        return self._generations.current(namespace)

    def name(self, namespace: str) -> str | None:
        """What a store calls it; see WeightsNames.of. Cost: O(1)."""
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
        """A new version, of one namespace or of all; see PrefixCache.invalidate."""
        self._ranks.record(f"invalidate {namespace!r} {name!r}")
        self._tree.invalidate(namespace)
        self._generations.end(namespace)
        self._names.invalidated(namespace, name)

    def count_invalidations(self, max_names: int) -> InvalidationCounters:
        """Count invalidations from now on, for as long as the result is held; see InvalidationCounters."""
        return self._generations.count(max_names)
