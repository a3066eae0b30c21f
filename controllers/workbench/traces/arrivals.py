"""When requests arrive on the simulated server: at their time, or when the turn before theirs has ended."""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.traces.workload import NO_CHAIN

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.traces.workload import Request, Workload


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
