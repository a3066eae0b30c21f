"""Transfer engines, which move pages between device and host: on a CPU thread, on CUDA streams, or as bookkeeping only.

Start with `HostTier(engine=...)`. A host tier needs no torch: `NullEngine` tracks page ids and moves no bytes; `CpuEngine`
moves the bytes of any `PageMover`, numpy arrays included; `unified_tree.controllers.testing.SimulatedEngine` does either in
virtual time, by a seed. Your own engine implements `TransferEngine`.

>>> from unified_tree import Component, Key, Path
>>> from unified_tree.controllers import HostTier, PrefixCache
>>> full = Component(name="full", coverage=Path())
>>> cache = PrefixCache([full], 2, {"full": 8}, host=HostTier(page_counts={"full": 32}, engine=NullEngine()))
>>> with cache.acquire(Key([1, 2, 3, 4, 5])) as lease:
...     cache.allocate(lease, 5)
...     cache.commit(lease, [1, 2, 3, 4, 5])
>>> cache.drain()
>>> cache.stats().host_pools["full"].tree
2
>>> cache.close()
"""

from typing import TYPE_CHECKING, Any

from unified_tree.controllers.transfer_engines.cpu_engine import CpuEngine
from unified_tree.controllers.transfer_engines.cuda_engine import CudaEngine
from unified_tree.controllers.transfer_engines.null_engine import NullEngine
from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer, TransferEngine
from unified_tree.controllers.transfer_engines.virtual_clock import VirtualClock
from unified_tree.nodes.effect import Copy, EffectKind

if TYPE_CHECKING:
    from unified_tree.controllers.transfer_engines.cuda_lane import cuda_lanes

__all__ = [
    "Completion",
    "Copy",
    "CpuEngine",
    "CudaEngine",
    "EffectKind",
    "NullEngine",
    "Transfer",
    "TransferEngine",
    "VirtualClock",
]
if TYPE_CHECKING:
    __all__ += ["cuda_lanes"]  # not without extras: a star import would fail


def __getattr__(name: str) -> Any:
    if name == "cuda_lanes":  # needs torch
        from unified_tree.controllers.transfer_engines.cuda_lane import cuda_lanes

        return cuda_lanes
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
