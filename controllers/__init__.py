"""The parts that a serving engine uses: the prefix cache, and what moves pages between tiers.

Start at `PrefixCache`: a scheduler acquires a `Lease` for each request, and allocates, commits and releases through it.
`HostTier` puts host memory behind the device, `storage_tier.StorageTier` a store behind that. The rooms, each of which imports
only rooms named before it:

- `ranks`, `counters`, `pages`: the consensus of tensor-parallel ranks; counters and observers; page allocators.
- `pools`: device and host pools, page formats, sizes.
- `storage`: stores of pages behind one protocol.
- `transfer_engines`: engines that move bytes between device and host. `NullEngine` needs no torch.
- `host`, `weights`: the host tier with its settings; weights versions.
- `storage_tier`: prefetches from a store, and writes to it.
- `tiers`: `tensor_tiers`, which allocates tensor pools for a composition.
- `cache`: PrefixCache, leases, statistics, metrics, spans.
- `prefix_linker`: links to prefix caches elsewhere, such as LMCache.
- `debugging`: tools to find a wrong hit.
- `doctor`, `inspector`: what costs most hits; a read-only web page on a running cache, or on a recording of one.
- `adapters`: this cache inside SGLang and vLLM, and LMCache as a linker. Each imports its engine, and nothing else does.
- `testing`: contract checks and simulated parts.
- `workbench`: replay, sizing and the certified optimum, on a virtual clock.
- `cli`: the command `unified-tree`.

Importing this package needs no torch. docs/embedding.md shows the calls of a scheduler's step.
"""

if __name__ != "unified_tree.controllers":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.controllers, not as {__name__}")

from typing import TYPE_CHECKING, Any

from unified_tree.controllers.cache import (
    CacheLayout,
    CacheStats,
    DecodeBatch,
    Generation,
    HostPoolStats,
    Lease,
    PoolStats,
    PrefixCache,
    StateCopy,
    TransferStats,
)
from unified_tree.controllers.host import HostTier, LoadCost, WritePolicy
from unified_tree.controllers.pages.page_allocator import PageAllocator

if TYPE_CHECKING:
    from unified_tree.controllers.cache import CacheCollector, RequestSpans
    from unified_tree.controllers.tiers import TensorTiers, tensor_tiers

__all__ = [
    "CacheLayout",
    "CacheStats",
    "DecodeBatch",
    "Generation",
    "HostPoolStats",
    "HostTier",
    "Lease",
    "LoadCost",
    "PageAllocator",
    "PoolStats",
    "PrefixCache",
    "StateCopy",
    "TransferStats",
    "WritePolicy",
]
if TYPE_CHECKING:
    __all__ += [
        "CacheCollector",
        "RequestSpans",
        "TensorTiers",
        "tensor_tiers",
    ]  # not without extras: a star import would fail


def __getattr__(name: str) -> Any:
    if name in ("CacheCollector", "RequestSpans"):  # need prometheus_client, opentelemetry-api
        from unified_tree.controllers import cache

        return getattr(cache, name)
    if name in ("TensorTiers", "tensor_tiers"):  # need torch
        from unified_tree.controllers import tiers

        return getattr(tiers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
