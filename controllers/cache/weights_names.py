"""Which weights version each namespace has, by the name that a store knows it under.

It belongs to the cache and outlives the stores that are attached to it: what a namespace's own invalidation said is still true
when another store comes, whose settings name one version for all.

Weights that were given no name are called by a count and the session of the ranks that share the cache. So these ranks agree
on the name without a word more, and no other deployment, and none that is started later, has the same one. A random name on
each rank would leave a replicated pool, which one rank writes, unreadable to all others.

Only so many namespaces keep a name of their own. The one that has had its name longest gives it up to a group, found by a
digest of the namespace, and the whole group goes on under a name that was never used before: namespaces of the group that
have no name of their own no longer share what is stored with other deployments, but nothing wrong is ever found.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement


class WeightsNames:
    """One name for all namespaces, and others for those that were invalidated on their own since it was given.

    Args:
        ranks: that share the cache; all make the same calls.
        max_named: how many namespaces may have names of their own, and how many groups there are of those that had; one or
            more. Some 200 bytes each.
    """

    def __init__(self, ranks: RankAgreement, max_named: int) -> None:
        if type(max_named) is not int or max_named <= 0:
            raise ConfigurationError(f"max_versions must be a positive integer, not {max_named!r}")
        self._ranks = ranks
        self._max_named = max_named
        self._common: str | int = ""
        self._own: dict[str, str | int] = {}
        self._groups: dict[int, int] = {}
        self._unnamed = 0

    @property
    def named_count(self) -> int:
        """Namespaces and groups of them with a name of their own, at most twice `max_named`."""
        return len(self._own) + len(self._groups)

    def attached(self, version: str) -> None:
        """The name that a store's settings give to the weights now: for all that has no name of its own."""
        self._common = version

    def invalidated(self, namespace: str | None, version: str | None) -> None:
        """The weights changed. Without a name for them, nothing stored before is found again, and nothing stored from now on is
        found by anybody but these ranks. Cost: O(1)."""
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
        """The name for a namespace now; None for one that has none as long as the ranks have not heard of each other."""
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
