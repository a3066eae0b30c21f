"""A continuous-batching server on a virtual clock, driving the real PrefixCache.

Time goes in steps of fixed length. One step computes a chunk of prompt tokens, shared by the prefilling requests in the order
of their admission, and one token of every decoding request. Steps in which nothing but decoding happens are jumped over: a
decoding request is an event at the step where it needs more pages or finishes, so the work is per event, never per token.

Admission is first come, first served under a concurrency limit. A request that finds no pages waits; one that finds none
with nothing else running never can, and is rejected. When a running request finds none, the youngest one is preempted: what
it has computed is published, its lease released, and it waits again in the place of its arrival.

With a host tier the cache is polled once a step. A request whose prefix is loaded back has its place, but computes nothing
before all of it has arrived (a server that starts behind the gate of the first layer is faster than that); decoding and the
prefilling of others go on. The end of a transfer is an event like those of decoding. Whoever finds no pages while transfers
pin some waits for those before giving up.

With a store a request's prefetch begins when it arrives. It joins the queue, at the place of its arrival, when the prefetch has
ended or its patience has; others pass it meanwhile. What the store does next is an event, too. A linker's retrieves are waited
for in the same way; what they and its stores take of the device is pinned, as by transfers.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from unified_tree.controllers.replay.arrivals import Arrivals
from unified_tree.controllers.replay.closed_loop import ClosedLoop
from unified_tree.controllers.replay.fetches import Fetches
from unified_tree.controllers.replay.host_traffic import HostTraffic
from unified_tree.controllers.replay.linked_fetches import LinkedFetches
from unified_tree.controllers.replay.prefill_pace import PrefillPace
from unified_tree.controllers.replay.row_tiers import RowTiers
from unified_tree.controllers.replay.served_request import ServedRequest
from unified_tree.errors import OutOfPagesError

if TYPE_CHECKING:
    from unified_tree.controllers.replay.observer import Observer
    from unified_tree.controllers.replay.server_settings import ServerSettings
    from unified_tree.controllers.replay.timed_cache import TimedCache
    from unified_tree.controllers.replay.verified_pages import VerifiedPages
    from unified_tree.controllers.replay.workload import Workload

DECODE_PAGES_AHEAD_TOKENS = 64
"""A decoding request takes its pages for so many tokens at once, if there are as many."""
SMALLEST_CHUNK_TOKENS = 512
"""A chunk is cut where pages are short, but not below this; rather somebody is preempted."""
MAX_FAILED_LOADS = 3
"""A request whose loads fail more often is rejected."""


class Server:
    """One replay of one workload. Make it, call `run`, throw it away.

    Args:
        max_tokens: a longer sequence cannot fit and is rejected at once; None for no limit.
        tiers: what lies behind the cache.
        pages: fills and compares the pages; None where they have no bytes.
        pace: how much prompt a step computes; None for what the settings say without FLOPs.
        linked: the lookups and transfers of the cache's linker; None without one, and then it may have a store.
    """

    def __init__(
        self,
        cache: TimedCache,
        workload: Workload,
        settings: ServerSettings,
        observer: Observer,
        max_tokens: int | None = None,
        tiers: RowTiers | None = None,
        pages: VerifiedPages | None = None,
        pace: PrefillPace | None = None,
        linked: LinkedFetches | None = None,
    ) -> None:
        self._cache = cache
        self._observer = observer
        self._settings = settings
        self._max_tokens = max_tokens
        tiers = tiers or RowTiers()
        self._traffic = HostTraffic(cache, tiers.engine, settings.step_ms)
        self._fetches = Fetches(cache, tiers.storage, settings.step_ms) if linked is None else linked
        self._pages = pages
        self._pace = pace or PrefillPace(settings)
        self._arrivals = (
            Arrivals(workload, settings.time_scale * 1000.0 / settings.step_ms)
            if workload.parallel is None
            else ClosedLoop(workload, workload.parallel)
        )
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
            self._poll()
            for arrived, request in self._arrivals.until(self._step):
                self._arrive(ServedRequest(request, arrived))
            self._admit()
            if self._traffic.loading:
                self._poll()  # so that new loads are on their way
            if self._prefilling:
                self._prefill()
                self._step += 1
            else:
                step = self._next_step()
                if step is None:
                    break
                self._step = max(self._step, step)
            self._decode()
        assert not self._waiting and not self._fetches, "nothing runs, so nobody can be waiting"

    def _next_step(self) -> int | None:
        """The next step at which anything but decoding happens; None if nothing is left to do."""
        steps = [self._events[0][0]] if self._events else []
        arrival, transfer = self._arrivals.next_step, self._next_transfer()
        if arrival is not None and (self._fetches.is_on or len(self._running) < self._settings.concurrency):
            steps.append(arrival)
        if transfer is not None and (self._running or self._waiting):
            steps.append(transfer)
        fetch = self._fetches.next_step(self._step)
        if fetch is not None and (self._running or self._waiting or self._fetches or arrival is not None):
            steps.append(fetch)
        return min(steps, default=None)

    # -- admission

    def _arrive(self, entry: ServedRequest) -> None:
        fits = self._max_tokens is None or entry.total <= self._max_tokens
        if not (entry.target and fits and self._fetches.begin(entry)):
            heappush(self._waiting, entry)
        self._charge(entry)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._settings.concurrency and not self._out_of_pages:
            entry = heappop(self._waiting)
            if entry.target == 0:
                self._end(entry, rejected=False)
            elif self._max_tokens is not None and entry.total > self._max_tokens:
                self._end(entry, rejected=True)
            elif (not self._may_find_more_room() or entry.missing_tokens <= self._room_tokens()) and self._acquire(entry):
                self._running.append(entry)
                (self._prefilling if entry.loading_from is None else self._traffic.loading).append(entry)
            elif self._may_find_more_room():
                heappush(self._waiting, entry)
                self._out_of_pages = True
            else:
                self._end(entry, rejected=True)

    def _may_find_more_room(self) -> bool:
        """Whether anything is under way that may give pages back."""
        return bool(self._running) or self._next_transfer() is not None

    def _next_transfer(self) -> int | None:
        """The step at which a transfer may end that pins device pages; None if none is under way."""
        steps = (self._traffic.next_step, self._fetches.next_transfer)
        return min((step for step in steps if step is not None), default=None)

    def _acquire(self, entry: ServedRequest) -> bool:
        """Offer a request to the cache; False if there are too few pages for its prompt and those being prefilled."""
        request = entry.request
        tokens = request.tokens()
        if not entry.admitted:
            self._observer.offered(request, tokens[: entry.target])
        shared = (request.shared_tokens,) if request.shared_tokens else ()
        checkpoints = (*shared, *self._fetches.checkpoints(entry))
        room_before = self._room_tokens() if self._traffic.is_on else 0
        name = request.index if self._fetches.is_on else None
        if name is not None:
            entry.fetched_tokens = max(entry.fetched_tokens, self._fetches.fetched_tokens(entry))
        try:
            lease = self._cache.acquire(
                tokens[: entry.target], checkpoints, request.priority, name, go_on=request.answer_runs is not None
            )
        except OutOfPagesError:
            return False
        finally:
            self._charge(entry)
        missing_tokens = entry.missing_tokens = entry.target - lease.cached_tokens
        room_tokens = self._room_tokens()
        load = lease.load if self._traffic.is_on else None
        if load is not None:
            entry.missing_tokens += room_before - room_tokens  # what is loaded takes room as well
        if missing_tokens > room_tokens:
            self._cache.release(lease)
            self._charge(entry)
            return False
        if not entry.admitted:
            self._observer.admitted(request, lease, self.now_s, entry.fetched_tokens)
        entry.start(lease, tokens)
        entry.started = entry.computing = self._step
        if load is not None:
            entry.loading_from = self._step
        elif self._pages is not None:
            self._pages.resumed(lease, tokens)
        return True

    def _room_tokens(self) -> int:
        """Tokens that the path pools could take beyond what the prompts being prefilled still have to."""
        to_come = sum(entry.target - entry.granted for entry in self._prefilling)
        return self._cache.available_tokens() - to_come - self._traffic.missing_tokens

    # -- transfers

    def _poll(self) -> None:
        """Bring transfers up to now: whose load has arrived is prefilled, whose has failed waits again. Who waited for the
        store long enough joins the queue.
        """
        has_ended = self._traffic.poll(self._step)
        if self._fetches.poll(self._step) or has_ended:
            self._out_of_pages = False
        for entry in self._fetches.take_ready():
            entry.queued = self._step
            self._observer.fetched(entry.request, (self._step - entry.arrived) * self._settings.step_ms / 1000.0)
            if self._pages is not None:
                self._pages.fetched(entry.request.tokens()[: entry.target])
            heappush(self._waiting, entry)
        for entry in self._traffic.take_arrived():
            lease = entry.lease
            assert lease is not None
            assert entry.tokens is not None
            assert entry.loading_from is not None
            if lease.failure is not None:
                entry.failed_loads += 1
                self._withdraw(entry)
                continue
            self._observer.loaded(entry.request, (self._step - entry.loading_from) * self._settings.step_ms / 1000.0)
            entry.loading_from = None
            entry.computing = self._step
            self._prefilling.append(entry)
            if self._pages is not None:
                self._pages.resumed(lease, entry.tokens)

    def _withdraw(self, entry: ServedRequest) -> None:
        """A request will not get what it was loading back: it waits again, and what it had hit does not count."""
        entry.admitted = False
        self._leave(entry)
        if entry.failed_loads > MAX_FAILED_LOADS:
            self._end(entry, rejected=True)
        else:
            heappush(self._waiting, entry)

    def _await_transfer(self) -> bool:
        """Let time pass until the next transfer ends, which may unpin pages. False if none is under way."""
        step = self._next_transfer()
        if step is None:
            return False
        self._step = max(self._step, step)
        self._poll()
        return True

    # -- running

    def _prefill(self) -> None:
        """One step's chunk of prompt tokens."""
        self._pace.begin_step()
        while self._prefilling:
            entry = self._prefilling[0]
            most = self._pace.max_tokens(entry.computed, entry.target)
            if not most:
                break
            if not self._grow(entry, entry.computed + most, SMALLEST_CHUNK_TOKENS):
                continue  # it went back to the queue, or away
            self._pace.spend(entry.computed, entry.granted)
            entry.computed = entry.granted
            self._publish(entry)
            if entry.computed == entry.target:
                self._prefilling.popleft()
                entry.decoding_from = self._step + 1
                if not entry.had_token:
                    entry.had_token = True
                    self._observer.first_token(entry)
                self._schedule(entry)
        self._pace.end_step(has_more=bool(self._prefilling))

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
            if self._pages is not None:
                self._pages.ran(entry.lease, entry.computed)
            self._cache.advance(entry.lease, entry.computed)
            if self._grow(entry, min(entry.total, entry.computed + DECODE_PAGES_AHEAD_TOKENS), 1):
                self._schedule(entry)

    def _schedule(self, entry: ServedRequest) -> None:
        """Wake a decoding request when it has used up its pages. The last grant ends where the request does."""
        self._event_count += 1
        entry.event_number = self._event_count
        assert entry.decoding_from is not None
        heappush(self._events, (entry.decoding_from + entry.granted - entry.target, self._event_count, entry))

    def _grow(self, entry: ServedRequest, length_tokens: int, min_tokens: int) -> bool:
        """Give a running request pages for so many tokens, or for fewer if they are short, but for at least so many more
        than it has computed, if need be by preempting younger ones. False if it lost its own place.
        """
        lease = entry.lease
        assert lease is not None
        shortest = min(length_tokens, entry.computed + min_tokens)
        while True:
            try:
                self._cache.allocate(lease, length_tokens)
            except OutOfPagesError:
                if length_tokens > shortest:
                    length_tokens = max(shortest, (entry.computed + length_tokens) // 2)
                    continue
            else:
                entry.granted = length_tokens
                return True
            finally:
                self._charge(entry)
            if len(self._running) == 1:
                step = self._step
                if self._await_transfer():
                    entry.stalled(self._step - step)
                    continue
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
        if self._pages is not None:
            self._pages.ran(lease, entry.computed)
        if entry.computed >= lease.cached_tokens:
            states = {length: page for length, page in lease.save_pages.items() if length <= entry.computed}
            known = entry.computed <= entry.target  # what the lease was acquired for
            self._cache.commit(lease, entry.computed if known else entry.tokens[: entry.computed], states)
            self._charge(entry)
            self._fetches.committed(entry, lease)

    # -- leaving

    def _finish(self, entry: ServedRequest) -> None:
        self._publish(entry)
        self._leave(entry)
        self._end(entry, rejected=False)

    def _preempt(self, entry: ServedRequest) -> None:
        self._observer.preempted()
        if entry.loading_from is not None:
            self._withdraw(entry)
            self._out_of_pages = True
            return
        if entry.decoding_from is not None:
            entry.decoded_to(self._step)
        self._publish(entry)
        entry.target = max(entry.target, entry.computed)
        self._leave(entry)
        self._out_of_pages = True
        heappush(self._waiting, entry)

    def _leave(self, entry: ServedRequest) -> None:
        """Give up the lease and the place; whoever waits for pages may try again."""
        assert entry.lease is not None
        if self._pages is not None:
            self._pages.left(entry.lease)
        self._cache.release(entry.lease)
        self._charge(entry)
        self._running.remove(entry)
        if entry in self._traffic.loading:
            self._traffic.loading.remove(entry)
        if entry in self._prefilling:
            self._prefilling.remove(entry)
        entry.stop()
        self._out_of_pages = False

    def _end(self, entry: ServedRequest, *, rejected: bool) -> None:
        """The request is over, and the next turn of its chain may come."""
        self._fetches.leave(entry)
        following = self._arrivals.after(entry.request)
        if following is not None:
            self._arrive(ServedRequest(following, self._step))
        self._observer.ended(entry.request, entry.spent_ns, rejected=rejected)

    def _charge(self, entry: ServedRequest) -> None:
        entry.spent_ns += self._cache.spent.ns
        self._cache.spent.ns = 0
