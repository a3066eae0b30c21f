"""What a serving engine holds of the library, and what moves pages between tiers.

Start at `PrefixCache`: a scheduler acquires a `Lease` for each request, and allocates, commits and releases through it.
`HostTier` puts host memory behind the device, `storage_tier.StorageTier` a store behind that. The folders:

- `cache`: PrefixCache, leases, statistics, metrics.
- `host`: the controller of the host tier, its settings, and `tensor_tiers`, which makes real pools for a composition.
- `pools`: device and host pools, page formats, sizes.
- `transfer_engines`: what moves bytes between device and host. `NullEngine` and `SimulatedEngine` need no torch.
- `storage`, `storage_tier`: stores of pages behind one protocol, and how prefixes go to them and come back.
- `prefix_linker`: caches of prefixes elsewhere, such as LMCache.
- `ranks`: how tensor-parallel ranks agree.
- `reference_engine`: a small engine over `transformers` models, the example to embed by.
- `replay`: traces through the real cache on a virtual clock; the command `unified-tree`.

Importing this package needs no torch. docs/embedding.md shows the calls of a scheduler's step.
"""

if __name__ != "unified_tree.controllers":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.controllers, not as {__name__}")

from unified_tree.controllers.cache.lease import Lease
from unified_tree.controllers.cache.page_table import PageTable
from unified_tree.controllers.cache.prefix_cache import PrefixCache
from unified_tree.controllers.cache.state_pages import StateCopy
from unified_tree.controllers.cache.stats import CacheStats, HostPoolStats, PoolStats, TransferStats
from unified_tree.controllers.host.host_tier import HostTier, WritePolicy
from unified_tree.controllers.host.load_cost import LoadCost
from unified_tree.controllers.host.page_allocator import PageAllocator

__all__ = [
    "CacheStats",
    "HostPoolStats",
    "HostTier",
    "Lease",
    "LoadCost",
    "PageAllocator",
    "PageTable",
    "PoolStats",
    "PrefixCache",
    "StateCopy",
    "TransferStats",
    "WritePolicy",
]
