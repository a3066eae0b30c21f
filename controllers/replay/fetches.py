"""The prefetches of a simulated server's cache, in steps of its clock, and the requests that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
