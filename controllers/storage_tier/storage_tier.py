"""How a cache uses a store behind its host tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from unified_tree.controllers.storage_tier.jobs import Jobs, ThreadJobs
from unified_tree.controllers.storage_tier.policies import PersistPolicy, PrefetchPolicy

if TYPE_CHECKING:
    from unified_tree.controllers.storage.storage_engine import StorageEngine
    from unified_tree.controllers.storage.stored_pool import StoredPool
    from unified_tree.controllers.storage_tier.stored_composition import PageMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageTier:
    """Settings of the storage tier. The cache closes the engine and the jobs when it is closed or the tier is detached.

    Attributes:
        engine: opened for `pools` and, where lengths need more than paths, for the pool of restore points (`stored_pools`).
        pools: by component.
        memory: host pages by component, with room for trailers.
        weights_version: of the model now; what another version computed is never found.
        prefetch, persist: when and how much.
        written: components whose pages this rank stores; None for all. A replicated pool is stored by one rank.
        reading, writing: what prefetches and persists run on. Prefetches go side by side, 16 at a time if nothing else is
            given, for a look-up that takes long must not keep others from theirs; persists are one after another anyway.
        clock: seconds, for time-outs.
    """

    engine: StorageEngine
    pools: Mapping[str, StoredPool]
    memory: Mapping[str, PageMemory]
    weights_version: str
    prefetch: PrefetchPolicy = field(default_factory=PrefetchPolicy)
    persist: PersistPolicy = field(default_factory=PersistPolicy)
    written: Sequence[str] | None = None
    reading: Jobs = field(default_factory=lambda: ThreadJobs(16))
    writing: Jobs = field(default_factory=ThreadJobs)
    clock: Callable[[], float] = monotonic
