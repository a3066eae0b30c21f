"""What was given on the command line, as the settings of a plan."""

from __future__ import annotations

import os
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from unified_tree.components import composition_for, from_hf_config
from unified_tree.controllers.cli.options import (
    ALL_POLICIES,
    COMPARED_POLICIES,
    DEFAULT_MODEL,
    LEARNED,
    MULTITURN_COUNTS,
    SIZE_RATIO,
)
from unified_tree.controllers.host.host_tier import DEFAULT_FLOPS_PER_S, LoadCost, WritePolicy
from unified_tree.controllers.pools import propose_page_counts
from unified_tree.controllers.pools.host_layout import host_page_bytes
from unified_tree.controllers.storage import StorageRegistry
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy
from unified_tree.controllers.workbench.report.output_files import OutputFiles
from unified_tree.controllers.workbench.runs.plan import GIB, Plan, split_for_server
from unified_tree.controllers.workbench.server.server_settings import (
    BOUNDED,
    DEFAULT_LATENCY_US,
    HOST_GB_PER_S,
    LINKERS,
    STORE_GB_PER_S,
    HostSettings,
    LinkerSettings,
    ServerSettings,
    StorageCost,
    StorageSettings,
)
from unified_tree.controllers.workbench.server.verified_pages import Verification
from unified_tree.controllers.workbench.traces.synthetic import (
    MULTITURN,
    MultiturnOptions,
    SyntheticOptions,
    multiturn_workload,
    synthetic_workload,
)
from unified_tree.controllers.workbench.traces.trace import TraceOptions, read_trace
from unified_tree.controllers.workbench.traces.workload import isolated, mixed
from unified_tree.declare.tenants import TenantGroup, Tenants
from unified_tree.policies.table import POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unified_tree.components import Composition
    from unified_tree.controllers.workbench.traces.workload import Workload

MAX_PAGES = 1 << 32
PLACES = {"file": "file:DIR", "mooncake": "mooncake:HOST:PORT", "redis": "redis:HOST:PORT or redis:/SOCKET"}
OF_HOST = {"host_pages_text": "--host-pages", "write_policy": "--write-policy", "host_gb_per_s": "--host-gb-per-s"}
OF_STORAGE = ("storage_gib", "storage_gb_per_s", "storage_latency_us", "prefetch")


class Arguments:
    """The options by name. What they say together is checked where it is asked for: click.UsageError, ConfigurationError."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    def _or(self, name: str, default: Any) -> Any:
        value = self._given[name]
        return default if value is None else value

    @property
    def files(self) -> OutputFiles:
        """The files to write."""
        return OutputFiles(**{field.name: self._given[f"{field.name}_path"] for field in fields(OutputFiles)})

    @property
    def policies(self) -> list[str]:
        """The eviction policies, all that are built in if none was given."""
        named = [name.strip() for text in self._given["policies"] for name in text.split(",")] or COMPARED_POLICIES
        return [policy for name in named for policy in (POLICIES if name == ALL_POLICIES else [name])]

    @property
    def jobs(self) -> int | None:
        """Rows at once; None for as many as there are cores."""
        jobs: int | None = self._given["jobs"]
        return jobs

    @cached_property
    def composition(self) -> Composition:
        """The model, from --config or --model."""
        given = self._given
        if given["config"] is not None and given["model"] is not None:
            raise click.UsageError("give --config or --model, not both")
        choices = {
            "page_size": given["page_size"],
            "tensor_parallel": given["tp"],
            "kv_dtype": given["kv_dtype"],
            "draft": given["draft"],
            "ignore": tuple(given["ignore"] or ()),
        }
        if given["config"] is not None:
            return from_hf_config(given["config"], **choices)
        return composition_for(self._or("model", DEFAULT_MODEL), **choices)

    @cached_property
    def settings(self) -> ServerSettings:
        """The server."""
        names = ("concurrency", "chunk_tokens", "step_ms", "time_scale")
        return ServerSettings(
            prefill_flops_per_s=self._prefill_flops(),
            names_sessions=bool(self._given["sessions"]),
            **{name: self._given[name] for name in names},
        )

    def _prefill_flops(self) -> float | None:
        """FLOP/s of all ranks together; None where latency is not modelled."""
        tflops = self._given["prefill_tflops"]
        if tflops is None:
            return DEFAULT_FLOPS_PER_S * float(self._given["tp"]) if self._is_multiturn else None
        return float(tflops) * 1e12

    @property
    def learns_pages(self) -> bool:
        """Whether the device's split is to be learned from the workload."""
        return str(self._given["pages_text"]) == LEARNED

    @property
    def _pages(self) -> dict[str, int]:
        """The device's pages that were given."""
        return {} if self.learns_pages else parse_pages(self._given["pages_text"], "--pages")

    @cached_property
    def page_counts(self) -> dict[str, int]:
        """Device pages by pool."""
        pages = self._pages
        return split_for_server(self.composition, self.device_bytes, self.settings, pages)

    @property
    def device_bytes(self) -> int:
        """What the device pages are split from; pools that were all given need no budget."""
        pages, page_bytes = self._pages, self.composition.pool_page_bytes()
        if set(pages) == set(page_bytes):
            return sum(count * page_bytes[name] for name, count in pages.items())
        return int(self._given["device_gib"] * GIB)

    @cached_property
    def host(self) -> HostSettings | None:
        """The host tier asked for; None for none."""
        host_gib, pages = self._given["host_gib"], parse_pages(self._given["host_pages_text"], "--host-pages")
        names = {component.name for component in self.composition.components}
        if host_gib is None and set(pages) != names:
            for name, option in OF_HOST.items():
                if self._given[name] is not None:
                    pools = ", ".join(sorted(names))
                    raise click.UsageError(f"{option} needs a host tier: give --host-gib, or --host-pages for all of {pools}")
            return None
        size_bytes = int(host_gib * GIB) if host_gib is not None else 0
        if set(pages) == names:
            size_bytes = sum(pages[c.name] * host_page_bytes(c.page_bytes) for c in self.composition.components)
        return HostSettings(
            page_counts=propose_page_counts(self.composition, host_bytes=size_bytes, page_counts=pages),
            size_bytes=size_bytes,
            write_policy=WritePolicy(self._or("write_policy", WritePolicy.WRITE_THROUGH)),
            load_cost=LoadCost(
                bytes_per_s=self._or("host_gb_per_s", HOST_GB_PER_S) * 1e9,
                flops_per_s=self._prefill_flops() or DEFAULT_FLOPS_PER_S * self._given["tp"],
            ),
        )

    @property
    def _engine(self) -> tuple[str, str]:
        """The name and place of --storage; empty ones without it."""
        name, _, place = self._or("storage", "").partition(":")
        return name, place

    @property
    def storage(self) -> StorageSettings | None:
        """The store asked for; None for none."""
        engine, place = self._engine
        if not engine:
            for name in OF_STORAGE:
                if self._given[name] is not None:
                    raise click.UsageError(f"--{name.replace('_', '-')} needs a store: give --storage")
            return None
        gib = self._given["storage_gib"]
        is_bounded = engine in BOUNDED
        if gib is not None and not is_bounded:
            raise click.UsageError(f"--storage-gib is for {' and '.join(BOUNDED)}; how much {engine} holds is its own business")
        if engine in LINKERS:
            return None
        if self.host is None:
            raise click.UsageError("--storage needs a host tier before it: give --host-gib")
        known = StorageRegistry().names
        if engine not in known:
            names = ", ".join((*known, *LINKERS))
            raise click.UsageError(f"--storage: no storage engine is called {engine!r}; known are {names}")
        if engine in PLACES and not place:
            raise click.UsageError(f"--storage: say where it is: {PLACES[engine]}")
        size_bytes = SIZE_RATIO * self.host.size_bytes if gib is None else int(gib * GIB)
        return StorageSettings(
            engine=engine,
            place=place,
            size_bytes=size_bytes if is_bounded else None,
            page_counts=propose_page_counts(self.composition, host_bytes=size_bytes) if is_bounded else {},
            cost=self._storage_cost,
            prefetch=self._prefetch,
        )

    @property
    def linker(self) -> LinkerSettings | None:
        """The prefix linker asked for; None for none."""
        name, place = self._engine
        if name not in LINKERS:
            return None
        return LinkerSettings(name=name, place=place, cost=self._storage_cost, prefetch=self._prefetch)

    @property
    def _storage_cost(self) -> StorageCost:
        return StorageCost(
            bytes_per_s=self._or("storage_gb_per_s", STORE_GB_PER_S) * 1e9,
            latency_s=self._or("storage_latency_us", DEFAULT_LATENCY_US) * 1e-6,
        )

    @property
    def _prefetch(self) -> PrefetchPolicy:
        return PrefetchPolicy(mode=PrefetchMode(self._or("prefetch", PrefetchPolicy().mode)))

    @property
    def verification(self) -> Verification:
        """How much is verified."""
        if self._given["verify_full_bytes"]:
            return Verification.FULL
        return Verification.SHRUNK if self._given["verify"] else Verification.OFF

    @property
    def _shares_pools(self) -> bool:
        """Whether there are rows whose pools share memory."""
        shares = bool(self._given["shared_pools"])
        if shares and self.verification is Verification.FULL:
            raise click.UsageError("--shared-pools: true page sizes would need all memory for every pool; give --verify")
        return shares

    @property
    def _is_multiturn(self) -> bool:
        return str(self._given["trace"]) == MULTITURN

    @property
    def trace_bytes(self) -> int | None:
        """The size of the trace's file; None where that does not say how much there is to read."""
        path = self._given["trace"]
        return os.path.getsize(path) if path is not None and os.path.isfile(path) and not self._given["requests"] else None

    def tenants(self, workload: Workload) -> Tenants | None:
        """A group for each --tenant and each tenant of the trace's lines, with its --floor; None without any."""
        after = self._given.get("share_after")
        floors = dict(_named(text, "--floor") for text in self._given.get("floors") or ())
        names = list(dict.fromkeys(request.namespace for request in workload.requests if request.namespace))
        unknown = [name for name in floors if name not in names]
        if unknown:
            raise click.UsageError(f"--floor: there is no tenant {unknown[0]}")
        if after is not None and len(names) <= after:
            raise click.UsageError(
                f"--share-after {after} needs more tenants than {after}; the trace's lines name {len(names)}"
            )
        try:
            shares = {name: float(floor) for name, floor in floors.items()}
        except ValueError as error:
            raise click.UsageError(f"--floor: {error}") from error
        if not names:
            return None
        groups = [TenantGroup(name=n, namespaces=(n,), floor=shares.get(n, 0.0), shares=after is not None) for n in names]
        return Tenants(groups=tuple(groups), share_after=after)

    def workload(self, progress: Callable[[int], None] | None = None) -> Workload:
        """The workload to replay: the named trace or a built-in one, and the tenants'; `progress` as of `read_trace`."""
        texts, shares = self._given.get("tenants") or (), self._given.get("share_after") is not None
        given = dict(_named(text, "--tenant") for text in texts)
        if len(given) < len(texts):
            raise click.UsageError("--tenant: two have one name")
        if given and shares:
            raise click.UsageError(
                "--share-after: blocks of two files are never the same; name the tenant in the trace's lines"
            )
        workload = self._own_workload(progress)
        if not given:
            return workload if shares else isolated(workload)
        return mixed({"": workload, **{name: read_trace(path, self._trace_options) for name, path in given.items()}})

    @property
    def _trace_options(self) -> TraceOptions:
        given = self._given
        return TraceOptions(
            block_tokens=given["block_size"],
            max_requests=given["requests"],
            **{name: given[name] for name in ("session_gap_s", "seed", "clock_unit", "sub_agent_clock", "tokenizer")},
        )

    def _own_workload(self, progress: Callable[[int], None] | None = None) -> Workload:
        """The workload to replay: the trace named, or a built-in one; `progress` as of `read_trace`."""
        given = self._given
        counts = {name: given[name] for name in MULTITURN_COUNTS if given[name] is not None}
        if self._is_multiturn:
            return multiturn_workload(MultiturnOptions(**counts))
        for name in counts:
            raise click.UsageError(f"--{name.replace('_', '-')} is for the built-in workload: replay {MULTITURN}")
        requests, seed = given["requests"], given["seed"]
        if given["trace"] is None:
            return synthetic_workload(SyntheticOptions(request_count=requests or SyntheticOptions().request_count, seed=seed))
        return read_trace(given["trace"], self._trace_options, progress)

    def plan(self, progress: Callable[[int], None] | None = None) -> Plan:
        """All of it; `progress` as of `read_trace`."""
        return Plan(
            composition=self.composition,
            device_bytes=self.device_bytes,
            settings=self.settings,
            host=self.host,
            storage=self.storage,
            linker=self.linker,
            shares_pools=self._shares_pools,
            verification=self.verification,
            certify=self._given["certify"],
            workload=(workload := self.workload(progress)),  # last, for it may take a while
            tenants=self.tenants(workload),
        )


def _named(text: str, option: str) -> tuple[str, str]:
    """NAME=WHAT. Raises click.UsageError for anything else."""
    name, equals, what = text.partition("=")
    if not (name and equals and what):
        raise click.UsageError(f"{option} must be NAME=…, not {text!r}")
    return name, what


def parse_pages(text: str | None, option: str) -> dict[str, int]:
    """Page counts by name from `full=4096,swa=512`; none from None. Raises click.BadParameter naming the option."""
    pages: dict[str, int] = {}
    for part in text.split(",") if text else []:
        name, equals, count = part.strip().partition("=")
        if not equals or not count.isdecimal() or name in pages or int(count) > MAX_PAGES:
            raise click.BadParameter(f"must be pool=pages, each pool once: {part!r}", param_hint=option)
        pages[name] = int(count)
    return pages
