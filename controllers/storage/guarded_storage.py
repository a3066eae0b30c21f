"""The guard of every engine: the part of the contract that is common to all.

An engine has two halves. The guard finds pools by name, refuses invalid batches, refuses calls after `close`, makes `close`
wait for running calls, and counts the outcome of every page. For an unreachable store it answers that no key exists, that reads
are MISSING and writes DROPPED. The other half is what a subclass writes: `_exists`, `_get`, `_put`, `_remove` and `_clear`, and
if needed `_register`, `_close`, `_admits` and `_is_degraded`. These are called with a known pool and a checked batch that is
not empty, by several threads at once, and never after `_close`.

The guard is a base class and not a wrapper, so that no unguarded engine can be passed to a cache by mistake. It is separate
from `CheckedStorage`: the guard enforces an engine's contract for any caller, and CheckedStorage protects the cache from any
engine, including those of other packages and faulty ones in tests.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.storage.engine_settings import SECONDS, check_number
from unified_tree.controllers.storage.rate_limited_log import RateLimitedLog
from unified_tree.controllers.storage.storage_engine import (
    Capabilities,
    Outcome,
    StorageCounters,
    StorageStats,
    StoredPool,
    pools_by_name,
)
from unified_tree.terms.errors import StorageError


class GuardedStorage(ABC):
    """A StorageEngine whose subclass only moves pages.

    While `_admits` returns False, no key exists, reads are MISSING and writes DROPPED. `stats` has what `_is_degraded` and
    `_freed_bytes` return.

    Args:
        name: of the engine, in messages.
        pools: what it keeps.

    Raises ConfigurationError for two pools of one name or format, and for none at all.
    """

    def __init__(self, name: str, pools: Iterable[StoredPool]) -> None:
        self._name = name
        self._pools = pools_by_name(pools)
        self._counters = StorageCounters({pool.name: pool.value_bytes for pool in self._pools.values()})
        self._gate = CallGate(name)
        self._log = RateLimitedLog()
        self._of_thread = threading.local()

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""

    def register(self, buffers: Sequence[memoryview]) -> None:
        """See StorageEngine.register."""
        with self._gate:
            self._register(buffers)

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """See StorageEngine.exists."""
        with self._gate:
            self._known(pool).check_keys(keys)
            found = np.zeros(len(keys), np.bool_)
            unanswered: NDArray[np.bool_] | None = None
            if keys and self._admits():
                answers = self._exists(pool, keys)
                found[:] = answers
                if not isinstance(answers, np.ndarray) and None in answers:
                    unanswered = np.fromiter((answer is None for answer in answers), np.bool_, len(keys))
            elif keys:
                unanswered = ~found
            self._of_thread.unanswered = unanswered
            self._counters.queried(pool, len(keys), int(found.sum()))
            return found

    def take_unanswered(self) -> NDArray[np.bool_] | None:
        """See AnsweringEngine.take_unanswered."""
        unanswered: NDArray[np.bool_] | None = getattr(self._of_thread, "unanswered", None)
        self._of_thread.unanswered = None
        return unanswered

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.get."""
        return self._guarded_get(pool, keys, pages, partial(self._get, pool, keys, pages))

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.put."""
        return self._guarded_put(pool, keys, pages, partial(self._put, pool, keys, pages))

    def remove(self, pool: str, keys: Sequence[bytes]) -> None:
        """See StorageEngine.remove."""
        with self._gate:
            self._known(pool).check_keys(keys)
            if keys:
                self._remove(pool, keys)

    def clear(self) -> None:
        """See StorageEngine.clear."""
        with self._gate:
            self._clear()

    def stats(self) -> StorageStats:
        """See StorageEngine.stats."""
        return self._counters.snapshot(is_degraded=self._is_degraded(), freed_bytes=self._freed_bytes())

    def close(self) -> None:
        """See StorageEngine.close."""
        if self._gate.close():
            self._close()

    @abstractmethod
    def _exists(self, pool: str, keys: Sequence[bytes]) -> Sequence[bool | None] | NDArray[np.bool_]:
        """Which keys are stored; None for one of which the store did not say."""

    @abstractmethod
    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """Read into the pages, which are writable and of the pool's size: DONE, MISSING or FAILED for each."""

    @abstractmethod
    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """Store the pages: DONE, PRESENT, DROPPED or FAILED for each."""

    @abstractmethod
    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        """Remove these values. Raises StorageError if the store cannot, or is unreachable."""

    @abstractmethod
    def _clear(self) -> None:
        """Remove every value of all pools. Raises as `_remove`."""

    def _register(self, buffers: Sequence[memoryview]) -> None:  # noqa: B027, most take any memory
        """Register memory; an engine that needs no registration ignores it."""

    def _close(self) -> None:  # noqa: B027, some have nothing to free
        """Free all resources. Called once, when no other call is running."""

    def _admits(self) -> bool:
        """Whether the store may be called now; if not, everything is a miss."""
        return True

    def _is_degraded(self) -> bool:
        """Whether the store cannot be used at present."""
        return False

    def _freed_bytes(self) -> int:
        """See StorageStats."""
        return 0

    def _guarded_get(
        self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview], get: Callable[[], list[Outcome]]
    ) -> list[Outcome]:
        """`get` with another read function, inside the guard; for a subclass that has a second way to read."""
        with self._gate:
            self._known(pool).check_batch(keys, pages, writable=True)
            outcomes = get() if keys and self._admits() else [Outcome.MISSING] * len(keys)
            self._counters.got(pool, outcomes)
            self._note(pool, "read", outcomes)
            return outcomes

    def _guarded_put(
        self,
        pool: str,
        keys: Sequence[bytes],
        pages: Sequence[memoryview],
        put: Callable[[], list[Outcome]],
        *,
        writable: bool = False,
    ) -> list[Outcome]:
        """`put` with another write function, inside the guard; for a subclass that has a second way to write."""
        with self._gate:
            self._known(pool).check_batch(keys, pages, writable=writable)
            outcomes = put() if keys and self._admits() else [Outcome.DROPPED] * len(keys)
            self._counters.put(pool, outcomes)
            self._note(pool, "written", outcomes)
            return outcomes

    def _note(self, pool: str, done: str, outcomes: list[Outcome]) -> None:
        for lost in (Outcome.DROPPED, Outcome.FAILED):
            if lost in outcomes:
                message = "%s storage: %d of %d pages of pool %r were not %s: %s"
                self._log.info(
                    (pool, done, lost), message, self._name, outcomes.count(lost), len(outcomes), pool, done, lost.value
                )

    def _known(self, pool: str) -> StoredPool:
        try:
            return self._pools[pool]
        except KeyError:
            raise StorageError(f"{pool!r} is none of the pools of this engine: {', '.join(self._pools)}") from None


class CallGate:
    """`with gate:` around every call of an engine. Cost: under a microsecond a call."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._changed = threading.Condition()
        self._calls = 0
        self._is_closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self._is_closed:
                raise StorageError(f"the {self._engine} storage was closed")
            self._calls += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._changed:
            self._calls -= 1
            if not self._calls:
                self._changed.notify_all()

    def close(self) -> bool:
        """Refuse new calls and wait for running ones; whether this was the first close."""
        with self._changed:
            first, self._is_closed = not self._is_closed, True
            while self._calls:
                self._changed.wait()
            return first


class CircuitBreaker:
    """Lets calls through to a store until one fails; then one call per pause, until one succeeds.

    Every admitted call must report its outcome. One that does not, because it raised another error, costs a pause.

    Args:
        pause_s: between two tries of an unreachable store.
        is_reachable: whether the client believes to be connected, without a call of the store; must be quick.
        clock: seconds; replaceable for tests.
        store: its name in the log.

    Raises ConfigurationError for an invalid pause.
    """

    def __init__(
        self,
        pause_s: float,
        is_reachable: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        *,
        store: str = "the store",
    ) -> None:
        check_number("pause_s", pause_s, float, SECONDS)
        self._pause_s = pause_s
        self._is_reachable = is_reachable
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at: float | None = None
        self._failures = 0
        self._store = store
        self._log = RateLimitedLog()

    @property
    def is_open(self) -> bool:
        """Whether the store is believed to be unreachable."""
        return self._retry_at is not None

    @property
    def failures(self) -> int:
        """How often the store failed so far; a waiter compares it to detect a failure meanwhile."""
        return self._failures

    def admits(self) -> bool:
        """Whether a call may go to the store now. Cost: microseconds."""
        with self._lock:
            now = self._clock()
            if self._retry_at is not None and now < self._retry_at:
                return False
            if self._retry_at is None and self._is_reachable():
                return True
            self._open(now)
            return self._is_reachable()

    def succeeded(self) -> None:
        """The store answered."""
        with self._lock:
            if self._retry_at is not None:
                self._log.info("answers", "%s answers again", self._store)
            self._retry_at = None

    def failed(self) -> None:
        """The store did not answer, or refused the connection."""
        with self._lock:
            self._failures += 1
            self._open(self._clock())

    def _open(self, now: float) -> None:
        if self._retry_at is None:
            message = "%s does not answer: all its pages are misses until it does; it is asked again every %g s"
            self._log.warning("away", message, self._store, self._pause_s)
        self._retry_at = now + self._pause_s
