"""A transfer engine and a prefix linker that take as long as those of some rate and latency would, on the replay's virtual
clock.

Each direction of the engine is a queue: transfers go one after the other in the order of their submission, and each takes its
bytes over the rate and a fixed set-up time. Loads and backups do not slow each other down. A transfer lands whole: the layers
of a load do not come one by one here. What moves the bytes, if there are any, is another engine, given the transfers at once;
this one withholds its completions until their virtual time, and then waits for those that are not there yet. So a history is
the same in every run, whatever the threads below do.

The linker's peer is real, and each call is made and waited for at the moment it is due, on the caller's thread. So calls come
in the order of the virtual clock, a lookup finds what had been stored by then, and a history is the same in every run in which
the peer gives the same answers. It may not, since it evicts, and makes known what was stored, by its own clock. Lookups take a
latency; the bytes of retrieves pass one after the other, and those of stores.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.prefix_linker import PrefixLinker, Progress, Span
from unified_tree.controllers.storage_tier.jobs import Job, Steps
from unified_tree.controllers.transfer_engines import Completion, Transfer
from unified_tree.controllers.workbench.traces.workload import OWN_TOKENS
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import LinkError, TransferError, words_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.host.host_tier import LoadCost
    from unified_tree.controllers.transfer_engines import TransferEngine, VirtualClock
    from unified_tree.controllers.workbench.server.page_store import MeteredStorage
    from unified_tree.controllers.workbench.server.server_settings import StorageCost


NS_PER_S = 1e9


@dataclass(slots=True)
class _Trip:
    """One transfer on the bus, or waiting for it."""

    ticket: int
    duration_ns: int
    is_cancelled: bool = False


class PacedEngine:
    """A TransferEngine in virtual time over one in real time.

    Args:
        inner: takes all transfers and is closed with this one; a NullEngine where there are no bytes.
        clock: shared with the server; waiting advances it.
        cost: rate and set-up time of a transfer.
        page_bytes: by component.
        before: told of each transfer before it is begun.

    Attributes:
        ended_count: transfers that have ended, well or not.
    """

    def __init__(
        self,
        inner: TransferEngine,
        clock: VirtualClock,
        cost: LoadCost,
        page_bytes: Mapping[str, int],
        before: Callable[[Transfer], None] | None = None,
    ) -> None:
        self.clock = clock
        self.ended_count = 0
        self._inner = inner
        self._cost = cost
        self._page_bytes = dict(page_bytes)
        self._before = before
        self._lines: dict[EffectKind, deque[_Trip]] = {direction: deque() for direction in EffectKind}
        self._head_ends_ns = dict.fromkeys(EffectKind, 0)
        self._open: dict[int, tuple[EffectKind, _Trip]] = {}
        self._ended: list[_Trip] = []
        self._told: dict[int, Completion] = {}
        self._cancelled: set[int] = set()

    @property
    def next_event_ns(self) -> int | None:
        """When the next transfer ends on the clock; None if none is under way."""
        return min((self._head_ends_ns[direction] for direction, line in self._lines.items() if line), default=None)

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """See TransferEngine.submit."""
        self._happen()
        if self._before is not None:
            for transfer in transfers:
                self._before(transfer)
        self._inner.submit(transfers)
        self._listen()
        for transfer in transfers:
            size_bytes = sum(self._page_bytes[copy.component] * copy.source.size for copy in transfer.copies)
            seconds = self._cost.latency_s + size_bytes / self._cost.bytes_per_s if size_bytes else 0.0
            trip = _Trip(transfer.ticket, round(seconds * NS_PER_S))
            line = self._lines[transfer.kind]
            if not line:
                self._head_ends_ns[transfer.kind] = self.clock.now + trip.duration_ns
            line.append(trip)
            self._open[trip.ticket] = (transfer.kind, trip)

    def poll(self) -> list[Completion]:
        """See TransferEngine.poll; it waits for the engine below where that is behind the virtual clock."""
        self._happen()
        ended, self._ended = self._ended, []
        return [self._completion(trip) for trip in ended]

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """See TransferEngine.wait_layer; every layer comes with the last."""
        self.wait(ticket)
        if ticket in self._cancelled:
            raise TransferError(f"transfer {ticket}: layer {layer_id} will not come: cancelled")
        self._inner.wait_layer(ticket, layer_id)

    def cancel(self, ticket: int) -> None:
        """See TransferEngine.cancel; what the bus has not moved of it takes no time any more."""
        self._happen()
        if ticket not in self._open:
            return
        direction, trip = self._open[ticket]
        trip.is_cancelled = True
        trip.duration_ns = 0
        self._cancelled.add(ticket)
        self._inner.cancel(ticket)
        if self._lines[direction][0] is trip:
            self._head_ends_ns[direction] = self.clock.now

    def wait(self, ticket: int) -> None:
        """See TransferEngine.wait."""
        self._happen()
        if ticket not in self._open:
            self._inner.wait(ticket)  # which knows it, or raises
        while ticket in self._open:
            self._happen_next()

    def drain(self) -> None:
        """See TransferEngine.drain."""
        self._happen()
        while self._open:
            self._happen_next()

    def close(self) -> None:
        """See TransferEngine.close; takes no virtual time."""
        self._inner.close()
        for direction, line in self._lines.items():
            while line:
                self._end_head(direction)

    def _happen(self) -> None:
        """Let everything end that is due."""
        for direction, line in self._lines.items():
            while line and self._head_ends_ns[direction] <= self.clock.now:
                self._end_head(direction)

    def _happen_next(self) -> None:
        next_ns = self.next_event_ns
        assert next_ns is not None, "a transfer is open, but nothing will happen"
        self.clock.advance(max(0, next_ns - self.clock.now))
        self._happen()

    def _end_head(self, direction: EffectKind) -> None:
        line = self._lines[direction]
        trip = line.popleft()
        del self._open[trip.ticket]
        self._ended.append(trip)
        self.ended_count += 1
        if line:
            self._head_ends_ns[direction] += line[0].duration_ns

    def _completion(self, trip: _Trip) -> Completion:
        self._listen()
        if trip.ticket not in self._told:
            self._inner.wait(trip.ticket)
            self._listen()
        completion = self._told.pop(trip.ticket)
        if trip.is_cancelled and completion.error is None:
            return Completion(ticket=trip.ticket, error="cancelled")
        return completion

    def _listen(self) -> None:
        self._told.update((completion.ticket, completion) for completion in self._inner.poll())


class PacedJobs:
    """Jobs in virtual time; see Jobs.

    Args:
        clock: shared with the server; `wait` advances it.
        storage: says what a step's calls have moved.
        cost: rate and latency of a call.

    Attributes:
        spent_ns: real nanoseconds in steps, which a server would spend on other threads.
    """

    def __init__(self, clock: VirtualClock, storage: MeteredStorage, cost: StorageCost) -> None:
        self.spent_ns = 0
        self._clock = clock
        self._storage = storage
        self._cost = cost
        self._running: list[tuple[int, int, Job]] = []  # a heap of (due, number of the step, job)
        self._steps = 0
        self._free_ns = 0  # when the bytes of all calls so far have passed
        self._ended: list[Job] = []
        self._is_closed = False

    @property
    def next_event_ns(self) -> int | None:
        """When the next step is due on the clock; None if no job runs."""
        return self._running[0][0] if self._running else None

    def start(self, steps: Steps) -> Job:
        """See Jobs.start."""
        job = Job(steps)
        if self._is_closed:
            job.error = "closed"
            self._ended.append(job)
        else:
            self._go_on(job, self._clock.now)
        return job

    def ended(self) -> list[Job]:
        """See Jobs.ended; does all steps that are due."""
        while self._running and self._running[0][0] <= self._clock.now:
            self._step()
        found, self._ended = self._ended, []
        return found

    def wait(self) -> None:
        """See Jobs.wait."""
        while self._running:
            self._clock.advance(max(0, self._running[0][0] - self._clock.now))
            self._step()

    def close(self) -> None:
        """See Jobs.close."""
        self._is_closed = True
        for _, _, job in sorted(self._running, key=lambda item: item[:2]):
            job.error = "closed"
            self._ended.append(job)
        self._running.clear()

    def _go_on(self, job: Job, due_ns: int) -> None:
        self._steps += 1
        heappush(self._running, (due_ns, self._steps, job))

    def _step(self) -> None:
        due_ns, _, job = heappop(self._running)
        self._storage.take()
        start_ns = perf_counter_ns()
        try:
            pause_s = next(job.steps)
        except StopIteration:
            self._ended.append(job)
            return
        except Exception as failure:  # as at a thread's edge: the caller's poll sees it
            job.error = words_of(failure)
            self._ended.append(job)
            return
        finally:
            self.spent_ns += perf_counter_ns() - start_ns
        calls, moved_bytes = self._storage.take()
        if moved_bytes:
            self._free_ns = max(self._free_ns, due_ns) + round(moved_bytes / self._cost.bytes_per_s * NS_PER_S)
            due_ns = self._free_ns
        self._go_on(job, due_ns + round((calls * self._cost.latency_s + pause_s) * NS_PER_S))


LONGEST_CALL_S = 60.0
PAUSE_S = 0.0002
OWN_NARROW = 1 << 31
SETTLE_S = 0.02
"""What was stored is found a few real milliseconds after the store has ended; a lookup waits for that."""


class PacedLinker:
    """A PrefixLinker before another one.

    Args:
        inner: does all the work, and is closed with this one.
        clock: of the replay.
        cost: rate and latency.
        page_bytes: true size of a page, by pool.

    Attributes:
        retrieved_bytes, stored_bytes: what transfers that succeeded would have moved, had the pages their true sizes.

    `found` and `progress` raise LinkError for a call that does not end within a real minute.
    """

    def __init__(
        self, inner: PrefixLinker, clock: VirtualClock, cost: StorageCost, page_bytes: Mapping[str, int], page_tokens: int
    ) -> None:
        self.retrieved_bytes = 0
        self.stored_bytes = 0
        self._inner = inner
        self._clock = clock
        self._cost = cost
        self._page_bytes = page_bytes
        self._page_tokens = page_tokens
        self._lookups: dict[str, _Due] = {}
        self._transfers: dict[str, _Due] = {}
        self._free_ns = {"retrieve": 0, "store": 0}  # when the bytes of all transfers so far have passed
        self._settled_s = 0.0

    @property
    def chunk_tokens(self) -> int:
        """See PrefixLinker.chunk_tokens."""
        return self._inner.chunk_tokens

    @property
    def is_healthy(self) -> bool:
        """See PrefixLinker.is_healthy."""
        return self._inner.is_healthy

    @property
    def next_event_ns(self) -> int | None:
        """When the next call is due on the clock; None if none is under way."""
        return min((due.at_ns for due in (*self._lookups.values(), *self._transfers.values())), default=None)

    @property
    def transfers(self) -> int:
        """How many are under way, whose pages nobody can have."""
        return len(self._transfers)

    def lookup(self, request: str, tokens: NDArray[np.int64], salt: str) -> None:
        """See PrefixLinker.lookup."""
        due_ns = self._clock.now + round(self._cost.latency_s * NS_PER_S)
        self._lookups[request] = _Due(due_ns, lambda: self._inner.lookup(request, narrowed(tokens), salt))

    def found(self, request: str) -> int | None:
        """See PrefixLinker.found."""
        due = self._lookups.get(request)
        if due is None:
            return self._inner.found(request)
        if self._clock.now < due.at_ns:
            return None
        del self._lookups[request]
        time.sleep(max(0.0, self._settled_s - time.monotonic()))
        self._make(due.call, lambda: self._inner.found(request) is None)
        return self._inner.found(request)

    def retrieve(self, request: str, span: Span) -> None:
        """See PrefixLinker.retrieve."""
        pages_before = (span.begin - span.first_token(self.chunk_tokens)) // self._page_tokens
        size_bytes = self._size_bytes(span, pages_before)
        self._begin("retrieve", request, lambda: self._inner.retrieve(request, _narrow(span)), size_bytes)

    def store(self, name: str, span: Span) -> None:
        """See PrefixLinker.store."""
        self._begin("store", name, lambda: self._inner.store(name, _narrow(span)), self._size_bytes(span, 0))

    def progress(self, name: str) -> Progress:
        """See PrefixLinker.progress."""
        due = self._transfers.get(name)
        if due is None:
            return self._inner.progress(name)
        if self._clock.now < due.at_ns:
            return Progress.RUNNING
        del self._transfers[name]
        self._make(due.call, lambda: self._inner.progress(name) is Progress.RUNNING)
        progress = self._inner.progress(name)
        if progress is Progress.DONE and due.kind == "store":
            self.stored_bytes += due.size_bytes
            self._settled_s = time.monotonic() + SETTLE_S
        elif progress is Progress.DONE:
            self.retrieved_bytes += due.size_bytes
        return progress

    def release(self, name: str) -> None:
        """See PrefixLinker.release."""
        if name in self._transfers:
            raise LinkError(f"the transfer of {name!r} runs, so it cannot be released")
        self._lookups.pop(name, None)
        self._inner.release(name)

    def close(self) -> None:
        """See PrefixLinker.close; what is not due yet is never done."""
        self._lookups.clear()
        self._transfers.clear()
        self._inner.close()

    def _begin(self, kind: str, name: str, call: Callable[[], None], size_bytes: int) -> None:
        self._free_ns[kind] = max(self._free_ns[kind], self._clock.now) + round(size_bytes / self._cost.bytes_per_s * NS_PER_S)
        self._transfers[name] = _Due(self._free_ns[kind] + round(self._cost.latency_s * NS_PER_S), call, kind, size_bytes)

    def _make(self, call: Callable[[], None], runs: Callable[[], bool]) -> None:
        """Make a call that is due, and wait for its end."""
        start_ns = time.perf_counter_ns()
        call()
        while runs():
            if time.perf_counter_ns() - start_ns > LONGEST_CALL_S * NS_PER_S:
                raise LinkError(f"a call did not end within {LONGEST_CALL_S:g} s; is the peer frozen?")
            time.sleep(PAUSE_S)

    def _size_bytes(self, span: Span, pages_before: int) -> int:
        return sum((ids.size - pages_before) * self._page_bytes[name] for name, ids in span.pages.items())


def narrowed(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tokens of a replay as numbers of 32 bits, as a model's are: those that are one request's own come behind the others.

    >>> narrowed(np.array([5, OWN_TOKENS + 2])).tolist()
    [5, 2147483650]
    """
    return np.where(tokens >= OWN_TOKENS, tokens - OWN_TOKENS + OWN_NARROW, tokens)


def _narrow(span: Span) -> Span:
    return replace(span, tokens=narrowed(span.tokens))


@dataclass(slots=True)
class _Due:
    """A call and when it is due. Of a lookup there is no kind."""

    at_ns: int
    call: Callable[[], None]
    kind: str = ""
    size_bytes: int = 0
