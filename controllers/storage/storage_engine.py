"""The seam between the cache and a store of pages: a file system, a distributed store, or nothing.

A value is one host page and its trailer, as many bytes as its pool says; a key is 32 bytes, uniformly distributed. What a
store hands back is not believed: `CheckedStorage` verifies every page before it can be used, so an engine owes its caller
speed and honesty about its own failures, not checksums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from unified_tree.controllers.pools.host_layout import HostLayout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.storage.storage_stats import StorageStats

KEY_BYTES = 32
"""Of every key."""
PAGE_CONTIGUOUS = frozenset(layout for layout in HostLayout if layout.is_page_contiguous)
"""The layouts in which a page is one piece of memory."""


class Outcome(Enum):
    """What became of one page of a batch."""

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
        shared_between_hosts: whether what is stored here is found by servers on other machines.
        survives_restart: whether it is found after this process has ended.
    """

    zero_copy: bool
    layouts: frozenset[HostLayout] = PAGE_CONTIGUOUS
    largest_value_bytes: int | None = None
    shared_between_hosts: bool = False
    survives_restart: bool = False


class StorageEngine(Protocol):
    """Keeps pages under keys, a pool at a time.

    The caller guarantees: keys are 32 bytes and differ within a batch; pages are contiguous and exactly as long as the pool's
    values, writable for `get`, and until a call returns nobody else touches them. The engine guarantees: after `get` says
    DONE the page was read whole, after any other outcome its bytes are undefined; it may evict any value at any time; a store
    that fails is an outcome, or a StorageError for the whole batch, never a hang beyond the engine's own time limit. Calls
    may come from several threads at once. Every call after `close` raises StorageError, but for `close` and `stats`.

    All raise StorageError for a pool that was not given when the engine was made, PageError for a batch that is not as above.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do; the same for all its life."""
        ...

    def register(self, buffers: Sequence[memoryview]) -> None:
        """Make memory known in which the pages of later calls will lie, for zero copy. Idempotent.

        An engine that needs no registration does nothing. Raises StorageError where the store refuses.
        """
        ...

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """Which keys are stored, shape [keys]. A hint: a value may go, or turn out bad, before it is read."""
        ...

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """Read values into pages: DONE, MISSING or FAILED for each, in the order of the keys."""
        ...

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """Store pages: DONE, PRESENT, DROPPED or FAILED for each. A reader never sees part of one as the whole."""
        ...

    def remove(self, pool: str, keys: Sequence[bytes]) -> None:
        """Forget values; those that are not there are left alone."""
        ...

    def clear(self) -> None:
        """Forget every value of this engine's pools. What others put meanwhile may stay."""
        ...

    def stats(self) -> StorageStats:
        """Counts since the engine was made, of every pool that it was made for. Cost: O(pools)."""
        ...

    def close(self) -> None:
        """Wait for calls under way, free everything, and take no more. Idempotent."""
        ...


@runtime_checkable
class SealingEngine(StorageEngine, Protocol):
    """An engine that moves one page after another in this thread, and lets each be sealed or verified on its way: so its bytes
    come from memory once, and not once more because the rest of a batch has driven them out of the processor's cache."""

    def get_verified(
        self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview], verify: Callable[[memoryview, bytes], bool]
    ) -> list[Outcome]:
        """`get`, but CORRUPT for a page that was read, and of which, with its key, `verify` says False."""
        ...

    def put_sealed(
        self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview], seal: Callable[[memoryview, bytes], None]
    ) -> list[Outcome]:
        """`put`, but `seal` is called with each writable page and its key before that is written; not for those PRESENT."""
        ...
