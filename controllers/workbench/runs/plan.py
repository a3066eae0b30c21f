"""What is replayed: what all rows of a report have in common, and which rows there are."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING

from unified_tree.controllers.pools import host_budget
from unified_tree.controllers.pools.host_layout import host_page_bytes
from unified_tree.controllers.workbench.server.page_store import raw_layers
from unified_tree.controllers.workbench.server.verified_pages import Verification
from unified_tree.declare.block_budget import BlockBudget
from unified_tree.declare.keys import GROUP_TOKENS
from unified_tree.policies.table import policy_factory
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from unified_tree.components import Composition
    from unified_tree.controllers.workbench.server.server_settings import (
        HostSettings,
        LinkerSettings,
        ServerSettings,
        StorageSettings,
    )
    from unified_tree.controllers.workbench.traces.workload import Workload
    from unified_tree.declare.tenants import Tenants


SWEEP_CAPACITIES = (0.125, 0.25, 0.5, 0.75, 1.5, 2.0, 4.0)
"""Of the device budget, beside itself."""
SWEEP_POLICIES = 2
GIB = 1 << 30
MOST_GIB = 1 << 20
"""No larger device is tried for a size that is enough."""
PATH_ONLY = "path-only "
"""Before the name of the row whose twin a row is."""
SHARED = "shared "
"""Likewise, of the row of the same policy."""
APART = "apart "
"""Likewise, of the same row where tenants share nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all rows have in common: who asks for what, of which model, on how much memory (bytes a rank), how fast.

    Attributes:
        host: the host tier; the unbounded row has none, for nothing leaves its device.
        storage: the store behind the host tier, for the rows that have one.
        linker: the prefix linker beside the cache, for the rows whose device pages have an end.
        shares_pools: whether there is a row of each policy, too, where all pools of a tier share its memory.
        tenants: shares of the namespaces that the workload's requests are in; None for no shares. Where they share prefixes,
            there is a row of each policy, too, where they do not.
        verification: whether pages hold bytes that are compared.
        certify: whether the best possible is bounded as tightly as it can be, with rows that know the future, never evict, or
            ask for paths alone. That takes several times as long.

    Raises ConfigurationError where times are to be modelled of a model that states no FLOPs.
    """

    workload: Workload
    composition: Composition
    device_bytes: int
    settings: ServerSettings
    host: HostSettings | None = None
    storage: StorageSettings | None = None
    linker: LinkerSettings | None = None
    shares_pools: bool = False
    tenants: Tenants | None = None
    verification: Verification = Verification.OFF
    certify: bool = False

    def __post_init__(self) -> None:
        if self.settings.prefill_flops_per_s is not None and not self.composition.states_flops:
            raise ConfigurationError(
                f"{self.composition.name} states no FLOPs, so no time can be modelled from "
                f"{self.settings.prefill_flops_per_s:g} FLOP/s"
            )


class RowKind(Enum):
    """What a row is for: a policy under test, or a reference.

    UNBOUNDED never evicts. CLAIRVOYANT evicts with knowledge of the requests to come.
    """

    POLICY = "policy"
    UNBOUNDED = "unbounded"
    CLAIRVOYANT = "clairvoyant"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpec:
    """A row to run.

    Attributes:
        kind: what it is for.
        policy: the eviction policy by name; not read by CLAIRVOYANT.
        page_counts: device pages by component.
        is_path_only: whether windows and states never limit a hit and take no room: the page counts are of paths, for which all
            of the budget is.
        is_apart: whether the plan's tenants share no prefixes here.
        is_shared: whether all pools of a tier share its memory; the page counts are of rows beside this one then.
        capacity: device budget as a multiple of the one asked for; for the plot.
        is_bounded: whether it is found what no cache of its pools could exceed, which may take longer than the replay; if not,
            the ceiling is that of a row with a store. A clairvoyant row is bounded anyway, for it needs that.
        recording: the file for what its cache shows an inspector; None for none.
    """

    kind: RowKind
    policy: str
    page_counts: Mapping[str, int]
    is_path_only: bool = False
    is_shared: bool = False
    is_apart: bool = False
    capacity: float = 1.0
    is_bounded: bool = True
    recording: Path | None = None

    @property
    def label(self) -> str:
        """The row's name in the report."""
        name = self.policy if self.kind is RowKind.POLICY else self.kind.value
        if self.is_shared:
            name = SHARED + name
        if self.is_apart:
            name = APART + name
        return PATH_ONLY + name if self.is_path_only else name

    @property
    def store_name(self) -> str:
        """What its part of a store goes by, of letters, digits and -; other rows of a report have others."""
        name = self.label.replace(PATH_ONLY, "path-only-").replace(SHARED, "shared-").replace(APART, "apart-")
        name = name if self.capacity == 1.0 else f"{name}-{round(100 * self.capacity)}"
        plain = re.sub(r"[^A-Za-z0-9-]", "-", name)
        return name if plain == name else f"{plain}-{sha256(name.encode()).hexdigest()[:8]}"


def report_specs(policies: Sequence[str], page_counts: Mapping[str, int], plan: Plan) -> list[RowSpec]:
    """A row a policy, and one where it has all memory to share. To certify, then clairvoyant, likewise, and unbounded; and
    path-only twins of all but the shared ones and the unbounded one.

    There is no unbounded row beside a store: it starts empty, where the others may find what an earlier replay left. There are
    no twins of a model of paths alone, which is its own.

    Raises ConfigurationError for a policy that `policy_factory` does not find.
    """
    for policy in policies:
        policy_factory(policy)
    rows = [RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=page_counts) for policy in dict.fromkeys(policies)]
    apart = [replace(row, is_apart=True) for row in rows if plan.tenants is not None and plan.tenants.share_after is not None]
    if not plan.certify:
        return rows + [replace(row, is_shared=True) for row in rows if plan.shares_pools] + apart
    references = [RowSpec(kind=RowKind.CLAIRVOYANT, policy=policies[0], page_counts=page_counts)]
    paths = path_only_split(plan.composition, plan.device_bytes, page_counts)
    twins = [replace(row, page_counts=paths, is_path_only=True) for row in rows + references] if paths != page_counts else []
    if plan.shares_pools:
        rows += [replace(row, is_shared=True) for row in rows]
        references += [replace(row, is_shared=True) for row in references]
    if plan.storage is None and plan.linker is None:
        references.append(RowSpec(kind=RowKind.UNBOUNDED, policy=policies[0], page_counts=page_counts))
    return rows + references + twins + apart


def sweep_specs(policies: Sequence[str], plan: Plan) -> list[RowSpec]:
    """Rows at other device budgets, for the plot: of the first two policies.

    A budget too small for the composition is left out.
    """
    preferred = list(dict.fromkeys(policies))[:SWEEP_POLICIES]
    specs = []
    for capacity in SWEEP_CAPACITIES:
        page_counts = fitting_split(plan, int(plan.device_bytes * capacity))
        specs += [
            RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=page_counts, capacity=capacity)
            for policy in preferred
            if page_counts is not None
        ]
    return specs


def fitting_split(plan: Plan, device_bytes: int) -> dict[str, int] | None:
    """As `split_for_server`; None where not even one request would fit."""
    try:
        return split_for_server(plan.composition, device_bytes, plan.settings)
    except ConfigurationError:
        return None


def split_for_server(
    composition: Composition, device_bytes: int, settings: ServerSettings, page_counts: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Pages by pool: what the composition proposes for so many running requests, and room for one step's chunk in windows.

    A chunk is written whole before what has left the window is given back; without that room every chunk would push out
    the windows that are kept.

    Args:
        page_counts: pools whose size is settled.

    Raises ConfigurationError, naming a size that is enough, where not even one request would fit.
    """
    settled = dict(page_counts or {})
    try:
        return _split_for_server(composition, device_bytes, settings, settled)
    except ConfigurationError as error:
        enough = _enough_gib(composition, device_bytes, settings, settled)
        if enough is None:
            raise
        windows = [c for c in composition.components if c.shares is None and c.coverage.window_tokens is not None]
        chunk = fewer = ""
        if any(c.name not in settled for c in windows):
            chunk = f" and the windows of one step of {settings.chunk_tokens:,} prompt tokens"
            fewer = ", or a smaller --chunk-tokens"
        beside = f" beside --pages {','.join(f'{name}={count}' for name, count in settled.items())}" if settled else ""
        raise ConfigurationError(
            f"{device_bytes / GIB:.4g} GiB cannot hold one request{chunk}{beside}: give --device-gib {enough:.2f}{fewer}"
        ) from error


def _enough_gib(
    composition: Composition, device_bytes: int, settings: ServerSettings, settled: Mapping[str, int]
) -> float | None:
    """A size that a split is found for where none is for `device_bytes`, in hundredths of a GiB; None where none is."""

    def fits(hundredths: int) -> bool:
        try:
            _split_for_server(composition, hundredths * GIB // 100, settings, settled)
        except ConfigurationError:
            return False
        return True

    low = device_bytes * 100 // GIB
    high = low + 1
    while not fits(high):
        if high > MOST_GIB * 100:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high / 100


def _split_for_server(
    composition: Composition, device_bytes: int, settings: ServerSettings, settled: Mapping[str, int]
) -> dict[str, int]:
    pages = composition.split_budget(device_bytes, running_requests=settings.concurrency, page_counts=settled)
    chunk_pages = -(-settings.chunk_tokens // composition.page_size)
    with_chunk = {
        component.name: pages[component.name] + chunk_pages
        for component in composition.components
        if component.shares is None and component.coverage.window_tokens is not None and component.name not in settled
    }
    if not with_chunk:
        return pages
    fixed = {**settled, **with_chunk}
    return composition.split_budget(device_bytes, running_requests=settings.concurrency, page_counts=fixed)


def path_only_split(composition: Composition, device_bytes: int, page_counts: Mapping[str, int]) -> dict[str, int]:
    """Pages of the path pools, equally many of each, were all of the budget theirs.

    Args:
        page_counts: pages by pool, for paths of no bytes.
    """
    page_bytes = composition.pool_page_bytes()
    paths = [c.name for c in composition.components if c.shares is None and c.coverage.is_path]
    together = sum(page_bytes[name] for name in paths)
    return {name: device_bytes // together if together else page_counts[name] for name in paths}


def path_only_host_split(composition: Composition, host_bytes: int, page_counts: Mapping[str, int]) -> dict[str, int]:
    """Host pages of the paths, likewise."""
    paths = [c for c in composition.components if c.coverage.is_path]
    together = sum(host_page_bytes(c.page_bytes) for c in paths)
    return {c.name: host_bytes // together if together else page_counts[c.name] for c in paths}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """One row.

    Attributes:
        composition: what its tree tracks.
        page_counts: device pages by component with pages of its own; one left out is without end.
        budget: the device's memory where all pools share it, and then the page counts are the most that each could have;
            `host_budget` likewise.
        window_tokens: the most tokens that one request holds of a window: those that it reads, and a step's chunk.
        host: None for no host tier; its pages by component, likewise.
        storage: None for no store; it needs a host tier.
        linker: None for no linker.
        verification: whether pages hold bytes that are compared.
        packs: whether its keys are packed, so that tokens take an eighth of the memory and time: where blocks and pages are
            whole groups of tokens, and nothing but the tree looks at these.
        name, workload: what the row's part of a store, or its prefixes, go by.
    """

    composition: Composition
    page_counts: Mapping[str, int]
    budget: BlockBudget | None
    host_budget: BlockBudget | None
    window_tokens: int
    host: HostSettings | None
    storage: StorageSettings | None
    linker: LinkerSettings | None
    verification: Verification
    packs: bool
    name: str
    workload: str

    @classmethod
    def of(cls, plan: Plan, spec: RowSpec) -> RowPlan:
        """The row of a plan. An unbounded device has no end, so nothing ever leaves it."""
        composition, page_counts, host = plan.composition, spec.page_counts, plan.host
        budget = of_host = None
        if spec.kind is RowKind.UNBOUNDED:
            page_counts, host = {}, None
        elif spec.is_path_only:
            composition = composition.path_only()
            if host is not None:
                host = replace(host, page_counts=path_only_host_split(composition, host.size_bytes, host.page_counts))
        elif spec.is_shared:
            budget = composition.budget(int(plan.device_bytes * spec.capacity))
            page_counts = budget.page_counts
            if host is not None:
                of_host = host_budget(composition, host.size_bytes)
                host = replace(host, page_counts=of_host.page_counts)
        sizes = {composition.page_size, *(request.block_tokens for request in plan.workload.requests)}
        is_read = plan.storage or plan.linker or spec.recording or plan.verification is not Verification.OFF
        is_marked = plan.tenants is not None and plan.tenants.are_sharing  # whose tokens have owners
        return cls(
            composition=composition,
            page_counts=page_counts,
            budget=budget,
            host_budget=of_host,
            window_tokens=max(c.coverage.window_tokens or 0 for c in composition.components) + plan.settings.chunk_tokens,
            host=host,
            storage=None if host is None else plan.storage,
            linker=plan.linker if all((c.shares or c.name) in page_counts for c in composition.components) else None,
            verification=plan.verification,
            packs=not (is_read or is_marked) and all(size % GROUP_TOKENS == 0 for size in sizes),
            name=spec.store_name,
            workload=plan.workload.name,
        )

    @property
    def both_budgets(self) -> BlockBudget:
        """The memory that pools share on device and host, as one. A page takes of it what it takes on one tier or the other,
        whichever is less.

        On host what shares a page on the device has one of its own, which counts if every boundary needs it, too.
        """
        assert self.budget is not None
        if self.host_budget is None:
            return self.budget
        on_device = {name: blocks * self.budget.block_bytes for name, blocks in self.budget.page_blocks.items()}
        on_host = dict.fromkeys(on_device, 0)
        owners = {component.name: component for component in self.composition.components}
        for component in self.composition.components:
            owner = owners[component.shares or component.name]
            if component is owner or (component.required and component.coverage == owner.coverage):
                on_host[owner.name] += self.host_budget.page_blocks[component.name] * self.host_budget.block_bytes
        page_bytes = {name: min(size, on_host[name]) for name, size in on_device.items()}
        return BlockBudget.of(page_bytes, self.budget.size_bytes + self.host_budget.size_bytes)

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence that the path pools hold; None if they have no end."""
        if self.budget is not None:
            return self.tokens_in(self.budget.block_count)
        paths = [c.name for c in self.composition.components if c.shares is None and c.coverage.is_path]
        counts = [self.page_counts[name] for name in paths if name in self.page_counts]
        return min(counts) * self.composition.page_size if counts else None

    def tokens_in(self, block_count: int) -> int:
        """How many tokens of path so many blocks of the shared budget hold, beside one request's windows and state."""
        assert self.budget is not None
        path_blocks = 0
        for component in self.composition.components:
            if component.shares is None:
                blocks, coverage = self.budget.page_blocks[component.name], component.coverage
                if coverage.is_path:
                    path_blocks += blocks
                elif coverage.is_exact:
                    block_count -= blocks
                else:
                    block_count -= blocks * -(-self.window_tokens // self.composition.page_size)
        return max(0, block_count) // path_blocks * self.composition.page_size

    @property
    def true_bytes(self) -> dict[str, int]:
        """Bytes of the model's pages, by component."""
        return {component.name: component.page_bytes for component in self.composition.components}

    @property
    def moved_bytes(self) -> dict[str, int]:
        """Bytes of the pages that really move."""
        return {name: self.verification.page_bytes(size) for name, size in self.true_bytes.items()}

    @property
    def moved_composition(self) -> Composition:
        """The composition that states those in place of the model's.

        Its name says what they stand for, so replays of models that differ in their true formats share nothing, and pages
        without content are not taken for pages with it.
        """
        true = sha256(repr([(c.name, c.page_bytes, c.format) for c in self.composition.components]).encode()).hexdigest()[:16]
        content = "pages without content" if self.verification is Verification.OFF else "pages with content"
        moved = self.composition.with_formats({name: raw_layers(name, size) for name, size in self.moved_bytes.items()})
        return replace(moved, name=f"replay of {self.composition.name}, {content}, true pages {true}")
