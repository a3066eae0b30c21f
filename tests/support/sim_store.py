"""A store for the simulated server: faulty, shared by one life's successive storage tiers, and understood by its memory."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from page_memory import PageMemory

from unified_tree import Component
from unified_tree.controllers.storage import FileStorage, MemoryStorage, StorageEngine, StoredPool
from unified_tree.controllers.storage.restore_point import record_pool
from unified_tree.controllers.storage_tier import PersistPolicy, PrefetchPolicy, StorageTier
from unified_tree.controllers.storage_tier.stored_composition import RECORDS
from unified_tree.controllers.testing import FaultyStorage, SimulatedJobs, StorageFaults
from unified_tree.controllers.transfer_engines import VirtualClock


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreScenario:
    """What one seed decides about a store.

    Attributes:
        page_count: of each pool, about, that it holds.
        step_ns: virtual time of a store call; `readers` prefetches make theirs at a time.
    """

    page_count: int
    faults: StorageFaults
    prefetch: PrefetchPolicy
    persist: PersistPolicy
    step_ns: int
    readers: int


class Undying(MemoryStorage):
    """A store that outlives whoever closes it, as one on another machine does."""

    def close(self) -> None:
        """Nothing."""


class SimStore:
    """Makes storage tiers over one store.

    Args:
        directory: of a store in files, opened anew for each tier; None for one in memory.

    Attributes:
        memory: host pages of the server as it runs now.
    """

    def __init__(
        self,
        components: list[Component],
        scenario: StoreScenario,
        memory: PageMemory,
        clock: VirtualClock,
        seed: int,
        directory: Path | None = None,
    ):
        self._scenario = scenario
        self.memory = memory
        self._clock = clock
        self._seed = seed
        self._tiers = 0
        self.pools = {
            c.name: StoredPool(
                name=c.name, format_digest=bytes([i + 1]) * 32, value_bytes=memory.host_pages[c.name].value_bytes
            )
            for i, c in enumerate(components)
        }
        trailing = [c for c in components if c.required and type(c.coverage).__name__ != "Path"]
        records = [record_pool([self.pools[c.name] for c in trailing], RECORDS)] if trailing else []
        every = [*self.pools.values(), *records]
        self._open: Callable[[], StorageEngine]
        if directory is None:
            undying = Undying(every, capacity_bytes=sum(pool.value_bytes for pool in every) * scenario.page_count)
            self._open = lambda: undying
        else:
            sizes = {pool.name: (pool.value_bytes + 256) * max(64, scenario.page_count) for pool in every}
            self._open = lambda: FileStorage(every, directory, sizes, clock_ns=lambda: 1 + clock.now)

    def beside(self, memory: PageMemory, clock: VirtualClock, seed: int) -> SimStore:
        """The same store for another deployment, which has a memory, a time and luck of its own."""
        other = copy(self)
        other.memory, other._clock, other._seed, other._tiers = memory, clock, seed, 0
        return other

    def tier(self, weights_version: str) -> StorageTier:
        """A tier as after an attach; each fails in its own way."""
        self._tiers += 1
        s, seed = self._scenario, self._seed + self._tiers
        return StorageTier(
            engine=FaultyStorage(self._open(), s.faults, seed=seed),
            pools=self.pools,
            memory=self.memory.host_pages,
            weights_version=weights_version,
            prefetch=s.prefetch,
            persist=s.persist,
            reading=SimulatedJobs(seed, self._clock, s.step_ns, max_concurrent=s.readers),
            writing=SimulatedJobs(seed + 1_000_000, self._clock, s.step_ns),
            clock=lambda: self._clock.now / 1e9,
        )
