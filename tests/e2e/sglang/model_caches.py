"""The kinds of model that the scheduler's model runs, and this library's cache over their pools."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scheduler_model import Case, Pools
from sglang.srt.mem_cache.cache_init_params import CacheInitParams

from unified_tree.controllers.adapters.sglang.assembly import TierBuilder
from unified_tree.controllers.adapters.sglang.backend import UnifiedTreeCache
from unified_tree.controllers.adapters.sglang.settings import MissSettings, Settings
from unified_tree.controllers.inspector.inspector_settings import InspectorSettings
from unified_tree.declare.tenants import Tenants

CASES = {
    "full": Case(chunk=256),
    "full16": Case(chunk=512, page_size=16, full_tokens=1440),
    "full64": Case(page_size=64, full_tokens=2560, chunk=128),
    "swa": Case(window=31),
    "swa16": Case(chunk=128, window=31, page_size=16, full_tokens=1440, window_tokens=480),
    "swa64": Case(window=100, page_size=64, full_tokens=2560, window_tokens=1280, chunk=128),
    "mamba": Case(states=40, chunk=128),
    "mamba_extra": Case(states=60, extra_buffer=True, page_size=16, full_tokens=1440, chunk=128),
    "eagle": Case(eagle=True),
    "eagle16": Case(eagle=True, page_size=16, full_tokens=1440),
    "drafted": Case(eagle=True, drafted=True),
    "drafted16": Case(eagle=True, drafted=True, page_size=16, full_tokens=1440),
    "drafted_mamba": Case(eagle=True, drafted=True, states=60, extra_buffer=True, page_size=16, full_tokens=1440, chunk=128),
    "drafted_swa": Case(eagle=True, drafted=True, window=31),
}
MISSES = MissSettings(memory_mib=64, log_s=0)
POLICIES = {
    "through": "write_through",
    "selective": "write_through_selective",
    "back": "write_back",
    "back_selective": "write_back_selective",
}
"""The write policies, as SGLang would spell them."""


def our_cache(
    pools: Pools,
    *,
    params: CacheInitParams | None = None,
    policy: str = "lru",
    write_policy: str | None = None,
    files: Path | None = None,
    host_ratio: float = 3.0,
    misses: MissSettings | None = MISSES,
    inspector: InspectorSettings | None = None,
    event_groups: bool = False,
    infers: bool = False,
    tenants: Tenants | None = None,
    arrives: bool = False,
) -> UnifiedTreeCache:
    """This library's cache; with a host tier if a write policy is named, with a store if a folder is.

    Args:
        params: SGLang's; None for those of the pools.
        misses: how causes of misses are kept; None for not at all.
        inspector: where the inspector's page is; None for none.
        event_groups: KV events tell of windows and states, too.
        infers, tenants, arrives: as in UnifiedTreeCache.
    """
    case, params = pools.case, params or pools.params
    builder = None
    if write_policy is not None:
        arguments = SimpleNamespace(
            hicache_size=0,
            hicache_ratio=host_ratio,
            hicache_write_policy=POLICIES[write_policy],
            hicache_storage_prefetch_policy="timeout",
            served_model_name="model",
            model_path="model",
            weight_version="1",
            speculative_draft_model_path="draft",
            dcp_size=case.division,
        )
        context: Any = SimpleNamespace(
            server_args=arguments,
            params=params,
            tp_rank=pools.rank,
            tp_size=pools.ranks,
            is_hybrid_swa=case.window is not None,
            is_hybrid_ssm=bool(case.states),
        )
        store = {"engine": "file", "directory": str(files), "capacity_bytes": 1 << 26, "prefetch": {"min_tokens": 16}}
        builder = TierBuilder(context, Settings.of({} if files is None else {"store": store}))
    return UnifiedTreeCache(
        params,
        policy,
        has_windows=case.window is not None,
        has_states=bool(case.states),
        state_grid_tokens=case.grid if case.extra_buffer else 1,
        tiers=builder,
        misses=misses,
        inspector=inspector,
        event_groups=event_groups,
        infers=infers,
        tenants=tenants,
        arrives=arrives,
    )
