"""The only path from a store into the cache: every page is sealed before it is put and verified before it is used.

It is also the only place that sees the faults of every engine. It counts them, logs them, and remembers for a while which pages
were listed and not given, so that no request asks for them meanwhile.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.counters.latency import LatencyStats
from unified_tree.controllers.counters.latency_counter import LatencyCounter
from unified_tree.controllers.storage.checksums import xxh3_128_digest
from unified_tree.controllers.storage.page_seal import is_intact, seal
from unified_tree.controllers.storage.rate_limited_log import RateLimitedLog
from unified_tree.controllers.storage.storage_engine import AnsweringEngine, Outcome, SealingEngine
from unified_tree.terms.errors import StorageError

if TYPE_CHECKING:
    from unified_tree.controllers.storage.storage_engine import StorageEngine


class StoreFault(Enum):
    """A kind of fault, as statistics and metrics name it. All but the last count pages."""

    UNANSWERED = "unanswered"
    """The store did not say whether it has them: it was not reachable, or failed the look-up."""
    NOT_GIVEN = "not_given"
    """The store listed them and then did not have them."""
    READ_FAILED = "read_failed"
    """The store failed to read them."""
    CORRUPT = "corrupt"
    """The store gave something else than what was put; these were removed from it."""
    WRITE_FAILED = "write_failed"
    """The store failed to write them."""
    WRITE_DROPPED = "write_dropped"
    """The store did not take them: it is full, not reachable, or locked by another writer for too long."""
    BROKEN_JOB = "broken_job"
    """A job ended because the engine raised an error that is no StorageError. Counts jobs."""


FAULT_OF_READ = {
    Outcome.MISSING: StoreFault.NOT_GIVEN,
    Outcome.FAILED: StoreFault.READ_FAILED,
    Outcome.CORRUPT: StoreFault.CORRUPT,
}
"""The fault that an outcome of a `get` means, for a page that was looked up before. Other outcomes are no fault."""
FAULT_OF_WRITE = {Outcome.DROPPED: StoreFault.WRITE_DROPPED, Outcome.FAILED: StoreFault.WRITE_FAILED}
"""The fault that an outcome of a `put` means. Other outcomes are no fault."""
_WORDS = {
    StoreFault.UNANSWERED: "did not say whether it has %d pages of pool %r",
    StoreFault.NOT_GIVEN: "listed %d pages of pool %r and then did not have them",
    StoreFault.READ_FAILED: "failed to read %d pages of pool %r",
    StoreFault.CORRUPT: "returned %d pages of pool %r that are not what was put; they are not used, and removed from it",
    StoreFault.WRITE_FAILED: "failed to write %d pages of pool %r",
    StoreFault.WRITE_DROPPED: "did not take %d pages of pool %r: it is full, not reachable, or locked by another writer",
}


class StoreFaults:
    """Counts faults and logs them. Thread-safe. Cost: a lock a fault, and nothing without one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(StoreFault, 0)
        self._log = RateLimitedLog()

    @property
    def counts(self) -> dict[str, int]:
        """How many so far, by kind; every kind is there."""
        with self._lock:
            return {fault.value: count for fault, count in self._counts.items()}

    def count(self, fault: StoreFault, count: int) -> None:
        """Count a fault that the caller logs."""
        with self._lock:
            self._counts[fault] += count

    def note(self, fault: StoreFault, pool: str, page_count: int, why: str | None = None) -> None:
        """Count a fault, and log it unless the same kind of the same pool was logged within the last minute.

        Args:
            fault: any but BROKEN_JOB.
            why: what the engine says.
        """
        self.count(fault, page_count)
        self._log.warning((fault, pool), f"storage {_WORDS[fault]}%s", page_count, pool, "" if why is None else f": {why}")


class Presence(NamedTuple):
    """What a store says of some keys; all of shape [keys].

    Attributes:
        there: the pages that can be asked for.
        listed: the pages that the store says it has; of these it failed lately to give those that are not `there`.
        unanswered: the pages of which it did not say whether it has them.
    """

    there: NDArray[np.bool_]
    listed: NDArray[np.bool_]
    unanswered: NDArray[np.bool_]


class CheckedStorage:
    """Seals and verifies a StorageEngine's pages. An engine that raises counts as a failed call, and the request continues.

    An engine that answers for more or fewer keys than it was asked for has failed, too. One that raises anything but
    StorageError ends the job that called it; that is counted in `errors` as well.

    A page that differs from what was put is CORRUPT, counted, and removed from the store, so that the next put can replace it.
    A page that was not read is not looked up again for a while (`failed`), unless it is written anew, or the store was not
    reachable in between and answers again.

    Args:
        engine: any.
        failed: remembers pages that were not read; None to remember none.

    Attributes:
        engine: the same.
        failed: the same.
        faults: those of the engine so far.
        outages: how often the store answered again after it had answered no look-up.
    """

    def __init__(self, engine: StorageEngine, failed: FailedReads | None = None) -> None:
        xxh3_128_digest(b"")  # raises now, and not at the first page, if xxhash is not installed
        self.engine = engine
        self.failed = FailedReads(1, 0.0, monotonic) if failed is None else failed
        self.faults = StoreFaults()
        self.outages = 0
        self._sealing = engine if isinstance(engine, SealingEngine) else None
        self._answering = engine if isinstance(engine, AnsweringEngine) else None
        self._is_away = False
        self._lock = threading.Lock()
        self._log = RateLimitedLog()
        self._quarantined: dict[str, int] = {}
        self._errors = 0
        self._last_error: str | None = None
        self._latencies: dict[tuple[str, str], LatencyCounter] = {}

    @property
    def is_away(self) -> bool:
        """Whether the store answered for none of the keys of the last look-up."""
        return self._is_away

    @property
    def quarantined(self) -> dict[str, int]:
        """How many corrupt pages were found so far, by pool; a copy."""
        with self._lock:
            return dict(self._quarantined)

    @property
    def errors(self) -> tuple[int, str | None]:
        """How many calls failed as a whole so far, and the last message."""
        with self._lock:
            return self._errors, self._last_error

    @property
    def latencies(self) -> dict[tuple[str, str], LatencyStats]:
        """The latencies of the engine's calls so far, by pool and `exists`, `get` or `put`; a copy."""
        with self._lock:
            return {call: latency.snapshot() for call, latency in self._latencies.items()}

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """Which keys can be asked for, shape [keys]; none if the store fails. See `look_up`."""
        return self.look_up(pool, keys).there

    def look_up(self, pool: str, keys: Sequence[bytes]) -> Presence:
        """What the store says of some keys; nothing if it fails. Cost: the engine's `exists`."""
        try:
            with self._timed(pool, "exists"):
                listed, unanswered = self._answers(pool, keys)
            why = None
        except StorageError as error:
            self._failed(str(error))
            listed, unanswered, why = np.zeros(len(keys), np.bool_), np.ones(len(keys), np.bool_), str(error)
        unanswered_count = int(np.count_nonzero(unanswered))
        if unanswered_count:
            self.faults.note(StoreFault.UNANSWERED, pool, unanswered_count, why)
        if keys:
            self._note_answer(is_away=unanswered_count == len(keys))
        failed = self.failed.among(pool, keys)
        return Presence(listed if failed is None else listed & ~failed, listed, unanswered)

    def _answers(self, pool: str, keys: Sequence[bytes]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which keys are stored, and of which that is not known."""
        found = np.asarray(self.engine.exists(pool, keys), np.bool_)
        if found.shape != (len(keys),):
            raise StorageError(f"{pool}: asked for {len(keys)} keys, the engine answered for {found.size}")
        unanswered = None
        if self._answering is not None:
            unanswered = self._answering.take_unanswered()
        elif not found.all() and self.engine.stats().is_degraded:
            unanswered = ~found
        return found, np.zeros(len(keys), np.bool_) if unanswered is None else unanswered

    def _note_answer(self, *, is_away: bool) -> None:
        """Whether the store is there; when it is back, what it failed to give before may be given now."""
        if is_away == self._is_away:
            return
        with self._lock:
            was_away, self._is_away = self._is_away, is_away
            if not was_away or is_away:
                return
            self.outages += 1
        self.failed.clear()
        self._log.info("back", "storage answers again; what it failed to give before is asked for again")

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """Read pages with their trailers (`HostPool.page_memory`): DONE, MISSING, FAILED or CORRUPT for each.

        Only a page that is DONE may be used. Cost: the engine's, and one pass over each page.
        """
        try:
            with self._timed(pool, "get"):
                outcomes = self._answered(pool, keys, self._verified(pool, keys, pages))
            why = None
        except StorageError as error:
            self._failed(str(error))
            outcomes, why = [Outcome.FAILED] * len(keys), str(error)
        if outcomes.count(Outcome.DONE) < len(outcomes):
            self._note_unread(pool, keys, outcomes, why)
        return outcomes

    def _note_unread(self, pool: str, keys: Sequence[bytes], outcomes: list[Outcome], why: str | None) -> None:
        """Some pages were listed, and were not read."""
        self.failed.add(pool, [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is not Outcome.DONE])
        for outcome, fault in FAULT_OF_READ.items():
            if outcome in outcomes:
                self.faults.note(fault, pool, outcomes.count(outcome), why)
        if Outcome.CORRUPT in outcomes:
            self._quarantine(pool, [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is Outcome.CORRUPT])

    def _verified(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        if self._sealing is not None:
            return self._sealing.get_verified(pool, keys, pages, is_intact)
        outcomes = self.engine.get(pool, keys, pages)
        for index, outcome in enumerate(outcomes):
            if outcome is Outcome.DONE and not is_intact(pages[index], keys[index]):
                outcomes[index] = Outcome.CORRUPT
        return outcomes

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """Write the trailers of pages that are not stored yet, and store them: DONE, PRESENT, DROPPED or FAILED for each."""
        try:
            with self._timed(pool, "put"):
                outcomes = self._answered(pool, keys, self._sealed(pool, keys, pages))
            why = None
        except StorageError as error:
            self._failed(str(error))
            outcomes, why = [Outcome.FAILED] * len(keys), str(error)
        for outcome, fault in FAULT_OF_WRITE.items():
            if outcome in outcomes:
                self.faults.note(fault, pool, outcomes.count(outcome), why)
        self.failed.discard(pool, (key for key, outcome in zip(keys, outcomes, strict=True) if outcome is Outcome.DONE))
        return outcomes

    def _sealed(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        if self._sealing is not None:
            return self._sealing.put_sealed(pool, keys, pages, seal)
        for key, page in zip(keys, pages, strict=True):
            seal(page, key)
        return self.engine.put(pool, keys, pages)

    @staticmethod
    def _answered(pool: str, keys: Sequence[bytes], outcomes: list[Outcome]) -> list[Outcome]:
        if len(outcomes) != len(keys):
            raise StorageError(f"{pool}: given {len(keys)} keys, the engine answered for {len(outcomes)}")
        return outcomes

    def broke_off(self, problem: str) -> None:
        """Count a job that ended by another error than StorageError, wherever it came from. The caller logs it."""
        self._count_error(problem)
        self.faults.count(StoreFault.BROKEN_JOB, 1)

    def _count_error(self, problem: str) -> None:
        with self._lock:
            self._errors += 1
            self._last_error = problem

    def _failed(self, problem: str) -> None:
        self._count_error(problem)
        self._log.warning("failed", "storage failed, and the request goes on without it: %s", problem)

    @contextmanager
    def _timed(self, pool: str, call: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            took = perf_counter() - start
            with self._lock:
                latency = self._latencies.get((pool, call))
                if latency is None:
                    latency = self._latencies[pool, call] = LatencyCounter()
                latency.add(took)

    def _quarantine(self, pool: str, keys: list[bytes]) -> None:
        with self._lock:
            self._quarantined[pool] = self._quarantined.get(pool, 0) + len(keys)
        try:
            self.engine.remove(pool, keys)
        except StorageError as error:
            self._failed(str(error))


class FailedReads:
    """A bounded set of pages that are not to be asked for. Thread-safe.

    Args:
        capacity: pages; the ones that failed longest ago leave first.
        keep_s: how long a page stays in it; 0 keeps none.
        clock: seconds.
    """

    def __init__(self, capacity: int, keep_s: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._keep_s = keep_s
        self._clock = clock
        self._lock = threading.Lock()
        self._until_s: OrderedDict[tuple[str, bytes], float] = OrderedDict()
        self._skipped = 0

    def __len__(self) -> int:
        with self._lock:
            self._expire()
            return len(self._until_s)

    @property
    def skipped(self) -> int:
        """How often a look-up found a page in it so far."""
        return self._skipped

    def add(self, pool: str, keys: Sequence[bytes]) -> None:
        """Remember pages that were not given; of too many the first ones, where a prefix ends. Cost: O(keys)."""
        if not self._keep_s:
            return
        with self._lock:
            until_s = self._clock() + self._keep_s
            for key in reversed(keys):
                self._until_s[pool, key] = until_s
                self._until_s.move_to_end((pool, key))
            while len(self._until_s) > self._capacity:
                self._until_s.popitem(last=False)

    def among(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_] | None:
        """Which of these pages failed lately, shape [keys]; None if none did. Cost: O(1) while nothing is remembered."""
        if not self._until_s:
            return None
        with self._lock:
            self._expire()
            failed = np.fromiter(((pool, key) in self._until_s for key in keys), np.bool_, len(keys))
            count = int(np.count_nonzero(failed))
            self._skipped += count
        return failed if count else None

    def discard(self, pool: str, keys: Iterable[bytes]) -> None:
        """Forget pages that were written anew. Cost: O(1) while nothing is remembered."""
        if self._until_s:
            with self._lock:
                for key in keys:
                    self._until_s.pop((pool, key), None)

    def clear(self) -> None:
        """Forget all: the store that failed to give them is another one now, or works again."""
        with self._lock:
            self._until_s.clear()

    def _expire(self) -> None:
        now = self._clock()
        while self._until_s and next(iter(self._until_s.values())) <= now:
            self._until_s.popitem(last=False)
