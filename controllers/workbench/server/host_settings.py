"""The host tier of a replay: how much of it, when it is written, and how fast the bus to it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unified_tree.controllers.host.host_tier import WritePolicy
from unified_tree.controllers.host.load_cost import LoadCost
from unified_tree.errors import ConfigurationError

DEFAULT_GB_PER_S = 25.0
"""A round figure for pinned copies over PCIe 4 with 16 lanes; not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """What all rows with a host tier have in common.

    Attributes:
        page_counts: host pages by component.
        size_bytes: what they were split from, of one rank.
        write_policy: when boundaries are copied to host.
        load_cost: whether loading beats computing; its rate is also that of the simulated bus, each way.
    """

    page_counts: Mapping[str, int]
    size_bytes: int
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    load_cost: LoadCost = field(default_factory=lambda: LoadCost(bytes_per_s=DEFAULT_GB_PER_S * 1e9))

    def __post_init__(self) -> None:
        if not self.page_counts:
            raise ConfigurationError("a host tier needs page_counts")
