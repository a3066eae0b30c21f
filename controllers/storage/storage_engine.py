"""The protocol between the cache and a store of pages: a file system, a distributed store, or nothing.

A value is one host page and its trailer, of the pool's fixed size; a key is 32 bytes, uniformly distributed. The cache does not
trust a store: `CheckedStorage` verifies every page before it can be used. So an engine must report its own failures, but needs
no checksums.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from unified_tree.controllers.pools.host_layout import HostLayout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


KEY_BYTES = 32
"""Of every key."""
PAGE_CONTIGUOUS = frozenset(layout for layout in HostLayout if layout.is_page_contiguous)
"""The layouts in which a page is one piece of memory."""


class Outcome(Enum):
    """The outcome of one page of a batch."""

    DONE = "done"
    """Read or stored."""
    PRESENT = "present"
    """A put found the key there; the old value stays."""
    MISSING = "missing"
    """A get found nothing."""
    DROPPED = "dropped"
    """The store had no room, or somebody else is writing there; it may take the page another time."""
    FAILED = "failed"
    """The store failed; whether the value is there is not known."""
    CORRUPT = "corrupt"
    """Something was read that is not what was put under this key. Only `CheckedStorage` can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do.

    Attributes:
        zero_copy: pages go between the store and host memory without another copy in this process.
        layouts: of the host pools whose pages it takes.
        largest_value_bytes: a page and its trailer may not be larger; None for no limit.
        shared_between_hosts: whether servers on other machines find what is stored here.
        survives_restart: whether stored pages are found after this process has ended.
    """

    zero_copy: bool
    layouts: frozenset[HostLayout] = PAGE_CONTIGUOUS
    largest_value_bytes: int | None = None
    shared_between_hosts: bool = False
    survives_restart: bool = False


class StorageEngine(Protocol):
    """Keeps pages under keys, a pool at a time.

    The caller guarantees: keys are 32 bytes and distinct within a batch; pages are contiguous and exactly as long as the pool's
    values, writable for `get`, and used by nothing else until the call returns. The engine guarantees: after DONE from `get`
    the page was read completely, after any other outcome its bytes are undefined; it may evict any value at any time; a failing
    store gives outcomes, or a StorageError for the whole batch, and never hangs beyond the engine's own time limit. Calls may
    come from several threads at once. Every call after `close` raises StorageError, but for `close` and `stats`.

    All raise StorageError for a pool that was not given when the engine was created, and PageError for any other batch.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do; constant."""
        ...

    def register(self, buffers: Sequence[memoryview]) -> None:
        """Register the memory of later calls' pages, for zero copy. Idempotent.

        An engine that needs no registration does nothing. Raises StorageError if the store refuses.
        """
        ...

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """Which keys are stored, shape [keys]. A hint: a value may be evicted, or be corrupt, before it is read."""
        ...

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """Read values into pages: DONE, MISSING or FAILED for each, in the order of the keys."""
        ...

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """Store pages: DONE, PRESENT, DROPPED or FAILED for each. Values are atomic: a reader never gets a partial one."""
        ...

    def remove(self, pool: str, keys: Sequence[bytes]) -> None:
        """Remove values; missing ones are ignored."""
        ...

    def clear(self) -> None:
        """Remove every value of this engine's pools. Values that others put meanwhile may stay."""
        ...

    def stats(self) -> StorageStats:
        """Statistics since the engine was created, for each of its pools. Cost: O(pools)."""
        ...

    def close(self) -> None:
        """Wait for running calls, free all resources, and refuse new calls. Idempotent."""
        ...


@runtime_checkable
class SealingEngine(StorageEngine, Protocol):
    """An engine that moves one page after another in this thread, and seals or verifies each on its way. So a page's bytes are
    still in the processor's cache when they are hashed.
    """

    def get_verified(
        self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview], verify: Callable[[memoryview, bytes], bool]
    ) -> list[Outcome]:
        """As `get`, but CORRUPT for a page that was read and for which `verify(page, key)` is False."""
        ...

    def put_sealed(
        self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview], seal: Callable[[memoryview, bytes], None]
    ) -> list[Outcome]:
        """As `put`, but `seal(page, key)` is called before each page is written; not for those PRESENT."""
        ...


@runtime_checkable
class AnsweringEngine(StorageEngine, Protocol):
    """An engine that can tell a key that is not stored from one of which the store did not say so; any GuardedStorage."""

    def take_unanswered(self) -> NDArray[np.bool_] | None:
        """Of the keys of this thread's last `exists` those of which it is not known whether they are stored, shape [keys]; None
        for no such key, and for a second call.
        """
        ...


_OUTCOMES = tuple(Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPoolStats:
    """Of one pool, since the engine was made.

    Attributes:
        queries, present: keys asked for by `exists`, and those that were there.
        gets, puts: pages by outcome; outcomes that did not happen are left out.
        read_bytes, written_bytes: of the pages that were DONE.
    """

    queries: int = 0
    present: int = 0
    gets: Mapping[Outcome, int] = field(default_factory=dict)
    puts: Mapping[Outcome, int] = field(default_factory=dict)
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStats:
    """Attributes:
    pools: counts by pool name.
    is_degraded: the store cannot be used at present, and everything is a miss.
    freed_bytes: of values that the engine gave up to keep its bound when it was opened or grew: those of pools that it was not
        opened for, and of tables of another size. It logs each time.
    """

    pools: Mapping[str, StoredPoolStats]
    is_degraded: bool = False
    freed_bytes: int = 0


class StorageCounters:
    """The counters of an engine. Thread-safe. Cost: about a microsecond a batch."""

    def __init__(self, value_bytes: Mapping[str, int]) -> None:
        self._pools = {name: _PoolCounters(size) for name, size in value_bytes.items()}
        self._lock = threading.Lock()

    def queried(self, pool: str, asked: int, present: int) -> None:
        """Count one `exists`."""
        with self._lock:
            counters = self._pools[pool]
            counters.queries += asked
            counters.present += present

    def got(self, pool: str, outcomes: Sequence[Outcome]) -> None:
        """Count one `get`."""
        with self._lock:
            _add(self._pools[pool].gets, outcomes)

    def put(self, pool: str, outcomes: Sequence[Outcome]) -> None:
        """Count one `put`."""
        with self._lock:
            _add(self._pools[pool].puts, outcomes)

    def snapshot(self, *, is_degraded: bool = False, freed_bytes: int = 0) -> StorageStats:
        """A snapshot."""
        with self._lock:
            return StorageStats(
                pools={name: counters.frozen() for name, counters in self._pools.items()},
                is_degraded=is_degraded,
                freed_bytes=freed_bytes,
            )


class _PoolCounters:
    """Of one pool."""

    def __init__(self, value_bytes: int) -> None:
        self.value_bytes = value_bytes
        self.queries = self.present = 0
        self.gets = [0] * len(_OUTCOMES)
        self.puts = [0] * len(_OUTCOMES)

    def frozen(self) -> StoredPoolStats:
        gets, puts = _named(self.gets), _named(self.puts)
        return StoredPoolStats(
            queries=self.queries,
            present=self.present,
            gets=gets,
            puts=puts,
            read_bytes=gets.get(Outcome.DONE, 0) * self.value_bytes,
            written_bytes=puts.get(Outcome.DONE, 0) * self.value_bytes,
        )


def _add(counts: list[int], outcomes: Sequence[Outcome]) -> None:
    left = len(outcomes)
    for index, outcome in enumerate(_OUTCOMES):
        if not left:
            return
        found = outcomes.count(outcome)
        counts[index] += found
        left -= found


def _named(counts: list[int]) -> dict[Outcome, int]:
    return {outcome: count for outcome, count in zip(_OUTCOMES, counts, strict=True) if count}
