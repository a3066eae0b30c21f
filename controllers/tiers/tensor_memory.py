"""Tensor pools for a cache: device and host memory of every component, and the engine between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.host.host_tier import HostTier
from unified_tree.controllers.pools import HostLayout, formats_of
from unified_tree.controllers.pools.block_arena import ArenaPair
from unified_tree.controllers.pools.device_pool import DevicePool
from unified_tree.controllers.pools.host_arena import HostArena
from unified_tree.controllers.pools.host_pool import HostPool, host_pools
from unified_tree.controllers.pools.page_pair import PagePair
from unified_tree.controllers.pools.staged_pair import StagedPair
from unified_tree.controllers.tensors import torch
from unified_tree.controllers.transfer_engines import CpuEngine, CudaEngine, TransferEngine
from unified_tree.controllers.transfer_engines.schedule import step_blocks
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.pools.block_arena import BlockArena
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.storage_tier import StorageTier


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTiers:
    """The memory of a composition on both tiers.

    Attributes:
        composition: whose state it is.
        device, host: pools by component. A component that shares device pages has its own tensors, indexed by the owner's page
            ids. Empty where the tier's pools share a budget.
        device_arena, host_arena: the tier's memory as one budget, in place of pools; else None.
        engine: moves pages between them.
    """

    composition: Composition
    device: Mapping[str, DevicePool]
    host: Mapping[str, HostPool]
    engine: TransferEngine
    device_arena: BlockArena | None = None
    host_arena: HostArena | None = None

    def host_tier(self, **settings: Any) -> HostTier:
        """The host tier of a PrefixCache over this memory; `settings` are the fields of HostTier except sizes and engine."""
        on_device = {name: pool.page_count for name, pool in self.device.items()}
        if self.host_arena is not None:
            arena = self.host_arena
            return HostTier(
                budget=arena.budget, tables=arena.tables, device_page_counts=on_device, engine=self.engine, **settings
            )
        counts = {name: pool.page_count for name, pool in self.host.items()}
        return HostTier(page_counts=counts, device_page_counts=on_device, engine=self.engine, **settings)

    def storage_tier(self, engine: str, *, weights_version: str, **settings: Any) -> StorageTier:
        """The storage tier of a PrefixCache over this memory. Needs the `storage` extra.

        See `StorageTier.open` for the arguments and errors.
        """
        from unified_tree.controllers.storage_tier import StorageTier

        memory = self.host if self.host_arena is None else self.host_arena.pages()
        return StorageTier.open(engine, self.composition, memory=memory, weights_version=weights_version, **settings)


def tensor_tiers(
    composition: Composition,
    *,
    device_page_counts: Mapping[str, int] | None = None,
    device_arena: BlockArena | None = None,
    host_page_counts: Mapping[str, int] | None = None,
    host_bytes: int | None = None,
    layout: HostLayout = HostLayout.PAGE_FIRST_DIRECT,
    device: torch.device | str = "cpu",
) -> TensorTiers:
    """Allocate the pools of a composition and the engine for its device: a worker thread, or streams on a GPU.

    Pages have the components' formats; a component without one gets raw bytes, which no store accepts.

    Args:
        device_page_counts: by component with device pages of its own; `Composition.split_budget` proposes them. Or
        device_arena: the device's memory as one budget that all pools share.
        host_page_counts: by component; `propose_page_counts` proposes them. Or
        host_bytes: the host's memory as one budget that all pools share; see `HostArena`.
        layout: of the host pools; a budget has its own.
        device: where the device pools live; an arena's is its own. Host memory is pinned if that is a GPU.

    Raises ConfigurationError unless each tier has either counts or a budget, for missing counts, for an arena of other formats,
    and for more host memory than is available.

    >>> from unified_tree.components import composition_for
    >>> from unified_tree.controllers import PrefixCache
    >>> model = composition_for("qwen3-32b", page_size=16)
    >>> tiers = tensor_tiers(model, device_page_counts={"full": 4}, host_page_counts={"full": 8})
    >>> cache = PrefixCache(model.components, model.page_size, {"full": 4}, host=tiers.host_tier())
    >>> tiers.device["full"].tensor(0, "k").shape
    torch.Size([4, 16, 8, 128])
    >>> cache.close()
    """
    if (device_page_counts is None) == (device_arena is None):
        raise ConfigurationError("give either device_page_counts or a device_arena")
    if (host_page_counts is None) == (host_bytes is None):
        raise ConfigurationError("give either host_page_counts or host_bytes")
    if host_bytes is not None and layout is not HostLayout.PAGE_FIRST_DIRECT:
        raise ConfigurationError(f"pages of a host budget are {HostLayout.PAGE_FIRST_DIRECT.value}, not {layout}")
    every = formats_of(composition)
    if device_arena is not None and device_arena.formats != every:
        raise ConfigurationError(f"the arena's pages have other formats than those of {composition.name}")
    owners = {c.name: c.shares or c.name for c in composition.components}
    missing = [
        name
        for name, owner in owners.items()
        if (device_page_counts is not None and owner not in device_page_counts)
        or (host_page_counts is not None and name not in host_page_counts)
    ]
    if missing:
        raise ConfigurationError(f"page counts are missing for {', '.join(missing)}")
    place = torch.device(device) if device_arena is None else device_arena.memory.device
    on_gpu = place.type == "cuda"
    pools: dict[str, DevicePool] = {}
    host: dict[str, HostPool] = {}
    host_arena = None if host_bytes is None else HostArena(composition, host_bytes, pin=on_gpu)
    if host_page_counts is not None:
        host = host_pools(every, {name: host_page_counts[name] for name in every}, layout=layout, pin=on_gpu)
    if device_page_counts is not None:
        pools = {name: DevicePool(every[name], device_page_counts[owners[name]], place) for name in every}
    movers = {name: _mover(name, device_arena or pools[name], host_arena or host[name]) for name in every}
    engine: TransferEngine
    if on_gpu:
        from unified_tree.controllers.transfer_engines.cuda_lane import cuda_lanes

        engine = CudaEngine(movers, cuda_lanes(place), chunk_blocks=step_blocks(every))
    else:
        engine = CpuEngine(movers)
    return TensorTiers(
        composition=composition, device=pools, host=host, device_arena=device_arena, host_arena=host_arena, engine=engine
    )


def _mover(component: str, device: BlockArena | DevicePool, host: HostArena | HostPool) -> PageMover:
    if isinstance(host, HostArena):
        return StagedPair(device, component, host)
    return PagePair(device, host) if isinstance(device, DevicePool) else ArenaPair(device, component, host)
