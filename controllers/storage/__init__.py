"""Stores of pages (L3) behind one protocol, `StorageEngine`. Start at `unified_tree.controllers.storage_tier.StorageTier.open`,
which opens an engine by name from a `StorageRegistry`. To add an engine, derive from `GuardedStorage`. The rest are the keys
(`KeyChain`) and seals of stored pages, and which lengths can be restored (`restorable_lengths`).
"""

from unified_tree.controllers.pools.format_header import FormatHeader, format_headers
from unified_tree.controllers.storage.checked_storage import CheckedStorage, StoreFault
from unified_tree.controllers.storage.file import FileLimits, FileStorage
from unified_tree.controllers.storage.guarded_storage import GuardedStorage
from unified_tree.controllers.storage.hit_policy import (
    HitPolicy,
    PoolFinding,
    PoolNeed,
    longest,
    need_of,
    restorable_lengths,
)
from unified_tree.controllers.storage.key_chain import KeyChain, pool_keys
from unified_tree.controllers.storage.memory_storage import MemoryStorage, NullStorage
from unified_tree.controllers.storage.page_seal import is_intact, seal
from unified_tree.controllers.storage.restore_point import RestorePoint, attested_pages, record_pool
from unified_tree.controllers.storage.storage_engine import (
    AnsweringEngine,
    Capabilities,
    Outcome,
    SealingEngine,
    StorageEngine,
    StorageStats,
    StoredPool,
    StoredPoolStats,
    check_can_hold,
)
from unified_tree.controllers.storage.storage_registry import StorageRegistry

__all__ = [
    "AnsweringEngine",
    "Capabilities",
    "CheckedStorage",
    "FileLimits",
    "FileStorage",
    "FormatHeader",
    "GuardedStorage",
    "HitPolicy",
    "KeyChain",
    "MemoryStorage",
    "NullStorage",
    "Outcome",
    "PoolFinding",
    "PoolNeed",
    "RestorePoint",
    "SealingEngine",
    "StorageEngine",
    "StorageRegistry",
    "StorageStats",
    "StoreFault",
    "StoredPool",
    "StoredPoolStats",
    "attested_pages",
    "check_can_hold",
    "format_headers",
    "is_intact",
    "longest",
    "need_of",
    "pool_keys",
    "record_pool",
    "restorable_lengths",
    "seal",
]
