"""What lies behind one row's cache: a host tier on a simulated bus, a store behind that or a linker, bytes, or none of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from typing import TYPE_CHECKING

from unified_tree.controllers.cache.prefix_cache import PrefixCache
from unified_tree.controllers.host.host_tier import HostTier
from unified_tree.controllers.pools import check_host_memory
from unified_tree.controllers.pools.host_layout import host_page_bytes
from unified_tree.controllers.replay.chunked_pages import ChunkedPages
from unified_tree.controllers.replay.paced_engine import PacedEngine
from unified_tree.controllers.replay.page_store import NEEDS_TORCH, PageStores, make_stores
from unified_tree.controllers.replay.row_link import RowLink, open_link
from unified_tree.controllers.replay.row_storage import RowStorage, open_engine, open_storage
from unified_tree.controllers.transfer_engines import CpuEngine, NullEngine, VirtualClock
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.components import Composition
    from unified_tree.controllers.replay.host_settings import HostSettings
    from unified_tree.controllers.replay.linker_settings import LinkerSettings
    from unified_tree.controllers.replay.storage_settings import StorageSettings

SHRUNK_PAGE_BYTES = 64


class Verification(Enum):
    """Whether pages hold bytes: none, 64 a page, or as many as the components say."""

    OFF = "off"
    SHRUNK = "shrunk"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTiers:
    """A host tier, what paces it, where bytes lie, a store, and a linker; each None where there is none. They share a clock."""

    clock: VirtualClock
    host: HostTier | None = None
    engine: PacedEngine | None = None
    stores: PageStores | None = None
    storage: RowStorage | None = None
    link: RowLink | None = None


def check_room(
    composition: Composition,
    device_counts: Mapping[str, int],
    host: HostSettings | None,
    verification: Verification,
    rows_at_once: int,
    *,
    is_linked: bool = False,
) -> None:
    """Find out before the replay whether its bytes can be held. Raises ConfigurationError for too little memory, no torch."""
    if verification is Verification.OFF and not is_linked:
        return
    if (host is not None or is_linked) and find_spec("torch") is None:
        raise ConfigurationError(NEEDS_TORCH)
    size_bytes = 0
    for component in composition.components:
        page_bytes = component.page_bytes if verification is Verification.FULL else SHRUNK_PAGE_BYTES
        size_bytes += device_counts[component.shares or component.name] * page_bytes
        size_bytes += host.page_counts[component.name] * host_page_bytes(page_bytes) if host is not None else 0
    check_host_memory(size_bytes * rows_at_once, component=f"the pages of {rows_at_once} verified rows at once")


def check_opens(composition: Composition, storage: StorageSettings, verification: Verification, row: str) -> None:
    """Find out before the replay whether a row's part of the store can be opened. Raises as `stand_up`."""
    moved_bytes = _moved_bytes(composition, verification)
    content = _content(verification)
    engine, _ = open_engine(storage, composition, row=row, content=content, page_bytes=moved_bytes, clock=VirtualClock())
    engine.close()


def check_links(
    composition: Composition,
    linker: LinkerSettings,
    device_counts: Mapping[str, int],
    verification: Verification,
    row: str,
) -> None:
    """Find out before the replay whether a row's cache can be linked. Raises as `stand_up`, and what `RowLink.to` raises."""
    tiers = stand_up(composition, device_counts, None, {}, verification, linker=linker, row=row)
    assert tiers.link is not None
    with closing(tiers.link.linker):
        tiers.link.to(PrefixCache(composition.components, composition.page_size, device_counts))


def stand_up(
    composition: Composition,
    device_counts: Mapping[str, int],
    host: HostSettings | None,
    host_counts: Mapping[str, int],
    verification: Verification,
    storage: StorageSettings | None = None,
    linker: LinkerSettings | None = None,
    row: str = "",
    workload: str = "",
) -> RowTiers:
    """Make what a row's cache stands on. The simulated bus counts true page sizes, whatever the bytes that really move.

    Args:
        device_counts: by component with device pages of its own; one left out is without end.
        host: None for no host tier.
        host_counts: likewise, by component.
        storage: None for no store; it needs a host tier.
        linker: None for no linker; without a bound on the device pages there is none either.
        row, workload: names that the row's part of the store, or its prefixes, go by.

    Raises ConfigurationError as `make_stores`, and both it and StorageError as the store.
    """
    stores, link, clock = None, None, VirtualClock()
    moved_bytes = _moved_bytes(composition, verification)
    is_linked = linker is not None and _is_bounded(composition, device_counts)
    if verification is not Verification.OFF or is_linked:
        stores = make_stores(
            moved_bytes,
            {c.name: device_counts.get(c.shares or c.name) for c in composition.components},
            None if host is None else {c.name: host_counts.get(c.name) for c in composition.components},
            linker.prepare if linker is not None and is_linked else None,
        )
    if linker is not None and stores is not None and is_linked:
        content = _content(verification)
        link = open_link(linker, composition, stores.pools, row=row, workload=workload, content=content, clock=clock)
    if verification is Verification.OFF:
        stores = None  # what the linker moves is nobody's to see
    if host is None:
        return RowTiers(clock=clock, stores=stores, link=link)
    engine = PacedEngine(
        NullEngine() if stores is None else CpuEngine(stores.movers),
        clock,
        host.load_cost,
        {c.name: c.page_bytes for c in composition.components},
        None if stores is None else stores.blank,
    )
    tier = HostTier(page_counts=dict(host_counts), engine=engine, write_policy=host.write_policy, load_cost=host.load_cost)
    if storage is None:
        return RowTiers(clock=clock, host=tier, engine=engine, stores=stores, link=link)
    opened = open_storage(
        storage,
        composition,
        row=row,
        workload=workload,
        content=_content(verification),
        page_bytes=moved_bytes,
        memory={name: ChunkedPages(size) for name, size in moved_bytes.items()} if stores is None else stores.memory,
        clock=clock,
    )
    return RowTiers(clock=clock, host=tier, engine=engine, stores=stores, storage=opened)


def _is_bounded(composition: Composition, device_counts: Mapping[str, int]) -> bool:
    return all((component.shares or component.name) in device_counts for component in composition.components)


def _moved_bytes(composition: Composition, verification: Verification) -> dict[str, int]:
    """Bytes of the pages that really move, by component."""
    is_full = verification is Verification.FULL
    return {c.name: c.page_bytes if is_full else SHRUNK_PAGE_BYTES for c in composition.components}


def _content(verification: Verification) -> str:
    """Which pages may be taken for each other."""
    return "pages without content" if verification is Verification.OFF else "pages with content"
