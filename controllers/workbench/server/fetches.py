"""What is brought for requests that have arrived and are not in the queue yet: by nobody, by a store, by a linker.

Times are in steps of the server's clock. `Fetches` keeps who waits and until when; where something is behind the cache, a
subclass says what is asked, and when the answer is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.server.step_clock import earliest
from unified_tree.declare.keys import Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.prefix_linker import LinkedPrefixes
    from unified_tree.controllers.storage_tier import StorageTier
    from unified_tree.controllers.workbench.server.paced_transfers import PacedJobs, PacedLinker
    from unified_tree.controllers.workbench.server.page_store import MeteredStorage
    from unified_tree.controllers.workbench.server.step_clock import StepClock
    from unified_tree.controllers.workbench.server.timed_cache import ServedRequest, TimedCache


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLink:
    """A linker over a row's device pages.

    Attributes:
        linker: closed with the link.
        to: makes the link of the row's cache. Raises ConfigurationError for a cache that cannot be linked.
        wait_s: how long a request waits for it at most.
    """

    linker: PacedLinker
    to: Callable[[PrefixCache], LinkedPrefixes]
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStorage:
    """A storage tier, and what paces it.

    Attributes:
        tier: for the row's cache, which closes it.
        meter: what the calls have moved.
        reading, writing: jobs on the replay's clock.
    """

    tier: StorageTier
    meter: MeteredStorage
    reading: PacedJobs
    writing: PacedJobs

    @property
    def next_event_ns(self) -> int | None:
        """When the next job has something to do; None if there is none."""
        return min((ns for jobs in (self.reading, self.writing) if (ns := jobs.next_event_ns) is not None), default=None)


class Fetches:
    """Requests that wait between their arrival and the queue; without a store or a linker nobody does."""

    is_on = False
    """Whether there is a store or a linker."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._waiting: list[tuple[float, ServedRequest]] = []  # (when it stops waiting in seconds, request), by arrival

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, entry: ServedRequest) -> bool:
        """A request has arrived. Whether it waits here."""
        patience_s = self._ask(entry)
        if patience_s is None:
            return False
        self._waiting.append((self._clock.virtual_s + patience_s, entry))
        return True

    def take_ready(self) -> list[ServedRequest]:
        """Those that need not wait any more, by arrival. To be asked after every poll."""
        ready = [entry for _, entry in self._waiting if self._is_ready(entry)]
        if ready:
            self._waiting = [waiting for waiting in self._waiting if waiting[1] not in ready]
        return ready

    @property
    def next_step(self) -> int | None:
        """The step at which the store or linker goes on, or somebody stops waiting; None if neither."""
        deadline_s = min((deadline_s for deadline_s, _ in self._waiting), default=inf)
        deadline = max(self._clock.step + 1, self._step_ready(deadline_s)) if isfinite(deadline_s) else None
        return earliest(self._clock.step_at(self._next_event_ns), deadline)

    @property
    def next_transfer(self) -> int | None:
        """The step at which something may end that has taken device pages; None if there is no such thing."""
        return None

    def poll(self) -> bool:
        """Bring what the cache's own poll does not up to the virtual clock. Whether a transfer of device pages has ended."""
        return False

    def checkpoints(self, entry: ServedRequest) -> tuple[int, ...]:
        """Where windows and states should be saved beside the usual places."""
        del entry
        return ()

    def fetched_tokens(self, entry: ServedRequest) -> int:
        """By how many tokens the cache's prefix became longer for this request."""
        del entry
        return 0

    def committed(self, entry: ServedRequest, lease: Lease) -> None:
        """Something was computed and published."""

    def release(self, entry: ServedRequest) -> None:
        """A request is over."""

    def finish(self) -> None:
        """Let all end that a server waits for which stops in good order."""

    def _ask(self, entry: ServedRequest) -> float | None:
        """Ask for what there is of a prompt: how many seconds to wait for it at most; None for not at all."""
        del entry
        return None

    def _is_ready(self, entry: ServedRequest) -> bool:
        """Whether a request that waits need not any more."""
        raise AssertionError(f"{entry} waits for nobody")

    @property
    def _next_event_ns(self) -> int | None:
        """When the store or linker goes on; None if it has nothing to do."""
        return None

    def _step_ready(self, deadline_s: float) -> int:
        """The first step at which a request with this deadline is ready."""
        return self._clock.step_reaching(deadline_s)


class StoreFetches(Fetches):
    """Prefetches from a store to host. The cache's own `poll` and `drain` bring them on, and it persists what was published.

    Args:
        cache: asked for prefetches.
        storage: behind it.
    """

    is_on = True

    def __init__(self, clock: StepClock, cache: TimedCache, storage: RowStorage) -> None:
        super().__init__(clock)
        self._cache = cache
        self._storage = storage

    def fetched_tokens(self, entry: ServedRequest) -> int:
        """See Fetches; the prefix on host."""
        return self._cache.cache.prefetched_tokens(entry.request.index)

    def release(self, entry: ServedRequest) -> None:
        """See Fetches; what was prefetched and never acquired is freed."""
        self._cache.cache.cancel(entry.request.index)

    def _ask(self, entry: ServedRequest) -> float | None:
        return self._storage.tier.prefetch.patience_s(entry.target) if self._cache.prefetch(entry) else None

    def _is_ready(self, entry: ServedRequest) -> bool:
        return self._cache.prefetched(entry)

    @property
    def _next_event_ns(self) -> int | None:
        return self._storage.next_event_ns


class LinkFetches(Fetches):
    """Lookups and retrieves of a linker, straight to the device; what has been computed is offered to it.

    Args:
        link: of the server's cache.
        row: what it was made of.
    """

    is_on = True

    def __init__(self, clock: StepClock, link: LinkedPrefixes, row: RowLink) -> None:
        super().__init__(clock)
        self._link = link
        self._row = row

    @property
    def next_transfer(self) -> int | None:
        """See Fetches."""
        return self._clock.step_at(self._next_event_ns) if self._row.linker.transfers else None

    def poll(self) -> bool:
        """See Fetches."""
        transfers = self._row.linker.transfers
        self._link.poll()
        return self._row.linker.transfers < transfers

    def checkpoints(self, entry: ServedRequest) -> tuple[int, ...]:
        """See Fetches; where the linker can store."""
        shared = entry.request.shared_tokens
        wanted = {*self._link.checkpoints(shared), *self._link.checkpoints(entry.target)}
        if wanted and not shared:
            wanted.add(entry.target)  # which is the usual place without any
        return tuple(sorted(wanted))

    def fetched_tokens(self, entry: ServedRequest) -> int:
        """See Fetches; the prefix on device."""
        return self._link.retrieved_tokens(entry.request.index)

    def committed(self, entry: ServedRequest, lease: Lease) -> None:
        """See Fetches; it is offered."""
        self._link.store(entry.request.index, lease)

    def release(self, entry: ServedRequest) -> None:
        """See Fetches."""
        self._link.release(entry.request.index)

    def finish(self) -> None:
        """See Fetches: all stores."""
        virtual = self._clock.virtual
        while (due_ns := self._next_event_ns) is not None:
            virtual.advance(max(0, due_ns - virtual.now))
            self._link.poll()

    def _ask(self, entry: ServedRequest) -> float | None:
        index = entry.request.index
        self._link.lookup(index, Key(entry.prompt(), entry.request.namespace))
        return None if self._link.is_ready(index) else self._row.wait_s

    def _is_ready(self, entry: ServedRequest) -> bool:
        return self._link.is_ready(entry.request.index)

    @property
    def _next_event_ns(self) -> int | None:
        return self._row.linker.next_event_ns

    def _step_ready(self, deadline_s: float) -> int:
        return self._clock.step_past(deadline_s)
