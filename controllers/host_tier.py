"""How a cache uses host memory: how much of it, what moves the bytes, what is copied there and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from unified_tree.controllers.load_cost import LoadCost
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.transfer_engines import TransferEngine


class WritePolicy(Enum):
    """When a boundary is copied to host: as soon as it is committed, once prompts have gone on from it a few times, or
    only when it is about to be evicted."""

    WRITE_THROUGH = "write-through"
    WRITE_THROUGH_SELECTIVE = "write-through-selective"
    WRITE_BACK = "write-back"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTier:
    """Settings of the host tier.

    Attributes:
        page_counts: host pages by component; one left out is unbounded. Components that share device pages have host
            pages of their own.
        engine: moves the bytes, between the pools it was made for; the cache closes it.
        write_policy: when boundaries are copied to host.
        selective_hits: with WRITE_THROUGH_SELECTIVE: how many prompts must have ended in the boundary's node.
        low_water: with WRITE_BACK: the share of every device pool that is kept free or copied, so that `allocate` can
            drop pages at once.
        most_backed_up: the share of a device pool that backups may pin at a time.
        exclusive: evict host pages first that were loaded back and are still on device.
        load_cost: whether loading is cheaper than computing.
    """

    page_counts: Mapping[str, int]
    engine: TransferEngine
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    selective_hits: int = 2
    low_water: float = 0.1
    most_backed_up: float = 0.25
    exclusive: bool = False
    load_cost: LoadCost = field(default_factory=LoadCost)

    def __post_init__(self) -> None:
        if not isinstance(self.write_policy, WritePolicy):
            raise ConfigurationError(f"write_policy must be a WritePolicy, not {self.write_policy!r}")
        if self.selective_hits < 1:
            raise ConfigurationError(f"selective_hits must be one or more, not {self.selective_hits}")
        for name in ("low_water", "most_backed_up"):
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise ConfigurationError(f"{name} is a share from 0 to 1, not {share}")
