"""The settings of a host tier: its size, the transfer engine, and when boundaries are copied there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from unified_tree.controllers.pages.block_tables import BlockTables
from unified_tree.inputs.arguments import flag, integer, number
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.transfer_engines import TransferEngine
    from unified_tree.declare.block_budget import BlockBudget


DEFAULT_BYTES_PER_S = 7e9
"""Layer by layer from page-contiguous host pages, as `python -m benches.transfers` measured it on two cores of an AMD EPYC. A
GPU's bus (PCIe 5) has five times that."""
DEFAULT_FLOPS_PER_S = 4e14
"""A round figure for dense bf16 prefill on one accelerator of the H100's kind; not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCost:
    """A cost model: seconds to load against seconds to compute.

    Attributes:
        bytes_per_s: bandwidth from host to device, of one rank.
        latency_s: of a load, whatever its size.
        flops_per_s: throughput of a prefill, of all ranks together.
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


class WritePolicy(Enum):
    """When a boundary (a length one can resume from) is copied to host: as soon as it is committed, after a few prompts have
    resumed there, or only when it may soon be evicted (see `IdleBoundaries`). The last one leaves prompts out where host memory
    is seldom read.
    """

    WRITE_THROUGH = "write-through"
    WRITE_THROUGH_SELECTIVE = "write-through-selective"
    WRITE_BACK = "write-back"
    WRITE_BACK_SELECTIVE = "write-back-selective"

    @property
    def is_late(self) -> bool:
        """Whether boundaries are copied when no request uses them any more."""
        return self in (WritePolicy.WRITE_BACK, WritePolicy.WRITE_BACK_SELECTIVE)


ENGINE_METHODS = ("submit", "poll", "wait_layer", "cancel", "wait", "drain", "close")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTier:
    """Settings of the host tier.

    Attributes:
        page_counts: host pages by component; one left out is unbounded. Components that share device pages have their own host
            pages.
        budget: the host's memory as one budget that all pools share, in place of `page_counts`.
        tables: give the budget's pages their blocks, of a `HostArena` or of memory that you lay out yourself. They serve one
            cache alone. None where nobody needs to know which blocks a page has.
        engine: moves the bytes, between the pools it was made for. It serves one cache alone, which closes it.
        device_page_counts: how many pages the engine's device pools have, by component; a `PrefixCache` with more of them, or
            with an unbounded number, raises ConfigurationError. Empty if that is not to be checked.
        write_policy: when boundaries are copied to host.
        selective_hits: with WRITE_THROUGH_SELECTIVE: how many matches must have ended in the boundary's node.
        low_water: with late copies: the least share of every device pool that is kept free, copied or needless, so
            that `allocate` can evict at once. More is kept while too many boundaries go before their copy.
        lost_share: with late copies: the share of boundaries that may go before their copy; with 0 the mark only rises.
        worth_share: with WRITE_BACK_SELECTIVE: where less than this share of what leaves host memory had been read there, new
            prompts are copied less often, so that the others stay longer. With a store all are.
        max_backup_share: the share of a device pool that backups may lock at a time.
        queue_limit: boundaries that may wait for their backup; with one more the oldest is dropped and counted in
            `CacheStats.drops`. `flush` waits for room instead. With late copies as many may be idle; with one more the oldest
            is copied.
        reclaim_limit: about how many invalidated nodes a poll removes.
        exclusive: evict those host pages first that were loaded back and are still on device.
        load_cost: decides whether loading is cheaper than computing.
    """

    engine: TransferEngine
    page_counts: Mapping[str, int] = field(default_factory=dict)
    device_page_counts: Mapping[str, int] = field(default_factory=dict)
    budget: BlockBudget | None = None
    tables: BlockTables | None = None
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    selective_hits: int = 2
    low_water: float = 0.1
    lost_share: float = 0.01
    worth_share: float = 0.5
    max_backup_share: float = 0.25
    queue_limit: int = 4096
    reclaim_limit: int = 64
    exclusive: bool = False
    load_cost: LoadCost = field(default_factory=LoadCost)

    def __post_init__(self) -> None:
        lacking = [name for name in ENGINE_METHODS if not callable(getattr(self.engine, name, None))]
        if lacking:
            raise ConfigurationError(
                f"engine must be a TransferEngine; {repr_of(self.engine)} has no method {', '.join(lacking)}"
            )
        if not isinstance(self.write_policy, WritePolicy):
            raise ConfigurationError(f"write_policy must be a WritePolicy, not {repr_of(self.write_policy)}")
        if not isinstance(self.load_cost, LoadCost):
            raise ConfigurationError(f"load_cost must be a LoadCost, not {repr_of(self.load_cost)}")
        if self.tables is not None and not isinstance(self.tables, BlockTables):
            raise ConfigurationError(f"tables must be BlockTables, not {repr_of(self.tables)}")
        if self.tables is not None and self.tables.budget != self.budget:
            raise ConfigurationError(f"tables must be those of the budget, {self.budget}, not of {self.tables.budget}")
        for field_name in ("page_counts", "device_page_counts"):
            given = getattr(self, field_name)
            if not isinstance(given, Mapping):
                raise ConfigurationError(f"{field_name} must be a mapping from components to pages, not {repr_of(given)}")
            counts = {
                name: integer(count, f"{field_name}[{repr_of(name)}]", ConfigurationError, minimum=1)
                for name, count in given.items()
            }
            self._set(field_name, counts)  # the caller's own mapping may change
        for name in ("selective_hits", "queue_limit", "reclaim_limit"):
            self._set(name, integer(getattr(self, name), name, ConfigurationError, minimum=1))
        for name in ("low_water", "lost_share", "worth_share", "max_backup_share"):
            share = number(getattr(self, name), name, ConfigurationError)
            if share > 1:
                raise ConfigurationError(f"{name} is a share from 0 to 1, not {share}")
            self._set(name, share)
        self._set("exclusive", flag(self.exclusive, "exclusive", ConfigurationError))

    def check_device(self, page_counts: Mapping[str, int], owners: Iterable[str]) -> None:
        """Raise ConfigurationError if a cache would use device pages that the engine's pools lack.

        Args:
            page_counts: of the cache, by component; one left out is unbounded.
            owners: the components with device pages of their own.
        """
        for name in owners:
            there, used = self.device_page_counts.get(name), page_counts.get(name)
            if there is not None and (used is None or used > there):
                asked = "an unbounded number of" if used is None else str(used)
                raise ConfigurationError(f"page_counts: {asked} device pages of {name!r}, but its device pool has {there}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
