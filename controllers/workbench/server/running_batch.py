"""The requests at work on the simulated server: who prefills, and when each of those that decode has something to do."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.server.served_request import ServedRequest


class RunningBatch:
    """Requests with a place, by admission. A decoding one is an event at the step where it needs more pages or ends.

    Attributes:
        prefilling: those whose prompts are computed, in their order; those that wait for loads are not among them.
    """

    def __init__(self) -> None:
        self.prefilling: deque[ServedRequest] = deque()
        self._running: list[ServedRequest] = []
        self._events: list[tuple[int, int, ServedRequest]] = []  # (step, event number, request)
        self._event_count = 0

    def __len__(self) -> int:
        return len(self._running)

    @property
    def youngest(self) -> ServedRequest:
        """The one admitted last."""
        return self._running[-1]

    @property
    def next_step(self) -> int | None:
        """The step of the next event; None if nobody decodes."""
        return self._events[0][0] if self._events else None

    @property
    def missing_tokens(self) -> int:
        """Tokens that prefilling ones still have to get pages for."""
        return sum(entry.target - entry.granted for entry in self.prefilling)

    def add(self, entry: ServedRequest) -> None:
        """A request got a place."""
        self._running.append(entry)
        if entry.loading_from is None:
            self.prefilling.append(entry)

    def remove(self, entry: ServedRequest) -> None:
        """A request lost its place."""
        self._running.remove(entry)
        if entry in self.prefilling:
            self.prefilling.remove(entry)

    def schedule(self, entry: ServedRequest) -> None:
        """Wake a decoding request when it has used up its pages. The last grant ends where the request does."""
        self._event_count += 1
        entry.event_number = self._event_count
        assert entry.decoding_from is not None
        heappush(self._events, (entry.decoding_from + entry.granted - entry.target, self._event_count, entry))

    def pop_due(self, step: int) -> ServedRequest | None:
        """The next decoding request whose event is due by a step; None if there is none."""
        while self._events and self._events[0][0] <= step:
            _, number, entry = heappop(self._events)
            if number == entry.event_number:  # else it was preempted since
                return entry
        return None
