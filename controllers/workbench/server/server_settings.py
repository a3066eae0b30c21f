"""The settings of a simulated server: its speed and load, and the host tier, store and linker behind its cache."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.host.host_tier import LoadCost, WritePolicy
from unified_tree.controllers.pools.host_layout import TRAILER_BYTES
from unified_tree.controllers.storage.file.table_entry import ENTRY_BYTES
from unified_tree.controllers.storage.file.table_index import BLOCK_BYTES, HEADER_BYTES, round_up
from unified_tree.controllers.storage_tier import PrefetchPolicy
from unified_tree.controllers.workbench.traces.trace_records import number_or_text
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unified_tree.controllers.pools import DevicePool
    from unified_tree.controllers.prefix_linker import LinkedPool, PrefixLinker
    from unified_tree.controllers.storage.storage_engine import StoredPool
    from unified_tree.controllers.transfer_engines import VirtualClock

UNIX = "unix:"
BOUNDED = ("file", "memory")
"""Engines whose size the replay decides; others' servers have a size of their own."""


STORE_GB_PER_S = 6.0
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

    bytes_per_s: float = STORE_GB_PER_S * 1e9
    latency_s: float = DEFAULT_LATENCY_US * 1e-6

    def __post_init__(self) -> None:
        if not (self.bytes_per_s > 0 and 0 <= self.latency_s <= 1e6):
            raise ConfigurationError(f"a store's rate must be positive, its latency from zero to 1e6 s: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """The settings that all rows with a store share. Each row has a part of the store that no other row sees.

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
        most = max(self.page_counts.values(), default=0)  # restore points: as many as the largest pool could have
        counts = {pool.name: self.page_counts.get(pool.name, most) for pool in pools}
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
        settings[name] = number_or_text(value)
    return settings


DAEMON = "lmcache"
IN_PROCESS = "lmcache-in-process"
LINKERS = (DAEMON, IN_PROCESS)
"""Names that --storage takes for what is no storage engine but finds prefixes and fills device pages itself."""
MODEL_CHARACTERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkerSettings:
    """The settings that all rows with a linker share. A row finds only its own prefixes, of this replay or an earlier one.

    Attributes:
        name: one of LINKERS.
        place: what stands behind the name: a daemon's address, a file of LMCache's own settings, or settings as a=b,c=d; with
            nothing there the linker looks where it does without a replay, in a file and in the environment.
        cost: what lookups and transfers take on the virtual clock.
        prefetch: how long requests wait for it; its sizes mean nothing here.
    """

    name: str
    place: str
    cost: StorageCost = field(default_factory=StorageCost)
    prefetch: PrefetchPolicy = field(default_factory=PrefetchPolicy)

    @property
    def spec(self) -> str:
        """As it is given on the command line."""
        return f"{self.name}:{self.place}" if self.place else self.name

    @property
    def is_daemon(self) -> bool:
        """Whether another process maps the device pools."""
        return self.name == DAEMON

    def options(self, model: str) -> dict[str, Any]:
        """What the linker is opened with; the model's name is this one if none is given.

        Raises ConfigurationError for settings that are no a=b.
        """
        given = {"model": re.sub(r"[^A-Za-z0-9._-]", "-", f"replay-{model}")[:MODEL_CHARACTERS]}
        if "=" in self.place:
            return given | settings_of(self.place)
        if self.place:
            given["daemon" if self.is_daemon else "engine_file"] = self.place
        return given

    def prepare(self, pools: Mapping[str, DevicePool]) -> None:
        """Put the device pools where the peer can reach them, before anything takes a view of them."""
        if self.is_daemon:
            from unified_tree.controllers.adapters.lmcache import share_pools

            share_pools(pools)

    def open(self, pools: Sequence[LinkedPool], model: str) -> PrefixLinker:
        """A linker over these pools. Raises ConfigurationError and LinkError as the linker does."""
        from unified_tree.controllers.adapters.lmcache import open_daemon, open_in_process

        return (open_daemon if self.is_daemon else open_in_process)(pools, **self.options(model))


HOST_GB_PER_S = 25.0
"""A round figure for pinned copies over PCIe 4 with 16 lanes; not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The settings that all rows with a host tier share.

    Attributes:
        page_counts: host pages by component.
        size_bytes: what they were split from, of one rank.
        write_policy: when boundaries are copied to host.
        load_cost: whether loading beats computing; its rate is also that of the simulated bus, each way.
    """

    page_counts: Mapping[str, int]
    size_bytes: int
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    load_cost: LoadCost = field(default_factory=lambda: LoadCost(bytes_per_s=HOST_GB_PER_S * 1e9))

    def __post_init__(self) -> None:
        if not self.page_counts:
            raise ConfigurationError("a host tier needs page_counts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How the server runs.

    Attributes:
        concurrency: requests running at once, at most.
        chunk_tokens: prompt tokens a step computes.
        step_ms: milliseconds a step takes.
        prefill_flops_per_s: what the hardware computes of prompts, all ranks together, and then no step computes more of them;
            None for `chunk_tokens` whatever they cost.
        time_scale: arrival times are multiplied by it; 0.5 is twice the load, 0 has every request arrive at once.
        names_sessions: whether requests carry the trace's sessions, which end with their last turn and are retained between.
    """

    concurrency: int = 32
    chunk_tokens: int = 8192
    step_ms: float = 20.0
    time_scale: float = 1.0
    prefill_flops_per_s: float | None = None
    names_sessions: bool = False

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.chunk_tokens < 1:
            raise ConfigurationError(
                f"concurrency and chunk_tokens must be one or more: {self.concurrency}, {self.chunk_tokens}"
            )
        if not 1e-3 <= self.step_ms <= 1e9:
            raise ConfigurationError(f"step_ms must be from 0.001 to 1e9, not {self.step_ms}")
        if self.prefill_flops_per_s is not None and not 1e3 <= self.prefill_flops_per_s <= 1e24:
            raise ConfigurationError(f"prefill_flops_per_s must be from 1e3 to 1e24, not {self.prefill_flops_per_s}")
        if not 0 <= self.time_scale <= 1e9:
            raise ConfigurationError(f"time_scale must be from 0 to 1e9, not {self.time_scale}")
