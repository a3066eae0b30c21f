"""From a request's arrival to its place on the simulated server, and its end.

Admission is first come, first served under a concurrency limit. A request that finds no pages waits; one that finds none
with nothing under way that may free some never can, and is rejected.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.server.served_request import ServedRequest
from unified_tree.terms.errors import OutOfPagesError

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.server.observer import Observer
    from unified_tree.controllers.workbench.server.running_batch import RunningBatch
    from unified_tree.controllers.workbench.server.timed_cache import TimedCache
    from unified_tree.controllers.workbench.server.traffic import ClosedLoop, Traffic
    from unified_tree.controllers.workbench.traces.clock import Arrivals


class RequestQueue:
    """The queue before a running batch.

    Args:
        arrivals: who comes when.
        concurrency: requests in the batch, at most.

    Attributes:
        is_closed: nobody is admitted until something ends, for pages are short.
    """

    def __init__(
        self,
        cache: TimedCache,
        arrivals: Arrivals | ClosedLoop,
        batch: RunningBatch,
        traffic: Traffic,
        observer: Observer,
        concurrency: int,
    ) -> None:
        self.is_closed = False
        self._cache = cache
        self._arrivals = arrivals
        self._batch = batch
        self._traffic = traffic
        self._clock = traffic.clock
        self._observer = observer
        self._concurrency = concurrency
        self._waiting: list[ServedRequest] = []  # a heap by arrival

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_arrival(self) -> int | None:
        """The step of the next arrival; None if none is left but those behind an earlier turn."""
        return self._arrivals.next_step

    @property
    def has_place(self) -> bool:
        """Whether the concurrency limit allows another request."""
        return len(self._batch) < self._concurrency

    def arrive(self) -> None:
        """Take in those that arrive up to now."""
        for arrived, request in self._arrivals.until(self._clock.step):
            self._arrive(ServedRequest(request, arrived))

    def queue(self, entry: ServedRequest) -> None:
        """A request waits for a place, again or for the first time, in the order of its arrival."""
        heappush(self._waiting, entry)

    def admit(self) -> None:
        """Give places to those that wait, as long as there are places and pages."""
        while self._waiting and self.has_place and not self.is_closed:
            entry = heappop(self._waiting)
            if entry.target == 0:
                self.end(entry, rejected=False)
            elif not self._cache.fits(entry):
                self.end(entry, rejected=True)
            elif (not self._may_get_room() or entry.missing_tokens <= self._room_tokens()) and self._acquire(entry):
                self._batch.add(entry)
                if entry.loading_from is not None:
                    self._traffic.loading.append(entry)
            elif self._may_get_room():
                self.queue(entry)
                self.is_closed = True
            else:
                self.end(entry, rejected=True)

    def end(self, entry: ServedRequest, *, rejected: bool) -> None:
        """The request is over, and the next turn of its chain may come."""
        self._traffic.fetches.release(entry)
        self._cache.ended(entry)
        following = self._arrivals.after(entry.request)
        if following is not None:
            self._arrive(ServedRequest(following, self._clock.step))
        self._observer.ended(entry.request, self._clock.now_s, entry.spent.ns, rejected=rejected)

    def _arrive(self, entry: ServedRequest) -> None:
        if not (entry.target and self._cache.fits(entry) and self._traffic.fetches.begin(entry)):
            self.queue(entry)

    def _may_get_room(self) -> bool:
        """Whether anything is under way that may free pages."""
        return bool(self._batch) or self._traffic.next_step is not None

    def _room_tokens(self) -> int:
        """Tokens that the path pools could take beyond what the prompts being prefilled still have to."""
        return self._cache.available_tokens() - self._batch.missing_tokens - self._traffic.missing_tokens

    def _acquire(self, entry: ServedRequest) -> bool:
        """Offer a request to the cache; False if there are too few pages for its prompt and those being prefilled."""
        request, traffic, fetches = entry.request, self._traffic, self._traffic.fetches
        tokens = self._cache.tokens(request)
        if not entry.admitted:
            self._observer.offered(request)
        room_before = self._room_tokens() if traffic.has_host else 0
        entry.fetched_tokens = max(entry.fetched_tokens, fetches.fetched_tokens(entry))
        try:
            lease = self._cache.acquire(entry, tokens, (*request.save_points, *fetches.checkpoints(entry)), named=fetches.is_on)
        except OutOfPagesError:
            return False
        missing_tokens = entry.missing_tokens = entry.target - lease.cached_tokens
        room_tokens = self._room_tokens()
        is_loading = lease.is_loading and traffic.has_host
        if is_loading:
            entry.missing_tokens += room_before - room_tokens  # what is loaded takes room as well
        if missing_tokens > room_tokens:
            self._cache.release(entry, lease)
            return False
        if not entry.admitted:
            self._observer.admitted(request, lease, self._clock.now_s, entry.fetched_tokens)
        entry.start(lease, tokens)
        entry.started = entry.computing = self._clock.step
        if is_loading:
            entry.loading_from = self._clock.step
        else:
            self._cache.resumed(entry)
        return True
