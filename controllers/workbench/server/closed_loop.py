"""Arrivals of a closed loop: a number of clients wait for a place, one request after the other is sent as places come free."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.traces.workload import Request, Workload


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
