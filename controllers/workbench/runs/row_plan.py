"""What one row's cache is made of: the plan's memory and tiers, as far as the row's kind has them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from unified_tree.controllers.pools import host_budget
from unified_tree.controllers.workbench.runs.plan import RowKind, path_only_host_split, tokens_in
from unified_tree.controllers.workbench.server.page_store import raw_layers
from unified_tree.controllers.workbench.server.verified_pages import Verification
from unified_tree.declare.block_budget import BlockBudget
from unified_tree.declare.keys import GROUP_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.components import Composition
    from unified_tree.controllers.workbench.runs.plan import Plan, RowSpec
    from unified_tree.controllers.workbench.server.server_settings import HostSettings, LinkerSettings, StorageSettings


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
        return tokens_in(self.budget, block_count, self.composition, self.window_tokens)

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
