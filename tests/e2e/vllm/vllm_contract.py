"""The interface of vLLM that the connector relies on, against its sources: `python tests/e2e/vllm/vllm_contract.py SOURCE`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from engine_interface import Interface

ROOT = Path(__file__).parents[3]
CONNECTORS = "vllm/distributed/kv_transfer/kv_connector/v1"
INTERFACE = Interface(
    engine="vLLM",
    package="vllm",
    adapter=ROOT / "controllers" / "adapters" / "vllm",
    record=Path(__file__).with_name("contract.json"),
    classes={
        f"{CONNECTORS}/base.py": (
            "KVConnectorBase_V1",
            "KVConnectorHandshakeMetadata",
            "KVConnectorMetadata",
            "KVConnectorRole",
            "KVConnectorTransferResults",
            "KVConnectorWorkerMetadata",
            "SupportsHMA",
        ),
        f"{CONNECTORS}/metrics.py": ("KVConnectorPromMetrics", "KVConnectorStats"),
        "vllm/distributed/kv_events.py": ("AllBlocksCleared", "BlockRemoved", "BlockStored"),
        "vllm/distributed/parallel_state.py": ("GroupCoordinator",),
        "vllm/device_allocator/__init__.py": ("AllocationData", "MemAllocator"),
        "vllm/device_allocator/cumem.py": ("CuMemAllocator",),
        "vllm/device_allocator/sleep_mode_backend.py": ("SleepModeBackend",),
        "vllm/v1/core/kv_cache_manager.py": ("KVCacheBlocks",),
        "vllm/v1/core/sched/output.py": ("KVConnectorBlockState", "SchedulerOutput"),
        "vllm/v1/kv_cache_interface.py": (
            "FullAttentionSpec",
            "KVCacheConfig",
            "KVCacheGroupSpec",
            "MambaSpec",
            "MLAAttentionSpec",
            "SlidingWindowSpec",
            "UniformTypeKVCacheSpecs",
        ),
        "vllm/v1/metrics/cache_hit_source.py": ("CacheHitSource",),
        "vllm/v1/outputs.py": ("KVConnectorOutput",),
        "vllm/v1/request.py": ("Request",),
        "vllm/lora/request.py": ("LoRARequest",),
        "vllm/multimodal/inputs.py": ("MultiModalFeatureSpec", "PlaceholderRange"),
        "vllm/config/kv_transfer.py": ("KVTransferConfig",),
        "vllm/config/speculative.py": ("SpeculativeConfig",),
        "vllm/config/offload.py": ("OffloadConfig", "PrefetchOffloadConfig", "UVAOffloadConfig"),
    },
    functions={
        "vllm/device_allocator/__init__.py": ("get_mem_allocator_instance",),
        "vllm/distributed/parallel_state.py": (
            "get_pp_group",
            "get_tensor_model_parallel_rank",
            "get_tensor_model_parallel_world_size",
        ),
        "vllm/distributed/kv_events.py": ("MEDIUM_CPU",),
        "vllm/logger.py": ("init_logger",),
        "vllm/v1/core/kv_cache_utils.py": ("maybe_convert_block_hash", "hash_block_tokens", "init_none_hash"),
        "vllm/v1/kv_cache_interface.py": ("get_kv_cache_spec_kind",),
    },
    base="KVConnectorBase_V1",
    extended=frozenset(
        {
            "KVConnectorBase_V1",
            "KVConnectorHandshakeMetadata",
            "KVConnectorMetadata",
            "KVConnectorPromMetrics",
            "KVConnectorStats",
            "KVConnectorWorkerMetadata",
            "SupportsHMA",
        }
    ),
    whole=frozenset(("AllocationData", "BlockStored", "KVConnectorBlockState", "KVConnectorTransferResults")),
    constructed=frozenset(("KVConnectorBase_V1",)),
)

if __name__ == "__main__":
    sys.exit(INTERFACE.main())
