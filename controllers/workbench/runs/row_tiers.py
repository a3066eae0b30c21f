"""The tiers behind one row's cache: a host tier on a simulated bus, a store behind that or a linker, bytes, or none of it.

A row's pages in a store, or its prefixes behind a linker, are found by replays of the same workload (by its name), model, page
size and kind of content only: block numbers mean something within one workload, and pages without bytes must not be taken for
pages with them. A linker fills device pages itself, so they are tensors here even where nothing is verified, of as few bytes as
with --verify.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from unified_tree.controllers.cache.prefix_cache import PrefixCache
from unified_tree.controllers.host.host_tier import HostTier
from unified_tree.controllers.pools import HostLayout, check_host_memory
from unified_tree.controllers.pools.host_layout import host_page_bytes
from unified_tree.controllers.prefix_linker import linked_pools
from unified_tree.controllers.storage import StorageRegistry
from unified_tree.controllers.storage_tier import StorageTier, stored_pools
from unified_tree.controllers.transfer_engines import CpuEngine, NullEngine, VirtualClock
from unified_tree.controllers.workbench.server.fetches import RowLink, RowStorage
from unified_tree.controllers.workbench.server.paced_engine import PacedEngine, PacedJobs
from unified_tree.controllers.workbench.server.paced_linker import PacedLinker
from unified_tree.controllers.workbench.server.page_store import (
    NEEDS_TORCH,
    ChunkedPages,
    MeteredStorage,
    PageStores,
    make_stores,
)
from unified_tree.controllers.workbench.server.verified_pages import Verification
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.controllers.pools import DevicePool
    from unified_tree.controllers.storage import StorageEngine, StoredPool
    from unified_tree.controllers.storage_tier import PageMemory
    from unified_tree.controllers.workbench.runs.plan import RowPlan
    from unified_tree.controllers.workbench.server.server_settings import LinkerSettings, StorageSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTiers:
    """A host tier, what paces it, where bytes lie, a store, and a linker; each None where there is none. They share a clock."""

    clock: VirtualClock
    host: HostTier | None = None
    engine: PacedEngine | None = None
    stores: PageStores | None = None
    storage: RowStorage | None = None
    link: RowLink | None = None


def check_tiers(row: RowPlan, rows_at_once: int) -> None:
    """Find out before the replay whether the tiers of rows like this one can be made.

    Raises ConfigurationError for too little memory, or without torch where that is needed; the rest as `stand_up` and
    `RowLink.to`.
    """
    if row.verification is not Verification.OFF or row.linker is not None:
        _check_room(row, rows_at_once)
    if row.linker is not None:
        tiers = stand_up(replace(row, host=None, storage=None))
        assert tiers.link is not None
        with closing(tiers.link.linker):
            tiers.link.to(PrefixCache(row.composition.components, row.composition.page_size, row.page_counts))
    if row.storage is not None:
        open_engine(row, row.storage, VirtualClock())[0].close()


def _check_room(row: RowPlan, rows_at_once: int) -> None:
    if (row.host is not None or row.linker is not None) and find_spec("torch") is None:
        raise ConfigurationError(NEEDS_TORCH)
    size_bytes, moved_bytes = 0, row.moved_bytes
    for component in row.composition.components:
        page_bytes = moved_bytes[component.name]
        size_bytes += row.page_counts[component.shares or component.name] * page_bytes
        size_bytes += row.host.page_counts[component.name] * host_page_bytes(page_bytes) if row.host is not None else 0
    check_host_memory(size_bytes * rows_at_once, component=f"the pages of {rows_at_once} verified rows at once")


def stand_up(row: RowPlan) -> RowTiers:
    """Make what a row's cache stands on. The simulated bus counts true page sizes, whatever the bytes that really move.

    Raises ConfigurationError as `make_stores`, and both it and StorageError as the store.
    """
    stores, link, clock = None, None, VirtualClock()
    host, linker = row.host, row.linker
    if row.verification is not Verification.OFF or linker is not None:
        stores = make_stores(
            row.moved_bytes,
            {c.name: row.page_counts.get(c.shares or c.name) for c in row.composition.components},
            None if host is None else {c.name: host.page_counts.get(c.name) for c in row.composition.components},
            None if linker is None else linker.prepare,
        )
        link = None if linker is None else open_link(row, linker, stores.pools, clock)
    if row.verification is Verification.OFF:
        stores = None  # what the linker moves is nobody's to see
    if host is None:
        return RowTiers(clock=clock, stores=stores, link=link)
    inner = NullEngine() if stores is None else CpuEngine(stores.movers)
    engine = PacedEngine(inner, clock, host.load_cost, row.true_bytes, None if stores is None else stores.blank)
    storage = None
    if row.storage is not None:
        memory = {name: ChunkedPages(size) for name, size in row.moved_bytes.items()} if stores is None else stores.memory
        storage = open_storage(row, row.storage, memory, clock)
    tier = HostTier(
        page_counts={} if row.host_budget is not None else dict(host.page_counts),
        budget=row.host_budget,
        engine=engine,
        write_policy=host.write_policy,
        load_cost=host.load_cost,
    )
    return RowTiers(clock=clock, host=tier, engine=engine, stores=stores, storage=storage, link=link)


def open_link(row: RowPlan, settings: LinkerSettings, pools: Mapping[str, DevicePool], clock: VirtualClock) -> RowLink:
    """Open a row's linker over device pages by component; those of a daemon are in memory that it can map.

    Raises ConfigurationError for components that cannot be carried, and both it and LinkError as the linker.
    """
    linked = linked_pools(row.moved_composition, pools, paths_only=not settings.is_daemon)
    linker = settings.open(linked, row.composition.name)
    return RowLink(
        linker=PacedLinker(linker, clock, settings.cost, row.true_bytes, row.composition.page_size),
        pools=linked,
        clock=clock,
        weights_version=f"{row.name} of {row.workload}",
        wait_s=settings.prefetch.patience_s(0),
    )


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
