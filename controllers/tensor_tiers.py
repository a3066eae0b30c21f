"""Real pools for a cache: a device and a host pool a component, and the engine between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from unified_tree.controllers.host_tier import HostTier
from unified_tree.controllers.pools import HostLayout, PageFormat, formats_for
from unified_tree.controllers.pools.device_pool import DevicePool
from unified_tree.controllers.pools.host_pool import HostPool, host_pools
from unified_tree.controllers.pools.page_pair import PagePair
from unified_tree.controllers.transfer_engines import CpuEngine, CudaEngine, TransferEngine
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.storage import StorageRegistry
    from unified_tree.controllers.storage_tier import StorageTier


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTiers:
    """The pools of a composition on both tiers.

    Attributes:
        composition: whose pools they are.
        device, host: by component. A component that shares device pages has tensors of its own there, under the owner's ids.
        engine: moves pages between them.
    """

    composition: Composition
    device: Mapping[str, DevicePool]
    host: Mapping[str, HostPool]
    engine: TransferEngine

    def host_tier(self, **settings: Any) -> HostTier:
        """The host tier of a PrefixCache over these pools; `settings` are those of HostTier but for counts and engine."""
        counts = {name: pool.page_count for name, pool in self.host.items()}
        return HostTier(page_counts=counts, engine=self.engine, **settings)

    def storage_tier(
        self,
        name: str,
        *,
        weights_version: str,
        options: Mapping[str, Any] | None = None,
        registry: StorageRegistry | None = None,
        rank: int = 0,
        rank_count: int = 1,
        replicated: Collection[str] = (),
        **settings: Any,
    ) -> StorageTier:
        """The storage tier of a PrefixCache over these pools. Needs the `storage` extra.

        Args:
            name: of an engine in the registry: `file`, `mooncake`, `redis`, …
            weights_version: of the model now; pages that another version computed are never found.
            options: of the engine: `directory` and `capacity_bytes` of the file engine.
            registry: other engines than the built-in and installed ones.
            rank, rank_count: among the ranks that share the store, each with its own shard of the state.
            replicated: components whose state is the same on every rank (MLA's latents): stored once, by rank 0.
            settings: those of StorageTier but for these.

        Raises ConfigurationError for what the engine cannot keep, StorageError where it cannot be opened.
        """
        from unified_tree.controllers.storage import REPLICATED, StorageRegistry, rank_shard
        from unified_tree.controllers.storage_tier import StorageTier, stored_pools

        names = [c.name for c in self.composition.components]
        unknown = set(replicated) - set(names)
        if unknown:
            raise ConfigurationError(f"replicated names {sorted(unknown)}, which are none of {names}")
        own = REPLICATED if rank_count == 1 else rank_shard(rank, rank_count)
        pool = next(iter(self.host.values()))
        pools = stored_pools(
            self.composition.components,
            {component: host.format for component, host in self.host.items()},
            model=self.composition.name,
            layout=pool.layout,
            page_size=self.composition.page_size,
            shards={component: REPLICATED if component in replicated else own for component in names},
            trailer_bytes=pool.trailer_bytes,
        )
        engine = (StorageRegistry() if registry is None else registry).open(name, pools, **(options or {}))
        try:
            engine.register([host.buffer for host in self.host.values()])
        except BaseException:
            engine.close()
            raise
        return StorageTier(
            engine=engine,
            pools={stored.name: stored for stored in pools if stored.name in names},
            memory=self.host,
            weights_version=weights_version,
            written=[component for component in names if rank == 0 or component not in replicated],
            **settings,
        )


def tensor_tiers(
    composition: Composition,
    *,
    device_page_counts: Mapping[str, int],
    host_page_counts: Mapping[str, int],
    formats: Mapping[str, PageFormat] | None = None,
    layout: HostLayout = HostLayout.PAGE_FIRST_DIRECT,
    device: torch.device | str = "cpu",
) -> TensorTiers:
    """Allocate the pools of a composition and the engine for its device: a worker thread, or streams on a GPU.

    Args:
        device_page_counts: by component with device pages of its own; `Composition.split_budget` proposes them.
        host_page_counts: by component; `propose_page_counts` proposes them.
        formats: by component; those left out are raw bytes of the component's `page_bytes`.
        layout: of the host pools.
        device: where the device pools live. Host pools are pinned if that is a GPU.

    Raises ConfigurationError for missing counts, formats that do not fit, and more host memory than there is.

    >>> from unified_tree.components import composition_for
    >>> from unified_tree.controllers import PrefixCache
    >>> model = composition_for("qwen3-32b", page_size=16)
    >>> tiers = tensor_tiers(model, device_page_counts={"full": 4}, host_page_counts={"full": 8})
    >>> cache = PrefixCache(model.components, model.page_size, {"full": 4}, host=tiers.host_tier())
    >>> tiers.device["full"].tensor(0, "raw").shape
    torch.Size([4, 1, 4194304])
    >>> cache.close()
    """
    every = formats_for(composition, formats)
    owners = {c.name: c.shares or c.name for c in composition.components}
    missing = [name for name, owner in owners.items() if owner not in device_page_counts or name not in host_page_counts]
    if missing:
        raise ConfigurationError(f"page counts are missing for {', '.join(missing)}")
    place = torch.device(device)
    on_gpu = place.type == "cuda"
    host = host_pools(every, {name: host_page_counts[name] for name in every}, layout=layout, pin=on_gpu)
    pools = {name: DevicePool(every[name], device_page_counts[owners[name]], place) for name in every}
    movers = {name: PagePair(pools[name], host[name]) for name in every}
    if not on_gpu:
        return TensorTiers(composition=composition, device=pools, host=host, engine=CpuEngine(movers))
    from unified_tree.controllers.transfer_engines.cuda_lane import cuda_lanes

    return TensorTiers(composition=composition, device=pools, host=host, engine=CudaEngine(movers, cuda_lanes(place)))
