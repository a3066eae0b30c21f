"""What a store's calls take in a replay, from stated numbers."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.errors import ConfigurationError

DEFAULT_GB_PER_S = 6.0
"""A round figure for one NVMe drive over PCIe 4, or a network of 50 Gbit/s; not measured."""
DEFAULT_LATENCY_US = 200.0
"""A round figure for a call, whatever its size; not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCost:
    """Seconds of a call.

    Attributes:
        bytes_per_s: of reads, and of writes, which do not slow each other down.
        latency_s: of every call, on top; the latencies of several calls pass at the same time.
    """

    bytes_per_s: float = DEFAULT_GB_PER_S * 1e9
    latency_s: float = DEFAULT_LATENCY_US * 1e-6

    def __post_init__(self) -> None:
        if not (self.bytes_per_s > 0 and 0 <= self.latency_s <= 1e6):
            raise ConfigurationError(f"a store's rate must be positive, its latency from zero to 1e6 s: {self}")
