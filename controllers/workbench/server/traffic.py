"""Traffic before and behind a simulated server's cache, in steps of its clock: arrivals, and requests that wait for loads."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from math import ceil
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.server.fetches import Fetches
from unified_tree.controllers.workbench.server.step_clock import earliest
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.server.paced_transfers import PacedEngine
    from unified_tree.controllers.workbench.server.step_clock import StepClock
    from unified_tree.controllers.workbench.server.timed_cache import ServedRequest, TimedCache
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


class Arrivals:
    """The requests of a workload that have not arrived, by time and chain.

    Args:
        steps_per_s: steps of the server's clock that one second of the workload's takes.
    """

    def __init__(self, workload: Workload, steps_per_s: float) -> None:
        self._steps_per_s = steps_per_s
        self._to_come = deque(workload.requests)
        self._parked: dict[int, deque[Request]] = {}

    @property
    def next_step(self) -> int | None:
        """The step at which the next request arrives; None if none is left but those behind an earlier turn."""
        return ceil(self._to_come[0].arrival_s * self._steps_per_s) if self._to_come else None

    def until(self, step: int) -> list[tuple[int, Request]]:
        """Those that arrive up to a step, each with its step; a turn whose chain is at work is held back."""
        arrived = []
        while (next_step := self.next_step) is not None and next_step <= step:
            request = self._to_come.popleft()
            if request.chain in self._parked:
                self._parked[request.chain].append(request)
                continue
            if request.chain != NO_CHAIN:
                self._parked[request.chain] = deque()
            arrived.append((next_step, request))
        return arrived

    def after(self, request: Request) -> Request | None:
        """A request has ended: the turn of its chain that was held back for it."""
        if request.chain == NO_CHAIN:
            return None
        if self._parked[request.chain]:
            return self._parked[request.chain].popleft()
        del self._parked[request.chain]
        return None


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
