"""Tensor pools for a cache: a device and a host pool per component, and the engine between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.host.host_tier import HostTier
from unified_tree.controllers.pools import HostLayout, formats_of
from unified_tree.controllers.pools.device_pool import DevicePool
from unified_tree.controllers.pools.host_pool import HostPool, host_pools
from unified_tree.controllers.pools.page_pair import PagePair
from unified_tree.controllers.tensors import torch
from unified_tree.controllers.transfer_engines import CpuEngine, CudaEngine, TransferEngine
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.storage_tier import StorageTier


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTiers:
    """The pools of a composition on both tiers.

    Attributes:
        composition: whose pools they are.
        device, host: pools by component. A component that shares device pages has its own tensors, indexed by the owner's page
            ids.
        engine: moves pages between them.
    """

    composition: Composition
    device: Mapping[str, DevicePool]
    host: Mapping[str, HostPool]
    engine: TransferEngine

    def host_tier(self, **settings: Any) -> HostTier:
        """The host tier of a PrefixCache over these pools; `settings` are the fields of HostTier except counts and engine."""
        counts = {name: pool.page_count for name, pool in self.host.items()}
        return HostTier(page_counts=counts, engine=self.engine, **settings)

    def storage_tier(self, engine: str, *, weights_version: str, **settings: Any) -> StorageTier:
        """The storage tier of a PrefixCache over these pools. Needs the `storage` extra.

        See `StorageTier.open` for the arguments and errors.
        """
        from unified_tree.controllers.storage_tier import StorageTier

        return StorageTier.open(engine, self.composition, memory=self.host, weights_version=weights_version, **settings)


def tensor_tiers(
    composition: Composition,
    *,
    device_page_counts: Mapping[str, int],
    host_page_counts: Mapping[str, int],
    layout: HostLayout = HostLayout.PAGE_FIRST_DIRECT,
    device: torch.device | str = "cpu",
) -> TensorTiers:
    """Allocate the pools of a composition and the engine for its device: a worker thread, or streams on a GPU.

    Pages have the components' formats; a component without one gets raw bytes, which no store accepts.

    Args:
        device_page_counts: by component with device pages of its own; `Composition.split_budget` proposes them.
        host_page_counts: by component; `propose_page_counts` proposes them.
        layout: of the host pools.
        device: where the device pools live. Host pools are pinned if that is a GPU.

    Raises ConfigurationError for missing counts, and for more host memory than is available.

    >>> from unified_tree.components import composition_for
    >>> from unified_tree.controllers import PrefixCache
    >>> model = composition_for("qwen3-32b", page_size=16)
    >>> tiers = tensor_tiers(model, device_page_counts={"full": 4}, host_page_counts={"full": 8})
    >>> cache = PrefixCache(model.components, model.page_size, {"full": 4}, host=tiers.host_tier())
    >>> tiers.device["full"].tensor(0, "k").shape
    torch.Size([4, 16, 8, 128])
    >>> cache.close()
    """
    every = formats_of(composition)
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
