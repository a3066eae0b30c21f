"""The storage tier (L3) behind the host tier: it prefetches from a store what it has of a prompt, and writes prefixes on host
to it. Start at `StorageTier.open` and give the result to `PrefixCache(storage=...)`. `PrefetchPolicy` and `PersistPolicy` set
when and how much. `mapped_pages` allocates host memory without torch.
"""

from unified_tree.controllers.storage_tier.jobs import Jobs, ThreadJobs
from unified_tree.controllers.storage_tier.mapped_pages import MappedPages, mapped_pages
from unified_tree.controllers.storage_tier.policies import PersistPolicy, PrefetchMode, PrefetchPolicy
from unified_tree.controllers.storage_tier.storage_controller import StorageController
from unified_tree.controllers.storage_tier.storage_tier import StorageTier
from unified_tree.controllers.storage_tier.storage_tier_stats import StorageTierStats
from unified_tree.controllers.storage_tier.stored_composition import PageMemory, PooledMemory, StoredComposition, stored_pools
from unified_tree.controllers.storage_tier.tier_store import TierStore

__all__ = [
    "Jobs",
    "MappedPages",
    "PageMemory",
    "PersistPolicy",
    "PooledMemory",
    "PrefetchMode",
    "PrefetchPolicy",
    "StorageController",
    "StorageTier",
    "StorageTierStats",
    "StoredComposition",
    "ThreadJobs",
    "TierStore",
    "mapped_pages",
    "stored_pools",
]
