"""Leases that wait for what they load back, from the beginning of the load to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.cache.admission import arrive, follow
from unified_tree.errors import TransferError

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache


class Arrivals:
    """The leases of one cache whose loads have not been taken in."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._fetched_tokens: dict[Lease, int] = {}

    def expect(self, lease: Lease) -> None:
        """A lease waits for its load."""
        self._fetched_tokens[lease] = 0

    def fetched(self, lease: Lease, tokens: int) -> None:
        """So many of the tokens of a lease were prefetched for it."""
        if lease in self._fetched_tokens:
            self._fetched_tokens[lease] = tokens

    def take_ended(self) -> None:
        """Leases whose loads have ended hold the tree's pages from now on, or have failed; others do of what has come.

        Cost: O(leases that wait).
        """
        for lease in [lease for lease in self._fetched_tokens if lease.load is not None and lease.load.has_news]:
            if lease.load is not None and lease.load.ended:
                self._arrive(lease)
            else:
                follow(self._cache, lease)

    def take_all(self) -> None:
        """As `take_ended`; nothing is on its way any more."""
        for lease in list(self._fetched_tokens):
            self._arrive(lease)

    def wait_layer(self, lease: Lease, layer_id: int) -> None:
        """See PrefixCache.wait_layer."""
        if lease.load is not None:
            assert self._cache.controller is not None
            self._cache.controller.wait_layer(lease.load, layer_id)
        elif lease.failure is not None:
            raise TransferError(lease.failure)

    def settle(self, lease: Lease) -> None:
        """Wait for what a lease loads back. Raises TransferError if it did not come."""
        if lease.load is not None:
            assert self._cache.controller is not None
            if not lease.load.ended:
                self._cache.controller.wait(lease.load)
            self.take_ended()  # also others': pages that were not needed after all are free by now
        if lease.failure is not None:
            raise TransferError(lease.failure)

    def _arrive(self, lease: Lease) -> None:
        fetched_tokens = self._fetched_tokens.pop(lease)
        assert lease.load is not None
        tokens, counters = lease.load.tokens, self._cache.counters
        arrive(self._cache, lease)
        if lease.failure is not None:
            counters.hit_tokens -= tokens
            counters.drop("lease lost its load")
        else:
            counters.host_hit_tokens += tokens
            counters.storage_hit_tokens += min(tokens, fetched_tokens)

    def drop(self, lease: Lease) -> None:
        """A lease ends before its load."""
        assert lease.load is not None and self._cache.controller is not None
        del self._fetched_tokens[lease]
        self._cache.controller.drop(lease.load)
        lease.load = None

    def fail(self, namespace: str | None) -> None:
        """What is being loaded for a namespace, or for all, has been invalidated. Cost: O(leases that wait)."""
        for lease in self._fetched_tokens:
            if lease.load is not None and namespace in (None, lease.key.namespace):
                lease.load.error = lease.load.error or f"{lease} was loading what has been invalidated since"
