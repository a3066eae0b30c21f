"""Traffic behind a simulated server's cache, in steps of its clock; requests that wait for loads; a closed loop's arrivals."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.server.fetches import Fetches
from unified_tree.controllers.workbench.server.step_clock import earliest

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.server.paced_engine import PacedEngine
    from unified_tree.controllers.workbench.server.served_request import ServedRequest
    from unified_tree.controllers.workbench.server.step_clock import StepClock
    from unified_tree.controllers.workbench.server.timed_cache import TimedCache
    from unified_tree.controllers.workbench.traces.workload import Request, Workload


class Traffic:
    """Time passes for transfers when the server says so.

    Args:
        cache: polled.
        clock: of the server.
        engine: what moves pages to host and back; None without a host tier.
        fetches: what a store or a linker brings for requests that have arrived; of neither if nothing is given.

    Attributes:
        loading: requests that wait for what their lease loads back, by admission.
    """

    def __init__(
        self, cache: TimedCache, clock: StepClock, engine: PacedEngine | None = None, fetches: Fetches | None = None
    ) -> None:
        self.loading: list[ServedRequest] = []
        self.clock = clock
        self.fetches = Fetches(clock) if fetches is None else fetches
        self._cache = cache
        self._engine = engine

    @property
    def has_host(self) -> bool:
        """Whether there is a host tier."""
        return self._engine is not None

    def poll(self) -> bool:
        """Bring transfers up to the step and begin those that are due. Whether any has ended that pinned device pages."""
        self.clock.catch_up()
        has_ended = False
        if self._engine is not None:
            ended_count = self._engine.ended_count
            self._cache.poll()
            has_ended = self._engine.ended_count != ended_count
        return self.fetches.poll() or has_ended

    def take_loaded(self) -> list[ServedRequest]:
        """The requests whose load has ended, well or not; they do not wait any more."""
        loaded = [entry for entry in self.loading if entry.lease is not None and not entry.lease.is_loading]
        self.loading = [entry for entry in self.loading if entry not in loaded] if loaded else self.loading
        return loaded

    @property
    def next_step(self) -> int | None:
        """The step at which a transfer may end that pins device pages; None if none is under way."""
        engine_step = self.clock.step_at(self._engine.next_event_ns) if self._engine is not None else None
        return earliest(engine_step, self.fetches.next_transfer)

    @property
    def missing_tokens(self) -> int:
        """Tokens that are still to be computed by those who wait."""
        return sum(entry.target - entry.lease.cached_tokens for entry in self.loading if entry.lease is not None)


class ClosedLoop:
    """As `Arrivals`, but a request arrives when it is sent: when the turn before it ended and fewer than `parallel` are out.

    Those that could be sent go in the order of the workload. Arrival times mean nothing here.

    Args:
        parallel: requests out at the same time.
    """

    def __init__(self, workload: Workload, parallel: int) -> None:
        chains: dict[int, deque[Request]] = {}
        for request in workload.requests:
            chains.setdefault(request.chain, deque()).append(request)
        self._chains = chains
        self._ready = [(turns[0].index, turns.popleft()) for turns in chains.values()]
        heapify(self._ready)
        self._free = parallel

    @property
    def next_step(self) -> int | None:
        """See Arrivals; only the first ones arrive by themselves."""
        return 0 if self._free and self._ready else None

    def until(self, step: int) -> list[tuple[int, Request]]:
        """See Arrivals."""
        sent = []
        while self._free and self._ready:
            self._free -= 1
            sent.append((step, heappop(self._ready)[1]))
        return sent

    def after(self, request: Request) -> Request | None:
        """See Arrivals; what is sent in its place."""
        following = self._chains[request.chain]
        if following:
            heappush(self._ready, (following[0].index, following.popleft()))
        if self._ready:
            return heappop(self._ready)[1]
        self._free += 1
        return None
