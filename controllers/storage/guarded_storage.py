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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.storage.call_gate import CallGate
from unified_tree.controllers.storage.rate_limited_log import RateLimitedLog
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome
from unified_tree.controllers.storage.storage_stats import StorageCounters, StorageStats
from unified_tree.controllers.storage.stored_pool import StoredPool, pools_by_name
from unified_tree.terms.errors import StorageError


class GuardedStorage(ABC):
    """A StorageEngine whose subclass only moves pages.

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
