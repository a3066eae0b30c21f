"""The prefetches of a simulated server's cache, in steps of its clock, and the requests that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.replay.row_storage import RowStorage
    from unified_tree.controllers.replay.served_request import ServedRequest
    from unified_tree.controllers.replay.timed_cache import TimedCache

NS_PER_S = 1e9


class Fetches:
    """Requests that have arrived and are not in the queue yet, for a store may have something of their prompts.

    Args:
        cache: asked for prefetches.
        storage: the store behind it; None without one, and then nobody waits here.
        step_ms: of the server.
    """

    def __init__(self, cache: TimedCache, storage: RowStorage | None, step_ms: float) -> None:
        self._cache = cache
        self._storage = storage
        self._step_ns = round(step_ms * 1e6)
        self._waiting: list[tuple[float, ServedRequest]] = []  # (when it stops waiting in seconds, request), by arrival

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_on(self) -> bool:
        """Whether there is a store."""
        return self._storage is not None

    def begin(self, entry: ServedRequest) -> bool:
        """A request has arrived. Whether it waits here."""
        if self._storage is None:
            return False
        request = entry.request
        if not self._cache.prefetch(request.index, request.tokens()[: entry.target]):
            return False
        tier = self._storage.tier
        self._waiting.append((tier.clock() + tier.prefetch.patience_s(entry.target), entry))
        return True

    @property
    def next_transfer(self) -> int | None:
        """Nothing that a store does takes device pages."""
        return None

    def poll(self, step: int) -> bool:
        """The cache's own poll does all that is to do. Whether any transfer has ended."""
        del step
        return False

    def take_ready(self) -> list[ServedRequest]:
        """Those that need not wait any more, by arrival. To be asked after every poll."""
        if not self._waiting:
            return []
        ready = [entry for _, entry in self._waiting if self._cache.prefetched(entry.request.index)]
        if ready:
            self._waiting = [waiting for waiting in self._waiting if waiting[1] not in ready]
        return ready

    def next_step(self, step: int) -> int | None:
        """The step at which the store goes on, or somebody stops waiting; None if neither."""
        if self._storage is None:
            return None
        next_ns = self._storage.next_event_ns
        steps = [] if next_ns is None else [-(-next_ns // self._step_ns)]
        if self._waiting:
            deadline = min(deadline for deadline, _ in self._waiting) * NS_PER_S / self._step_ns
            if deadline != float("inf"):
                steps.append(max(step + 1, -int(-deadline // 1)))
        return min(steps, default=None)

    def checkpoints(self, entry: ServedRequest) -> tuple[int, ...]:
        """A store takes every boundary."""
        del entry
        return ()

    def fetched_tokens(self, entry: ServedRequest) -> int:
        """By how many tokens the host's prefix became longer for this request."""
        return self._cache.cache.prefetched_tokens(entry.request.index)

    def committed(self, entry: ServedRequest, lease: Lease) -> None:
        """The cache persists on its own what was published."""

    def leave(self, entry: ServedRequest) -> None:
        """A request is over; what was prefetched for it and never acquired is released."""
        if self._storage is not None:
            self._cache.cache.cancel(entry.request.index)

    def finish(self) -> None:
        """The cache's drain does all that is to do."""
