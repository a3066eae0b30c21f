"""The store behind the host tier of a replay: which engine, how much of it, and how fast it is taken to be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.pools.host_layout import TRAILER_BYTES
from unified_tree.controllers.storage.file.table_entry import ENTRY_BYTES
from unified_tree.controllers.storage.file.table_shape import BLOCK_BYTES, HEADER_BYTES, round_up
from unified_tree.controllers.storage_tier import PrefetchPolicy
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.controllers.storage.stored_pool import StoredPool
    from unified_tree.controllers.transfer_engines import VirtualClock

UNIX = "unix:"
BOUNDED = ("file", "memory")
"""Engines whose size the replay decides; others' servers have a size of their own."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """What all rows with a store have in common. Each row has a part of the store that no other row sees.

    Attributes:
        engine: its name.
        place: what stands behind the name: a directory, a server's address, or settings as a=b,c=d.
        size_bytes: how much it holds of pages of true size, of one rank; None for what its server holds.
        page_counts: pages by component that come to that; empty where there is no size.
        cost: what its calls take on the virtual clock.
        prefetch: when and how long requests wait for it.
    """

    engine: str
    place: str
    size_bytes: int | None
    page_counts: Mapping[str, int]
    cost: StorageCost = field(default_factory=StorageCost)
    prefetch: PrefetchPolicy = field(default_factory=PrefetchPolicy)

    @property
    def spec(self) -> str:
        """As it is given on the command line."""
        return f"{self.engine}:{self.place}" if self.place else self.engine

    def row_options(self, row: str, pools: Sequence[StoredPool], clock: VirtualClock) -> dict[str, Any]:
        """What the engine is opened with for one row; the same for the same row of a later replay.

        A file store evicts by the replay's clock: by the wall's, what goes first would depend on how fast this machine is. Of
        what an earlier replay left, values that it used later than now go first.

        Raises ConfigurationError for settings that are no a=b.
        """
        counts = self._value_counts(pools)
        match self.engine:
            case "file":
                capacity = {pool.name: table_bytes(counts[pool.name], pool.value_bytes) for pool in pools}
                directory = os.path.join(self.place, row)
                return {"directory": directory, "capacity_bytes": capacity, "clock_ns": lambda: clock.now + 1}  # 0 is no time
            case "memory":
                return {"capacity_bytes": sum(counts[pool.name] * pool.value_bytes for pool in pools)}
            case "mooncake":
                return {"master": self.place, "key_prefix": f"ut-{row}"}
            case "redis":
                address = self.place if not self.place.startswith("/") else UNIX + self.place
                return {"address": address, "key_prefix": f"ut-{row}"}
            case _:
                return settings_of(self.place)

    def _value_counts(self, pools: Sequence[StoredPool]) -> dict[str, int]:
        """Values by pool; as many restore points as the largest pool that is no path could have."""
        most = max(self.page_counts.values(), default=0)
        return {pool.name: self.page_counts.get(pool.name, most) for pool in pools}


def table_bytes(value_count: int, value_bytes: int) -> int:
    """The capacity that a file store divides into a table of so many values, or up to 31 fewer."""
    assert value_bytes > TRAILER_BYTES
    return HEADER_BYTES + BLOCK_BYTES + value_count * (round_up(value_bytes) + ENTRY_BYTES)


def settings_of(text: str) -> dict[str, Any]:
    """Settings by name from a=b,c=d; numbers as numbers. Raises ConfigurationError for what is no a=b."""
    settings: dict[str, Any] = {}
    for part in text.split(",") if text else []:
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier() or name in settings:
            raise ConfigurationError(f"--storage takes settings as a=b,c=d behind the engine's name, not {part!r}")
        settings[name] = _number_or_text(value)
    return settings


def _number_or_text(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
