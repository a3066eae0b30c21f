"""What lies behind one row's cache: a host tier on a simulated bus, bytes to verify, both or neither."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from typing import TYPE_CHECKING

from unified_tree.controllers.host_tier import HostTier
from unified_tree.controllers.pools import check_host_memory
from unified_tree.controllers.pools.host_layout import host_page_bytes
from unified_tree.controllers.replay.paced_engine import PacedEngine
from unified_tree.controllers.replay.page_store import NEEDS_TORCH, PageStores, make_stores
from unified_tree.controllers.transfer_engines import CpuEngine, NullEngine, VirtualClock
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.components import Composition
    from unified_tree.controllers.replay.host_settings import HostSettings

SHRUNK_PAGE_BYTES = 64


class Verification(Enum):
    """Whether pages hold bytes: none, 64 a page, or as many as the components say."""

    OFF = "off"
    SHRUNK = "shrunk"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTiers:
    """A host tier, what paces it, and where bytes lie; each None where there is none."""

    host: HostTier | None = None
    engine: PacedEngine | None = None
    stores: PageStores | None = None


def check_room(
    composition: Composition,
    device_counts: Mapping[str, int],
    host: HostSettings | None,
    verification: Verification,
    rows_at_once: int,
) -> None:
    """Find out before the replay whether its bytes can be held. Raises ConfigurationError for too little memory, no torch."""
    if verification is Verification.OFF:
        return
    if host is not None and find_spec("torch") is None:
        raise ConfigurationError(NEEDS_TORCH)
    size_bytes = 0
    for component in composition.components:
        page_bytes = component.page_bytes if verification is Verification.FULL else SHRUNK_PAGE_BYTES
        size_bytes += device_counts[component.shares or component.name] * page_bytes
        size_bytes += host.page_counts[component.name] * host_page_bytes(page_bytes) if host is not None else 0
    check_host_memory(size_bytes * rows_at_once, component=f"the pages of {rows_at_once} verified rows at once")


def stand_up(
    composition: Composition,
    device_counts: Mapping[str, int],
    host: HostSettings | None,
    host_counts: Mapping[str, int],
    verification: Verification,
) -> RowTiers:
    """Make what a row's cache stands on. The simulated bus counts true page sizes, whatever the bytes that really move.

    Args:
        device_counts: by component with device pages of its own; one left out is without end.
        host: None for no host tier.
        host_counts: likewise, by component.

    Raises ConfigurationError as `make_stores`.
    """
    stores = None
    if verification is not Verification.OFF:
        is_full = verification is Verification.FULL
        stores = make_stores(
            {c.name: c.page_bytes if is_full else SHRUNK_PAGE_BYTES for c in composition.components},
            {c.name: device_counts.get(c.shares or c.name) for c in composition.components},
            None if host is None else {c.name: host_counts.get(c.name) for c in composition.components},
        )
    if host is None:
        return RowTiers(stores=stores)
    engine = PacedEngine(
        NullEngine() if stores is None else CpuEngine(stores.movers),
        VirtualClock(),
        host.load_cost,
        {c.name: c.page_bytes for c in composition.components},
        None if stores is None else stores.blank,
    )
    tier = HostTier(page_counts=dict(host_counts), engine=engine, write_policy=host.write_policy, load_cost=host.load_cost)
    return RowTiers(host=tier, engine=engine, stores=stores)
