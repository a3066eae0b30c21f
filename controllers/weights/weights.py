"""The weights version of every namespace: its generation, and its name in a store. An invalidation also retires the tree's
state.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.weights.generations import Generations
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.tree import UnifiedTree


class Weights:
    """The weights versions of one cache.

    Args:
        tree: its state is retired by an invalidation.
        ranks: the ranks that share the cache; all make the same calls.
        max_versions: how many namespaces may have their own names in a store; see WeightsNames.

    Attributes:
        generations: which version of a namespace is the current one.
    """

    def __init__(self, tree: UnifiedTree, ranks: RankAgreement, max_versions: Any) -> None:
        self._tree = tree
        self._ranks = ranks
        self.generations = Generations()
        self._names = WeightsNames(ranks, max_versions)

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
        self.generations.end(namespace)
        self._names.invalidated(namespace, name)


class WeightsNames:
    """One name for all namespaces, and separate names for those that were invalidated on their own since it was set.

    Args:
        ranks: that share the cache; all make the same calls.
        max_named: how many namespaces may have their own names, and how many groups there are; one or more. Some 200 bytes
            each.
    """

    def __init__(self, ranks: RankAgreement, max_named: Any) -> None:  # compiled code would refuse others in its own words
        if type(max_named) is not int or max_named <= 0:
            raise ConfigurationError(f"max_versions must be a positive integer, not {repr_of(max_named)}")
        self._ranks = ranks
        self._max_named: int = max_named
        self._common: str | int = ""
        self._own: dict[str, str | int] = {}
        self._groups: dict[int, int] = {}
        self._unnamed = 0

    @property
    def named_count(self) -> int:
        """How many namespaces and groups have their own name, at most twice `max_named`."""
        return len(self._own) + len(self._groups)

    def attached(self, version: str) -> None:
        """Set the name from a store's settings, for all namespaces without their own name."""
        self._common = version

    def invalidated(self, namespace: str | None, version: str | None) -> None:
        """The weights changed. Without a name for them, nothing stored before is found again, and only these ranks find what is
        stored from now on. Cost: O(1).
        """
        name = self._without_name() if version is None else version
        if namespace is None:
            self._common = name
            self._own.clear()
            self._groups.clear()
            return
        self._own.pop(namespace, None)
        self._own[namespace] = name
        if len(self._own) > self._max_named:
            longest = next(iter(self._own))
            del self._own[longest]
            self._groups[self._group(longest)] = self._without_name()

    def of(self, namespace: str) -> str | None:
        """The current name of a namespace; None for an unnamed version while the ranks have no session yet."""
        name = self._own.get(namespace)
        if name is None and self._groups:
            name = self._groups.get(self._group(namespace))
        if name is None:
            name = self._common
        if isinstance(name, str):
            return name
        session = self._ranks.session
        return None if session is None else f"unnamed {session} {name}"

    def _without_name(self) -> int:
        self._unnamed += 1
        return self._unnamed

    def _group(self, namespace: str) -> int:
        digest = blake2b(namespace.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self._max_named
