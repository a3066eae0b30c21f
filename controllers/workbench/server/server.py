"""A continuous-batching server on a virtual clock, driving the real PrefixCache.

Time goes in steps of fixed length. One step computes a chunk of prompt tokens, shared by the prefilling requests in the order
of their admission, and one token of every decoding request. Steps in which nothing but decoding happens are jumped over: a
decoding request is an event at the step where it needs more pages or finishes, so the work is per event, never per token.

`RequestQueue` says who gets a place. When a running request finds no pages, the youngest one is preempted: what it has computed
is published, its lease released, and it waits again in the place of its arrival.

With a host tier the cache is polled once a step. A request whose prefix is loaded back has its place, but computes nothing
before all of it has arrived (a server that starts behind the gate of the first layer is faster than that); decoding and the
prefilling of others go on. The end of a transfer is an event like those of decoding. Whoever finds no pages while transfers
pin some waits for those before giving up.

With a store a request's prefetch begins when it arrives. It joins the queue, at the place of its arrival, when the prefetch has
ended or its patience has; others pass it meanwhile. What the store does next is an event, too. A linker's retrieves are waited
for in the same way; what they and its stores take of the device is pinned, as by transfers.

Admission is first come, first served under a concurrency limit. A request that finds no pages waits; one that finds none
with nothing under way that may free some never can, and is rejected.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.server.step_clock import PrefillPace, StepClock, earliest
from unified_tree.controllers.workbench.server.timed_cache import ServedRequest
from unified_tree.controllers.workbench.server.traffic import Arrivals, ClosedLoop, Traffic
from unified_tree.terms.errors import OutOfPagesError

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.server.server_settings import ServerSettings
    from unified_tree.controllers.workbench.server.timed_cache import Observer, TimedCache
    from unified_tree.controllers.workbench.traces.workload import Workload


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
        """The step of the next event; None if no request decodes."""
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


class RequestQueue:
    """The queue before a running batch.

    Args:
        arrivals: who comes when.
        concurrency: requests in the batch, at most.

    Attributes:
        is_closed: no request is admitted until a running one ends, since pages are short.
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


DECODE_PAGES_AHEAD_TOKENS = 64
"""A decoding request takes its pages for so many tokens at once, if there are as many."""
SMALLEST_CHUNK_TOKENS = 512
"""A chunk is cut where pages are short, but not below this; rather somebody is preempted."""
MAX_FAILED_LOADS = 3
"""A request whose loads fail more often is rejected."""


class Server:
    """One replay of one workload. Make it, call `run`, throw it away.

    Args:
        traffic: what moves pages behind the cache, and the clock; nothing does if none is given.
        pace: how much prompt a step computes; None for what the settings say without FLOPs.
    """

    def __init__(
        self,
        cache: TimedCache,
        workload: Workload,
        settings: ServerSettings,
        observer: Observer,
        traffic: Traffic | None = None,
        pace: PrefillPace | None = None,
    ) -> None:
        self._cache = cache
        self._observer = observer
        self._pace = pace or PrefillPace(settings)
        self._traffic = traffic or Traffic(cache, StepClock(settings))
        self._fetches = self._traffic.fetches
        self._clock = self._traffic.clock
        self._batch = RunningBatch()
        arrivals = (
            Arrivals(workload, settings.time_scale * 1000.0 / settings.step_ms)
            if workload.parallel is None
            else ClosedLoop(workload, workload.parallel)
        )
        self._queue = RequestQueue(cache, arrivals, self._batch, self._traffic, observer, settings.concurrency)

    @property
    def now_s(self) -> float:
        """The time of the current step, in seconds."""
        return self._clock.now_s

    def run(self) -> None:
        """Serve every request to its end. Cost: O(prefill chunks + decode events + requests) cache calls."""
        clock = self._clock
        while True:
            self._poll()
            self._queue.arrive()
            self._queue.admit()
            if self._traffic.loading:
                self._poll()  # so that new loads are on their way
            if self._batch.prefilling:
                self._prefill()
                clock.step += 1
            else:
                step = self._next_step()
                if step is None:
                    break
                clock.step = max(clock.step, step)
            self._decode()
        assert not self._queue and not self._fetches, "nothing runs, so no request can wait"

    def _next_step(self) -> int | None:
        """The next step at which anything but decoding happens; None if nothing is left to do."""
        arrival = self._queue.next_arrival
        is_busy = bool(self._batch or self._queue)
        may_fetch = is_busy or self._fetches or arrival is not None
        return earliest(
            self._batch.next_step,
            arrival if self._fetches.is_on or self._queue.has_place else None,
            self._traffic.next_step if is_busy else None,
            self._fetches.next_step if may_fetch else None,
        )

    # -- transfers

    def _poll(self) -> None:
        """Bring transfers up to now: whose load has arrived is prefilled, whose has failed waits again. Who waited for the
        store long enough joins the queue.
        """
        step = self._clock.step
        if self._traffic.poll():
            self._queue.is_closed = False
        for entry in self._fetches.take_ready():
            entry.queued = step
            self._observer.fetched(entry.request, self._clock.seconds(step - entry.arrived))
            self._cache.fetched(entry)
            self._queue.queue(entry)
        for entry in self._traffic.take_loaded():
            lease, _ = entry.at_work()
            assert entry.loading_from is not None
            if lease.failure is not None:
                entry.failed_loads += 1
                self._withdraw(entry)
                continue
            self._observer.loaded(entry.request, self._clock.seconds(step - entry.loading_from))
            entry.loading_from = None
            entry.computing = step
            self._batch.prefilling.append(entry)
            self._cache.resumed(entry)

    def _withdraw(self, entry: ServedRequest) -> None:
        """A request will not get what it was loading back: it waits again, and what it had hit does not count, unless it had
        computed some of its prompt before: what it finds next may be its own.
        """
        entry.admitted = entry.has_computed
        self._remove(entry)
        if entry.failed_loads > MAX_FAILED_LOADS:
            self._queue.end(entry, rejected=True)
        else:
            self._queue.queue(entry)

    def _await_transfer(self) -> bool:
        """Let time pass until the next transfer ends, which may unpin pages. False if none is under way."""
        step = self._traffic.next_step
        if step is None:
            return False
        self._clock.step = max(self._clock.step, step)
        self._poll()
        return True

    # -- running

    def _prefill(self) -> None:
        """One step's chunk of prompt tokens."""
        prefilling = self._batch.prefilling
        self._pace.begin_step()
        while prefilling:
            entry = prefilling[0]
            most = self._pace.max_tokens(entry.computed, entry.target)
            if not most:
                break
            if not self._grow(entry, entry.computed + most, SMALLEST_CHUNK_TOKENS):
                continue  # it went back to the queue, or away
            self._pace.spend(entry.computed, entry.granted)
            entry.computed = entry.granted
            entry.has_computed = True
            self._publish(entry)
            if entry.computed == entry.target:
                prefilling.popleft()
                entry.decoding_from = self._clock.step + 1
                if not entry.had_token:
                    entry.had_token = True
                    self._observer.first_token(entry)
                self._batch.schedule(entry)
        self._pace.end_step(has_more=bool(prefilling))

    def _decode(self) -> None:
        """Whatever decoding has to do up to now: take pages, or finish."""
        while (entry := self._batch.pop_due(self._clock.step)) is not None:
            entry.decoded_to(self._clock.step)
            if entry.computed == entry.total:
                if entry.request.output_tokens:  # else all was committed with the last chunk
                    self._publish(entry)
                self._remove(entry)
                self._queue.end(entry, rejected=False)
                continue
            self._cache.advance(entry)
            if self._grow(entry, min(entry.total, entry.computed + DECODE_PAGES_AHEAD_TOKENS), 1):
                self._batch.schedule(entry)

    def _grow(self, entry: ServedRequest, length_tokens: int, min_tokens: int) -> bool:
        """Give a running request pages for so many tokens, or for fewer if they are short, but for at least so many more
        than it has computed, if need be by preempting younger ones. False if it lost its own place.
        """
        shortest = min(length_tokens, entry.computed + min_tokens)
        while True:
            try:
                self._cache.allocate(entry, length_tokens)
            except OutOfPagesError:
                if length_tokens > shortest:
                    length_tokens = max(shortest, (entry.computed + length_tokens) // 2)
                    continue
            else:
                entry.granted = length_tokens
                return True
            if len(self._batch) == 1:
                step = self._clock.step
                if self._await_transfer():
                    entry.stalled(self._clock.step - step)
                    continue
                self._remove(entry)
                self._queue.end(entry, rejected=True)
                return False
            youngest = self._batch.youngest
            self._preempt(youngest)
            if youngest is entry:
                return False

    def _publish(self, entry: ServedRequest) -> None:
        """Commit what has been computed, with the states saved so far."""
        if self._cache.commit(entry):
            self._fetches.committed(entry, entry.at_work()[0])

    def _preempt(self, entry: ServedRequest) -> None:
        self._observer.preempted(entry.request)
        if entry.loading_from is not None:
            self._withdraw(entry)
        else:
            if entry.decoding_from is not None:
                entry.decoded_to(self._clock.step)
            self._publish(entry)
            entry.target = max(entry.target, entry.computed)
            self._remove(entry)
            self._queue.queue(entry)
        self._queue.is_closed = True

    def _remove(self, entry: ServedRequest) -> None:
        """Give up the lease and the place; whoever waits for pages may try again."""
        self._cache.release(entry, entry.at_work()[0])
        self._batch.remove(entry)
        if entry in self._traffic.loading:
            self._traffic.loading.remove(entry)
        entry.stop()
        self._queue.is_closed = False
