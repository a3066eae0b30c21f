"""A cache with all that has figures: a draft, a host tier, a store in memory, and tenants, some of which share."""

from __future__ import annotations

from host_cells import HostPages
from kinds import DRAFT, FULL, MAMBA

from unified_tree import TenantGroup, Tenants
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.storage import MemoryStorage, StoredPool
from unified_tree.controllers.storage.restore_point import record_pool
from unified_tree.controllers.storage_tier import StorageTier
from unified_tree.controllers.storage_tier.stored_composition import RECORDS
from unified_tree.controllers.transfer_engines import NullEngine


def metered_cache() -> PrefixCache:
    """Full KV with a draft's, and states, without limits, two tokens a page."""
    memory = {name: HostPages(1) for name in ("full", "draft", "mamba")}
    pools = {
        name: StoredPool(name=name, format_digest=name.encode().ljust(32), value_bytes=memory[name].value_bytes)
        for name in memory
    }
    engine = MemoryStorage([*pools.values(), record_pool([pools["mamba"]], RECORDS)])
    storage = StorageTier(engine=engine, pools=pools, memory=memory, weights_version="v1")
    host = HostTier(page_counts={}, engine=NullEngine())
    groups = [TenantGroup(name=name, namespaces=(name,), shares=name != "a") for name in "abcd"]
    tenants = Tenants(groups=tuple(groups), share_after=2)
    return PrefixCache([FULL, DRAFT, MAMBA], 2, host=host, storage=storage, tenants=tenants)
