"""The open leases of one cache, and those of them that wait for a load back."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from unified_tree.terms.errors import LeaseError, TransferError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.host.hybrid_cache_controller import HybridCacheController
    from unified_tree.controllers.host.load import Load


class Leases:
    """Every lease from its `add` to its `remove`.

    Args:
        controller: loads back; None without a host tier.
        counters: counts events.
    """

    def __init__(self, controller: HybridCacheController | None, counters: CacheCounters) -> None:
        self._controller = controller
        self._counters = counters
        self._open: dict[Lease, None] = {}
        self._waiting: dict[Load, Lease] = {}
        self._changed: deque[Load] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._open)

    def require(self, lease: Any) -> None:  # any object, so that compiled code raises LeaseError too
        """Raise LeaseError for a lease that was released, or belongs to another cache."""
        try:
            if lease in self._open:
                return
            released = lease.is_released
        except (AttributeError, TypeError):
            raise LeaseError(f"a Lease is needed, not {lease!r}") from None
        raise LeaseError(f"{lease} was released before" if released else f"{lease} belongs to another cache")

    def add(self, lease: Lease) -> None:
        """A lease was made."""
        self._open[lease] = None
        if lease.load is not None:
            self._waiting[lease.load] = lease
            lease.load.changed = self._changed

    def remove(self, lease: Lease) -> None:
        """A lease ends, perhaps before its load. If this is interrupted, it ends before that is raised."""
        try:
            if lease.load is not None:
                self._waiting.pop(lease.load, None)
            lease._end()
            self._open.pop(lease, None)
        except BaseException:
            self._remove(lease)
            raise

    def _remove(self, lease: Lease) -> None:
        """Idempotent, and so is each of its steps."""
        if lease.load is not None:
            self._waiting.pop(lease.load, None)
        lease._end()
        self._open.pop(lease, None)

    def poll(self) -> None:
        """As `HybridCacheController.poll`, if there is one, and leases follow what has ended of their loads."""
        if self._controller is not None:
            try:
                self._controller.poll()
            finally:
                if self._changed:
                    self.follow_loads()

    def follow_loads(self) -> None:
        """Leases whose loads have ended switch to the tree's pages, or fail. Partly loaded ones switch for the loaded part.

        Cost: O(loads of which something has ended).
        """
        while self._changed:
            load = self._changed.popleft()
            lease = self._waiting.get(load)
            if lease is None:
                continue
            if load.has_ended:
                self._end_load(lease, load)
            elif load.has_unseen_end:
                lease._follow_load()

    def end_loads(self) -> None:
        """As `follow_loads`, when no load is open any more."""
        for load, lease in list(self._waiting.items()):
            self._end_load(lease, load)

    def wait_layer(self, lease: Lease, layer_id: int) -> None:
        """See PrefixCache.wait_layer."""
        if lease.load is not None:
            assert self._controller is not None
            self._controller.wait_layer(lease.load, layer_id)
        elif lease.failure is not None:
            raise TransferError(lease.failure)

    def wait(self, lease: Lease) -> None:
        """Return when a lease's load has ended. Raises TransferError if it failed."""
        if lease.load is not None:
            assert self._controller is not None
            if not lease.load.has_ended:
                self._controller.wait(lease.load)
            self.follow_loads()  # also others': pages that were not needed after all are free by now
        if lease.failure is not None:
            raise TransferError(lease.failure)

    def fail(self, namespace: str | None) -> None:
        """Fail the loads of an invalidated namespace, or of all. Cost: O(leases that wait)."""
        for load, lease in self._waiting.items():
            if namespace in (None, lease.tokens.namespace):
                load.fail(f"{lease} was loading what has been invalidated since")

    def _end_load(self, lease: Lease, load: Load) -> None:
        del self._waiting[load]
        lease._end_load()
        if lease.failure is not None:
            self._counters.hit_tokens -= load.tokens
            self._counters.load_hit_tokens -= load.tokens
            self._counters.count_drop("lease lost its load")
            if self._counters.observers.all:
                self._counters.observers.load_failed(lease.tokens.namespace, load.tokens)
        else:
            self._counters.host_hit_tokens += lease.host_tokens
            self._counters.storage_hit_tokens += lease.storage_tokens
