"""Whether to load a prefix back from host or to compute it again."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.inputs.arguments import integer, number
from unified_tree.terms.errors import ConfigurationError

DEFAULT_BYTES_PER_S = 7e9
"""Layer by layer from page-contiguous host pages, as `python -m benches.transfers` measured it on two cores of an AMD EPYC. A
GPU's bus (PCIe 5) has five times that."""
DEFAULT_FLOPS_PER_S = 4e14
"""A round figure for dense bf16 prefill on one accelerator of the H100's kind; not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCost:
    """A cost model: seconds to load against seconds to compute.

    Attributes:
        bytes_per_s: bandwidth from host to device.
        latency_s: of a load, whatever its size.
        flops_per_s: throughput of a prefill.
        min_tokens: never load for fewer tokens than this.
    """

    bytes_per_s: float = DEFAULT_BYTES_PER_S
    latency_s: float = 50e-6
    flops_per_s: float = DEFAULT_FLOPS_PER_S
    min_tokens: int = 1

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "flops_per_s"):
            number(getattr(self, name), name, ConfigurationError, positive=True)
        number(self.latency_s, "latency_s", ConfigurationError)
        integer(self.min_tokens, "min_tokens", ConfigurationError)

    def prefers_load(self, *, tokens: int, flops: float, size_bytes: float) -> bool:
        """Whether loading `size_bytes` takes less time than the `flops` that computing `tokens` tokens would take.

        If the components declare no FLOPs, loading is always preferred.
        """
        if tokens < self.min_tokens:
            return False
        return flops == 0 or self.latency_s + size_bytes / self.bytes_per_s < flops / self.flops_per_s
