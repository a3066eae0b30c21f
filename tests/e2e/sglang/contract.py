"""The interface of SGLang that the backend relies on, against its sources: `python tests/e2e/sglang/contract.py SOURCE`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from engine_interface import Interface

ROOT = Path(__file__).parents[3]
MEMORY = "sglang/srt/mem_cache"
FIELDS = "sglang/srt/arg_groups/fields"
FLAGS = {
    "disagg": ("Disagg",),
    "exec_": ("ExecMamba",),
    "lora": ("Lora",),
    "memory": ("Memory",),
    "model": ("Model",),
    "parallel": ("Parallel",),
    "schedule": ("Schedule",),
    "spec": ("Spec",),
}
"""The groups of SGLang's options among which those are that concern a cache, and the states that a model computes."""
INTERFACE = Interface(
    engine="SGLang",
    package="sglang",
    adapter=ROOT / "controllers" / "adapters" / "sglang",
    record=Path(__file__).with_name("contract.json"),
    classes={
        f"{MEMORY}/base_prefix_cache.py": (
            "BasePrefixCache",
            "EvictParams",
            "EvictResult",
            "InitLoadBackParams",
            "MatchPrefixParams",
            "MatchResult",
            "TreeLock",
        ),
        f"{MEMORY}/registry.py": ("TreeCacheBuildContext",),
        f"{MEMORY}/cache_init_params.py": ("CacheInitParams",),
        f"{MEMORY}/radix_cache.py": ("RadixKey",),
        f"{MEMORY}/events.py": ("KVCacheEventRecorder", "KvEventLoraNames"),
        "sglang/srt/disaggregation/kv_events.py": ("BlockStored", "BlockRemoved"),
        f"{MEMORY}/allocator/base.py": ("BaseTokenToKVPoolAllocator",),
        f"{MEMORY}/allocator/token.py": ("TokenToKVPoolAllocator",),
        f"{MEMORY}/allocator/paged.py": ("PagedTokenToKVPoolAllocator",),
        f"{MEMORY}/allocator/swa.py": ("SWATokenToKVPoolAllocator",),
        f"{MEMORY}/allocator/mamba.py": ("MambaSlotAllocator",),
        "sglang/srt/lora/lora_registry.py": ("LoRARef",),
        "sglang/srt/managers/cache_controller.py": ("LayerDoneCounter",),
        "sglang/srt/model_executor/model_runner.py": ("ModelRunner",),
        **{f"{FIELDS}/{file}.py": names for file, names in FLAGS.items()},
        f"{MEMORY}/memory_pool.py": (
            "DSATokenToKVPool",
            "HybridReqToTokenPool",
            "MHATokenToKVPool",
            "MHATokenToKVPoolFP4",
            "MHATokenToKVPoolMXFP8",
            "MLATokenToKVPool",
            "MLATokenToKVPoolFP4",
            "MambaPool",
            "ReqToTokenPool",
        ),
    },
    functions={
        f"{MEMORY}/kv_cache_builder.py": ("maybe_register_hicache_draft",),
        f"{MEMORY}/registry.py": ("register_radix_cache_backend", "default_radix_cache_factory"),
        "sglang/srt/disaggregation/kv_events.py": ("kv_event_namespace_seed", "namespaced_block_hash"),
        "sglang/srt/runtime_context.py": ("get_lora", "get_parallel", "mamba_checkpoint_grid"),
    },
    base="BasePrefixCache",
    extended=frozenset(("BasePrefixCache",)),
    whole=frozenset(("CacheInitParams", "LayerDoneCounter", "MatchResult", "TreeCacheBuildContext")),
    constructed=frozenset(("KVCacheEventRecorder",)),
    positional=frozenset(("EvictResult",)),
    listed=frozenset(name for names in FLAGS.values() for name in names),
)

if __name__ == "__main__":
    sys.exit(INTERFACE.main())
