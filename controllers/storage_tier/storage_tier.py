"""The settings of a storage tier, and the call that opens one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.storage.storage_registry import StorageRegistry
from unified_tree.controllers.storage_tier.jobs import Jobs, ThreadJobs
from unified_tree.controllers.storage_tier.policies import PersistPolicy, PrefetchPolicy
from unified_tree.controllers.storage_tier.stored_composition import PooledMemory, check_memory, layout_of, stored_pools

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.storage.storage_engine import StorageEngine, StoredPool
    from unified_tree.controllers.storage_tier.stored_composition import PageMemory

READING_THREADS = 16
"""Prefetches that run at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageTier:
    """Settings of the storage tier. The cache closes the engine and the jobs when it is closed or the tier is detached.

    `open` creates one from a composition. To fill the fields yourself, open the engine with `stored_pools`.

    Attributes:
        engine: opened for `pools` and, if the model has windows or states, for the pool of restore points (`stored_pools`).
        pools: by component; the pool of restore points may be left out.
        memory: host pages by component, with room for trailers.
        weights_version: the current version of the model; pages of another version are never found.
        prefetch, persist: the policies for fetching and for writing.
        written: components whose pages this rank stores; None for all. A replicated pool is stored by one rank.
        reading, writing: the job runners of prefetches and of writes. By default 16 prefetches run at a time, so that a slow
            look-up does not delay others; writes are sequential anyway.
        clock: seconds, for time-outs.
    """

    engine: StorageEngine
    pools: Mapping[str, StoredPool]
    memory: Mapping[str, PageMemory]
    weights_version: str
    prefetch: PrefetchPolicy = field(default_factory=PrefetchPolicy)
    persist: PersistPolicy = field(default_factory=PersistPolicy)
    written: Sequence[str] | None = None
    reading: Jobs = field(default_factory=lambda: ThreadJobs(READING_THREADS))
    writing: Jobs = field(default_factory=ThreadJobs)
    clock: Callable[[], float] = monotonic

    def renewed(self, weights_version: str) -> StorageTier:
        """The same store for another controller, once the one before has closed and kept its engine open.

        The default job runners take the place of this tier's, which are closed.
        """
        return replace(self, weights_version=weights_version, reading=ThreadJobs(READING_THREADS), writing=ThreadJobs())

    @classmethod
    def open(
        cls,
        engine: str,
        composition: Composition,
        *,
        memory: Mapping[str, PageMemory],
        weights_version: str,
        options: Mapping[str, Any] | None = None,
        registry: StorageRegistry | None = None,
        **settings: Any,
    ) -> StorageTier:
        """Open a store for all components of a composition, and register the host memory with it. Needs no torch.

        The composition declares the page formats and the rank. State that is the same on several ranks (MLA's latents) is
        stored once, by the first of them.

        Args:
            engine: its name in the registry: `file`, `mooncake`, `redis`, …
            composition: of the cache.
            memory: host pages by component: host pools, `mapped_pages`, or a PageMemory of your own.
            weights_version: the current version of the model; pages of another version are never found.
            options: of the engine: `directory` and `capacity_bytes` of the file engine.
            registry: engines besides the built-in and installed ones.
            settings: the other fields.

        Raises ConfigurationError for memory without room for trailers, for pools that the engine cannot keep, and for a
        composition without page formats (or, if ranks divide the state, without a rank). Raises StorageError if the engine
        cannot be opened.

        >>> from unified_tree.components import composition_for
        >>> from unified_tree.controllers.storage_tier import mapped_pages
        >>> model = composition_for("qwen3-32b", page_size=16)
        >>> tier = StorageTier.open("memory", model, memory=mapped_pages(model, {"full": 2}), weights_version="2026-11")
        >>> list(tier.pools)
        ['full']
        >>> tier.engine.close()
        """
        pools = {pool.name: pool for pool in stored_pools(composition, layout=layout_of(memory))}
        names = [component.name for component in composition.components]
        check_memory(names, pools, memory)
        opened = (StorageRegistry() if registry is None else registry).open(engine, list(pools.values()), **(options or {}))
        try:
            opened.register([pages.buffer for pages in memory.values() if isinstance(pages, PooledMemory)])
        except BaseException:
            opened.close()
            raise
        return cls(
            engine=opened,
            pools=pools,
            memory=memory,
            weights_version=weights_version,
            written=[name for name in names if composition.writes(name)],
            **settings,
        )
