"""A continuous-batching server on a virtual clock, driving the real PrefixCache.

Time goes in steps of fixed length. One step computes a chunk of prompt tokens, shared by the prefilling requests in the order
of their admission, and one token of every decoding request. Steps in which nothing but decoding happens are jumped over: a
decoding request is an event at the step where it needs more pages or finishes, so the work is per event, never per token.

Admission is first come, first served under a concurrency limit. A request that finds no pages waits; one that finds none
with nothing else running never can, and is rejected. When a running request finds none, the youngest one is preempted: what
it has computed is published, its lease released, and it waits again in the place of its arrival.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING

from unified_tree.controllers.replay.served_request import ServedRequest
from unified_tree.controllers.replay.workload import NO_CHAIN
from unified_tree.errors import OutOfPagesError

if TYPE_CHECKING:
    from unified_tree.controllers.replay.observer import Observer
    from unified_tree.controllers.replay.server_settings import ServerSettings
    from unified_tree.controllers.replay.timed_cache import TimedCache
    from unified_tree.controllers.replay.workload import Request, Workload

DECODE_PAGES_AHEAD_TOKENS = 64
"""A decoding request takes its pages for so many tokens at once, if there are as many."""
SMALLEST_CHUNK_TOKENS = 512
"""A chunk is cut where pages are short, but not below this; rather somebody is preempted."""


class Server:
    """One replay of one workload. Make it, call `run`, throw it away.

    Args:
        most_tokens: a longer sequence cannot fit and is rejected at once; None for no limit.
    """

    def __init__(
        self,
        cache: TimedCache,
        workload: Workload,
        settings: ServerSettings,
        observer: Observer,
        most_tokens: int | None = None,
    ) -> None:
        self._cache = cache
        self._observer = observer
        self._settings = settings
        self._most_tokens = most_tokens
        self._steps_per_s = settings.time_scale * 1000.0 / settings.step_ms
        self._arrivals = deque(workload.requests)
        self._parked: dict[int, deque[Request]] = {}
        self._waiting: list[ServedRequest] = []  # a heap by arrival
        self._running: list[ServedRequest] = []  # by admission
        self._prefilling: deque[ServedRequest] = deque()
        self._events: list[tuple[int, int, ServedRequest]] = []  # (step, event number, decoding request)
        self._event_count = 0
        self._out_of_pages = False  # admit nobody until something ends
        self._step = 0

    @property
    def now_s(self) -> float:
        """The virtual clock, in seconds."""
        return self._step * self._settings.step_ms / 1000.0

    def run(self) -> None:
        """Serve every request to its end. Cost: O(prefill chunks + decode events + requests) cache calls."""
        while True:
            self._arrive()
            self._admit()
            if self._prefilling:
                self._prefill()
                self._step += 1
            elif self._running:
                self._step = self._next_step()
            elif self._arrivals:
                self._step = max(self._step, self._arrival_step(self._arrivals[0]))
            else:
                break
            self._decode()
        assert not self._waiting, "nothing runs, so nobody can be waiting"

    # -- arrival and admission

    def _arrival_step(self, request: Request) -> int:
        return ceil(request.arrival_s * self._steps_per_s)

    def _next_step(self) -> int:
        """The next step at which anything but decoding happens."""
        step = self._events[0][0]
        if self._arrivals and len(self._running) < self._settings.concurrency:
            step = min(step, self._arrival_step(self._arrivals[0]))
        return max(step, self._step)

    def _arrive(self) -> None:
        while self._arrivals and self._arrival_step(self._arrivals[0]) <= self._step:
            request = self._arrivals.popleft()
            if request.chain == NO_CHAIN:
                heappush(self._waiting, ServedRequest(request))
            elif request.chain in self._parked:
                self._parked[request.chain].append(request)
            else:
                self._parked[request.chain] = deque()
                heappush(self._waiting, ServedRequest(request))

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._settings.concurrency and not self._out_of_pages:
            entry = heappop(self._waiting)
            if entry.target == 0:
                self._end(entry, rejected=False)
            elif self._most_tokens is not None and entry.total > self._most_tokens:
                self._end(entry, rejected=True)
            elif (not self._running or entry.missing_tokens <= self._room_tokens()) and self._acquire(entry):
                self._running.append(entry)
                self._prefilling.append(entry)
            elif self._running:
                heappush(self._waiting, entry)
                self._out_of_pages = True
            else:
                self._end(entry, rejected=True)

    def _acquire(self, entry: ServedRequest) -> bool:
        """Offer a request to the cache; False if there are too few pages for its prompt and those being prefilled."""
        request = entry.request
        tokens = request.tokens()
        if not entry.admitted:
            self._observer.offered(request, tokens[: entry.target])
        checkpoints = (request.shared_tokens,) if request.shared_tokens else ()
        try:
            lease = self._cache.acquire(tokens[: entry.target], checkpoints, request.priority)
        except OutOfPagesError:
            return False
        finally:
            self._charge(entry)
        entry.missing_tokens = entry.target - lease.cached_tokens
        if entry.missing_tokens > self._room_tokens():
            self._cache.release(lease)
            self._charge(entry)
            return False
        if not entry.admitted:
            self._observer.admitted(request, lease, self.now_s)
        entry.start(lease, tokens)
        return True

    def _room_tokens(self) -> int:
        """Tokens that the path pools could take beyond what the prompts being prefilled still have to."""
        return self._cache.available_tokens() - sum(entry.target - entry.granted for entry in self._prefilling)

    # -- running

    def _prefill(self) -> None:
        """One step's chunk of prompt tokens."""
        budget = self._settings.chunk_tokens
        while self._prefilling and budget:
            entry = self._prefilling[0]
            if not self._grow(entry, min(entry.target, entry.computed + budget), SMALLEST_CHUNK_TOKENS):
                continue  # it went back to the queue, or away
            budget -= entry.granted - entry.computed
            entry.computed = entry.granted
            self._publish(entry)
            if entry.computed == entry.target:
                self._prefilling.popleft()
                entry.decoding_from = self._step + 1
                self._schedule(entry)

    def _decode(self) -> None:
        """Whatever decoding has to do up to now: take pages, or finish."""
        while self._events and self._events[0][0] <= self._step:
            _, number, entry = heappop(self._events)
            if number != entry.event_number:
                continue  # it was preempted since
            entry.decoded_to(self._step)
            if entry.computed == entry.total:
                self._finish(entry)
                continue
            assert entry.lease is not None
            self._cache.advance(entry.lease, entry.computed)
            if self._grow(entry, min(entry.total, entry.computed + DECODE_PAGES_AHEAD_TOKENS), 1):
                self._schedule(entry)

    def _schedule(self, entry: ServedRequest) -> None:
        """Wake a decoding request when it has used up its pages. The last grant ends where the request does."""
        self._event_count += 1
        entry.event_number = self._event_count
        assert entry.decoding_from is not None
        heappush(self._events, (entry.decoding_from + entry.granted - entry.target, self._event_count, entry))

    def _grow(self, entry: ServedRequest, length_tokens: int, least_tokens: int) -> bool:
        """Give a running request pages for so many tokens, or for fewer if they are short, but for at least so many more
        than it has computed, if need be by preempting younger ones. False if it lost its own place.
        """
        lease = entry.lease
        assert lease is not None
        least = min(length_tokens, entry.computed + least_tokens)
        while True:
            try:
                self._cache.allocate(lease, length_tokens)
            except OutOfPagesError:
                if length_tokens > least:
                    length_tokens = max(least, (entry.computed + length_tokens) // 2)
                    continue
            else:
                entry.granted = length_tokens
                return True
            finally:
                self._charge(entry)
            if len(self._running) == 1:
                self._leave(entry)
                self._end(entry, rejected=True)
                return False
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is entry:
                return False

    def _publish(self, entry: ServedRequest) -> None:
        """Commit what has been computed, with the states saved so far. What replay runs again is in the cache already."""
        lease = entry.lease
        assert lease is not None
        assert entry.tokens is not None
        if entry.computed >= lease.cached_tokens:
            states = {length: page for length, page in lease.save_pages.items() if length <= entry.computed}
            known = entry.computed <= entry.target  # what the lease was acquired for
            self._cache.commit(lease, entry.computed if known else entry.tokens[: entry.computed], states)
            self._charge(entry)

    # -- leaving

    def _finish(self, entry: ServedRequest) -> None:
        self._publish(entry)
        self._leave(entry)
        self._end(entry, rejected=False)

    def _preempt(self, entry: ServedRequest) -> None:
        if entry.decoding_from is not None:
            entry.decoded_to(self._step)
        self._publish(entry)
        entry.target = max(entry.target, entry.computed)
        self._leave(entry)
        self._out_of_pages = True
        heappush(self._waiting, entry)
        self._observer.preempted()

    def _leave(self, entry: ServedRequest) -> None:
        """Give up the lease and the place; whoever waits for pages may try again."""
        assert entry.lease is not None
        self._cache.release(entry.lease)
        self._charge(entry)
        self._running.remove(entry)
        if entry in self._prefilling:
            self._prefilling.remove(entry)
        entry.stop()
        self._out_of_pages = False

    def _end(self, entry: ServedRequest, *, rejected: bool) -> None:
        """The request is over, and the next turn of its chain may come."""
        chain = entry.request.chain
        if chain != NO_CHAIN:
            if self._parked[chain]:
                heappush(self._waiting, ServedRequest(self._parked[chain].popleft()))
            else:
                del self._parked[chain]
        self._observer.ended(entry.request, entry.spent_ns, rejected=rejected)

    def _charge(self, entry: ServedRequest) -> None:
        entry.spent_ns += self._cache.spent_ns
        self._cache.spent_ns = 0
