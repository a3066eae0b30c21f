"""The name in a store of each namespace's weights version.

The names belong to the cache and outlive its stores: a namespace that was invalidated keeps its own name when another store is
attached, whose settings name one version for all.

Weights without a given name are named by a counter and the session of the ranks that share the cache. So these ranks agree on
the name without a message, and no other or later deployment has the same one. With a random name on each rank, the other ranks
could not read a replicated pool, which one rank writes.

The number of names is bounded. The oldest one is given up: its namespace joins a group, chosen by a digest of the namespace,
and the whole group gets a name that was never used before. Namespaces of the group without their own names no longer share
stored pages with other deployments, but a wrong page is never found.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement


class WeightsNames:
    """One name for all namespaces, and separate names for those that were invalidated on their own since it was set.

    Args:
        ranks: that share the cache; all make the same calls.
        max_named: how many namespaces may have their own names, and how many groups there are; one or more. Some 200 bytes
            each.
    """

    def __init__(self, ranks: RankAgreement, max_named: Any) -> None:  # compiled code would refuse others in its own words
        if type(max_named) is not int or max_named <= 0:
            raise ConfigurationError(f"max_versions must be a positive integer, not {max_named!r}")
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
