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
