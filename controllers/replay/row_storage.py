"""One row's part of a store: opened under names that a later replay of the same row finds again, and paced on its clock.

A row's pages are found by replays of the same workload (by its name), model, page size and kind of content only: block numbers
mean something within one workload, and pages without bytes must not be taken for pages with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_tree.controllers.pools import HostLayout
from unified_tree.controllers.replay.metered_storage import MeteredStorage
from unified_tree.controllers.replay.paced_jobs import PacedJobs
from unified_tree.controllers.storage import StorageRegistry
from unified_tree.controllers.storage_tier import StorageTier, stored_pools

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.controllers.replay.row_plan import RowPlan
    from unified_tree.controllers.replay.storage_settings import StorageSettings
    from unified_tree.controllers.storage import StorageEngine, StoredPool
    from unified_tree.controllers.storage_tier import PageMemory
    from unified_tree.controllers.transfer_engines import VirtualClock


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


def open_storage(row: RowPlan, settings: StorageSettings, memory: Mapping[str, PageMemory], clock: VirtualClock) -> RowStorage:
    """Open a row's part of the store, over host pages by component. Raises what the engine raises."""
    engine, pools = open_engine(row, settings, clock)
    meter = MeteredStorage(engine, row.true_bytes)
    reading, writing = (PacedJobs(clock, meter, settings.cost) for _ in range(2))
    tier = StorageTier(
        engine=meter,
        pools={pool.name: pool for pool in pools if pool.name in row.true_bytes},
        memory=memory,
        weights_version=f"{row.name} of {row.workload}",
        prefetch=settings.prefetch,
        reading=reading,
        writing=writing,
        clock=lambda: clock.now / 1e9,
    )
    return RowStorage(tier=tier, meter=meter, reading=reading, writing=writing)


def open_engine(row: RowPlan, settings: StorageSettings, clock: VirtualClock) -> tuple[StorageEngine, list[StoredPool]]:
    """The engine of a row's part of the store, and the pools it was opened for. Raises as `open_storage`."""
    pools = stored_pools(row.moved_composition, layout=HostLayout.PAGE_FIRST_DIRECT)
    return StorageRegistry().open(settings.engine, pools, **settings.row_options(row.name, pools, clock)), pools
