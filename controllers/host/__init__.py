"""The host tier: host memory behind the device, with backups and load backs.

Start at `HostTier`, the settings that `PrefixCache(host=...)` takes, or at `tensor_tiers`, which allocates tensor pools and
their transfer engine for a composition (it needs torch). `LoadCost` decides between loading and computing. `PageAllocator` is
the free list of one pool.
"""

if __name__ != "unified_tree.controllers.host":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.controllers.host, not as {__name__}")

from typing import TYPE_CHECKING, Any

from unified_tree.controllers.host.host_tier import HostTier, WritePolicy
from unified_tree.controllers.host.load_cost import LoadCost
from unified_tree.controllers.host.page_allocator import PageAllocator

if TYPE_CHECKING:
    from unified_tree.controllers.host.tensor_pools import TensorTiers, tensor_tiers

__all__ = ["HostTier", "LoadCost", "PageAllocator", "WritePolicy"]
if TYPE_CHECKING:
    __all__ += ["TensorTiers", "tensor_tiers"]  # not without extras: a star import would fail


def __getattr__(name: str) -> Any:
    if name in ("TensorTiers", "tensor_tiers"):  # need torch
        from unified_tree.controllers.host import tensor_pools

        return getattr(tensor_pools, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
