"""Pools of pages on device and host, and the copies between them. Start at `unified_tree.controllers.tensor_tiers`, which
creates the pools of a composition: a `DevicePool`, a `HostPool` and the `PagePair` that copies between them per component.
Where pools share a budget, a `BlockArena`, laid out by a `BlockLayout`, takes the place of the device pools, and a `HostArena`
that of the host pools.
`propose_page_counts` sizes host pools. `mha_format` and its like make a PageFormat by hand. Formats, layouts and sizes need no
torch; tensors do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.pages.block_tables import BlockTables
from unified_tree.controllers.pools.block_layout import BlockLayout
from unified_tree.controllers.pools.formats import (
    formats_of,
    indexer_format,
    mha_format,
    mla_format,
    raw_format,
    state_format,
)
from unified_tree.controllers.pools.host_layout import HostLayout
from unified_tree.controllers.pools.host_memory import check_host_memory, host_memory_available
from unified_tree.controllers.pools.host_sizing import host_budget, propose_page_counts
from unified_tree.controllers.pools.page_mover import PageMover
from unified_tree.declare.page_format import PageFormat, Part

if TYPE_CHECKING:
    from unified_tree.controllers.pools.block_arena import ArenaPair, BlockArena
    from unified_tree.controllers.pools.device_pool import DevicePool
    from unified_tree.controllers.pools.host_arena import HostArena
    from unified_tree.controllers.pools.host_pool import HostPool, host_pools
    from unified_tree.controllers.pools.page_pair import PagePair
    from unified_tree.controllers.pools.staged_pair import StagedPair

__all__ = [
    "BlockLayout",
    "BlockTables",
    "HostLayout",
    "PageFormat",
    "PageMover",
    "Part",
    "check_host_memory",
    "formats_of",
    "host_budget",
    "host_memory_available",
    "indexer_format",
    "mha_format",
    "mla_format",
    "propose_page_counts",
    "raw_format",
    "state_format",
]
if TYPE_CHECKING:
    __all__ += [
        "ArenaPair",
        "BlockArena",
        "DevicePool",
        "HostArena",
        "HostPool",
        "PagePair",
        "StagedPair",
        "host_pools",
    ]  # not without extras: a star import would fail

_TENSORS = {
    "ArenaPair": "block_arena",
    "BlockArena": "block_arena",
    "DevicePool": "device_pool",
    "HostArena": "host_arena",
    "HostPool": "host_pool",
    "PagePair": "page_pair",
    "StagedPair": "staged_pair",
    "host_pools": "host_pool",
}
"""Names whose modules import torch, loaded when first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _TENSORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_TENSORS[name]}"), name)
