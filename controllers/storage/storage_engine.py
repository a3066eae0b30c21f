"""The protocol between the cache and a store of pages: a file system, a distributed store, or nothing; and what an engine is
told about a pool before the first page.

A value is one host page and its trailer, of the pool's fixed size; a key is 32 bytes, uniformly distributed. The cache does not
trust a store: `CheckedStorage` verifies every page before it can be used. So an engine must report its own failures, but needs
no checksums.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from unified_tree.controllers.pools.host_layout import HostLayout
from unified_tree.inputs.arguments import items
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError, PageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPool:
    """One pool's values.

    Attributes:
        name: the component's name, or another for what is stored beside the components.
        format_digest: 32 bytes, `FormatHeader.digest`; pools of different formats never share a value. `stored_pools` derives
            it from a composition; if you set it by hand, make sure that it is unique to the format.
        value_bytes: of every value: a page and its trailer.
        layout: of its host pages.

    Raises ConfigurationError for invalid fields.
    """

    name: str
    format_digest: bytes
    value_bytes: int
    layout: HostLayout = HostLayout.PAGE_FIRST_DIRECT

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name:
            raise ConfigurationError(f"a stored pool's name must be a non-empty string, not {repr_of(self.name)}")
        if type(self.format_digest) is not bytes or len(self.format_digest) != KEY_BYTES:
            raise ConfigurationError(f"{self.name}: format_digest must be {KEY_BYTES} bytes, not {repr_of(self.format_digest)}")
        if type(self.value_bytes) is not int or self.value_bytes <= 0:
            raise ConfigurationError(f"{self.name}: value_bytes must be a positive integer, not {repr_of(self.value_bytes)}")

    def check_batch(self, keys: Sequence[bytes], pages: Sequence[memoryview], *, writable: bool = False) -> None:
        """Raise PageError for an invalid batch of keys and pages. Cost: O(keys)."""
        self.check_keys(keys)
        if len(keys) != len(pages):
            raise PageError(f"{self.name}: {len(keys)} keys for {len(pages)} pages")
        for page in pages:
            if page.nbytes != self.value_bytes or not page.c_contiguous or (writable and page.readonly):
                kind = "writable " if writable else ""
                raise PageError(
                    f"{self.name}: a page must be {kind}contiguous memory of {self.value_bytes} bytes, not of {page.nbytes}"
                    f"{' read-only' if page.readonly else ''}"
                )

    def check_keys(self, keys: Sequence[bytes]) -> None:
        """Raise PageError for keys that are not 32 bytes each, or not distinct. Cost: O(keys)."""
        for key in keys:
            if type(key) is not bytes or len(key) != KEY_BYTES:
                raise PageError(f"{self.name}: a key must be {KEY_BYTES} bytes, not {repr_of(key)}")
        if len(set(keys)) < len(keys):
            raise PageError(f"{self.name}: a key stands twice in one batch")


def pools_by_name(pools: Iterable[StoredPool]) -> dict[str, StoredPool]:
    """The pools by their names. Raises ConfigurationError for two of one name or one format, and for none at all."""
    every = items(pools, "pools", ConfigurationError)
    for pool in every:
        if not isinstance(pool, StoredPool):
            raise ConfigurationError(f"storage is made for StoredPools, not for {repr_of(pool)}")
    by_name = {pool.name: pool for pool in every}
    if not every or len(by_name) < len(every):
        raise ConfigurationError(f"storage needs pools of different names, not {[pool.name for pool in every]}")
    if len({pool.format_digest for pool in every}) < len(every):
        raise ConfigurationError(f"two of the pools {', '.join(by_name)} have the same format digest")
    return by_name


def check_can_hold(capabilities: Capabilities, pools: Iterable[StoredPool]) -> None:
    """Raise ConfigurationError, naming every pool that an engine with these capabilities cannot keep, and why."""
    largest, wrong = capabilities.largest_value_bytes, []
    for pool in pools:
        if pool.layout not in capabilities.layouts:
            known = ", ".join(sorted(layout.value for layout in capabilities.layouts))
            wrong.append(f"{pool.name}: its pages are {pool.layout.value}, the engine takes {known or 'no layout at all'}")
        if largest is not None and pool.value_bytes > largest:
            wrong.append(f"{pool.name}: its values are {pool.value_bytes} bytes, the engine's largest {largest}")
    if wrong:
        raise ConfigurationError("; ".join(wrong))


def check_opened_for(opened: Collection[str], pools: Iterable[StoredPool]) -> None:
    """Raise ConfigurationError, naming every pool that the engine was not opened for."""
    missing = [pool.name for pool in pools if pool.name not in opened]
    if missing:
        raise ConfigurationError(
            f"the engine was not opened for {', '.join(map(repr, missing))}, only for {', '.join(map(repr, opened))}; "
            "open it with StorageTier.open, or for all that `stored_pools` lists, the pool of the restore points included"
        )


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
        """The abilities of this engine; constant. Pools beyond `layouts` and `largest_value_bytes` are refused; the other
        fields change nothing in the cache.
        """
        ...

    def register(self, buffers: Sequence[memoryview]) -> None:
        """Register the memory of later calls' pages, for zero copy. Idempotent.

        An engine that needs no registration does nothing. Raises StorageError if the store refuses.
        """
        ...

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """Which keys are stored, shape [keys]. A hint: a value may be evicted, or be corrupt, before it is read.

        False also for a key for which the store did not answer; see `AnsweringEngine`.
        """
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
