"""A kind of attention state, declared as data.

The tree never names a kind. It reads three things: which pages a prefix of length `p` needs (the *coverage*), whether a
missing value shortens a match (*required*), and whose device pages the value lives in (*shares*).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unified_tree.declare.block_budget import BlockBudget
from unified_tree.declare.coverage import COVERAGES, Coverage
from unified_tree.declare.page_format import PageFormat
from unified_tree.inputs.arguments import flag, items, number
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One kind of state with its own pool.

    Attributes:
        name: unique in its tree, e.g. `full`, `swa`, `mamba`, `draft`, `indexer`.
        coverage: which pages a prefix must have for this component to be resumable there.
        required: whether a missing value shortens a match. A draft model's KV is not required.
        tokens_per_slot: 4 for a pool that keeps one entry per four tokens. The page size must be a multiple of it.
        page_bytes: bytes of one page, over all layers of this component; of one state for `Point`. Follows from `format` where
            that is stated.
        save_grid_tokens: the token grid on which a state can be saved (a scan kernel's chunk length, say).
        flops_per_token: FLOPs to compute one token in the layers this component serves, attention scores excluded.
        shares: the component whose *device* pages hold this component's values (an indexer or a draft in the slots of
            `full`, a carry-over state in those of `swa`). On host every component has pages of its own.
        rebuild_tokens: for a window: how many tokens must run again to rebuild the window exactly, which is
            its windows summed over its layers, and so at least one window; None where rebuild is not known to be exact.
        format: what a page holds; None where only its size is known. Stores and linkers keep no page of unstated format.
    """

    name: str
    coverage: Coverage
    required: bool = True
    tokens_per_slot: int = 1
    page_bytes: int = 0
    save_grid_tokens: int = 1
    flops_per_token: float = 0.0
    shares: str | None = None
    rebuild_tokens: int | None = None
    format: PageFormat | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigurationError(f"a component's name must be a non-empty string, not {repr_of(self.name)}")
        if type(self.coverage) not in COVERAGES:  # a subclass may mean what the tree does not know
            kinds = ", ".join(kind.__name__ for kind in COVERAGES)
            raise ConfigurationError(f"{self.name}: coverage must be one of {kinds}, not {repr_of(self.coverage)}")
        object.__setattr__(self, "required", flag(self.required, f"{self.name}: required", ConfigurationError))
        number(self.flops_per_token, f"{self.name}: flops_per_token", ConfigurationError)
        if self.shares is not None and not isinstance(self.shares, str):
            raise ConfigurationError(f"{self.name}: shares must be a component's name or None, not {repr_of(self.shares)}")
        for field in ("tokens_per_slot", "save_grid_tokens"):
            if type(getattr(self, field)) is not int or getattr(self, field) <= 0:
                raise ConfigurationError(
                    f"{self.name}: {field} must be a positive integer, not {repr_of(getattr(self, field))}"
                )
        if self.rebuild_tokens is not None and (
            self.coverage.window_tokens is None or type(self.rebuild_tokens) is not int or self.rebuild_tokens <= 0
        ):
            raise ConfigurationError(
                f"{self.name}: rebuild_tokens must be a positive integer of a window, not {repr_of(self.rebuild_tokens)}"
            )
        if self.rebuild_tokens is not None and self.rebuild_tokens < (self.coverage.window_tokens or 0):
            raise ConfigurationError(
                f"{self.name}: rebuild_tokens is {self.rebuild_tokens}, but so few tokens do not fill a window of "
                f"{self.coverage.window_tokens}: each of its layers takes that many to become exact"
            )
        if type(self.page_bytes) is not int or self.page_bytes < 0:
            raise ConfigurationError(
                f"{self.name}: page_bytes must be an integer of zero or more, not {repr_of(self.page_bytes)}"
            )
        self._reconcile_format()

    def _reconcile_format(self) -> None:
        """Take the page's size from its format, or check the two against each other where both are stated."""
        if self.format is None:
            return
        if not isinstance(self.format, PageFormat):
            raise ConfigurationError(f"{self.name}: format must be a PageFormat or None, not {repr_of(self.format)}")
        if self.format.component != self.name:
            raise ConfigurationError(f"{self.name}: was given the format of {repr_of(self.format.component)}")
        if self.page_bytes not in (0, self.format.page_bytes):
            raise ConfigurationError(
                f"{self.name}: page_bytes is {self.page_bytes}, the format's pages are {self.format.page_bytes} bytes; "
                "leave page_bytes out, it follows from the format"
            )
        object.__setattr__(self, "page_bytes", self.format.page_bytes)


def validate_device_pools(
    page_counts: Mapping[str, int], budget: BlockBudget | None, components: Sequence[Component]
) -> Mapping[str, int]:
    """The page counts, or those of a budget. Raises ConfigurationError for both, for a pool without pages, for one of a
    component without device pages of its own, and for a budget that lacks one.
    """
    names = [c.name for c in components if c.shares is None]
    return _validate_pools(page_counts, budget, names, "a component with device pages of its own")


def validate_host_pools(
    page_counts: Mapping[str, int], budget: BlockBudget | None, components: Sequence[Component]
) -> Mapping[str, int]:
    """Likewise for host pools, which every component has."""
    return _validate_pools(page_counts, budget, [c.name for c in components], "a component")


def _validate_pools(
    page_counts: Mapping[str, int], budget: BlockBudget | None, names: list[str], what: str
) -> Mapping[str, int]:
    if budget is None:
        _validate_counts(page_counts, set(names), what)
        return page_counts
    if not isinstance(budget, BlockBudget):
        raise ConfigurationError(f"a budget must be a BlockBudget, not {repr_of(budget)}")
    if page_counts:
        raise ConfigurationError("give page counts or a budget, not both")
    _validate_counts(budget.page_counts, set(names), what)
    lacking = [name for name in names if name not in budget.page_blocks]
    if lacking:
        raise ConfigurationError(f"the budget says nothing of {', '.join(lacking)}")
    return budget.page_counts


def _validate_counts(page_counts: Mapping[str, int], names: set[str], what: str) -> None:
    if not isinstance(page_counts, Mapping):
        raise ConfigurationError(f"page_counts must be a mapping from components to pages, not {repr_of(page_counts)}")
    for name, count in page_counts.items():
        if name not in names:
            raise ConfigurationError(f"page_counts: {repr_of(name)} is not {what}; there are {', '.join(sorted(names))}")
        if type(count) is not int or count <= 0:
            raise ConfigurationError(f"page_counts: {repr_of(name)} must have a positive number of pages, not {repr_of(count)}")


def validate_components(components: Sequence[Component], page_size: int) -> tuple[Component, ...]:
    """Check that `components` can live in one tree; returns them as a tuple.

    Raises ConfigurationError for a page size of zero or below, no required `Path`, a name used twice, a ratio that does
    not divide the page, or a format whose slots are not those of a page. Also for a `shares` that names no component, a sharer,
    or one whose pages cannot hold it: of another kind of coverage, or of a narrower window.
    """
    if type(page_size) is not int or page_size <= 0:
        raise ConfigurationError(f"page_size must be a positive integer, not {repr_of(page_size)}")
    by_name: dict[str, Component] = {}
    components = tuple(items(components, "components", ConfigurationError))
    for component in components:
        if not isinstance(component, Component):
            raise ConfigurationError(f"a tree is made of Components, not of {repr_of(component)}")
        if component.name in by_name:
            raise ConfigurationError(f"component {component.name!r} is named twice")
        by_name[component.name] = component
        if page_size % component.tokens_per_slot:
            raise ConfigurationError(
                f"{component.name}: page_size {page_size} is not a multiple of tokens_per_slot {component.tokens_per_slot}"
            )
        _validate_slots(component, page_size)
    for component in components:
        if component.shares is None:
            continue
        owner = by_name.get(component.shares)
        if owner is None or owner is component or owner.shares is not None:
            raise ConfigurationError(
                f"{component.name}: shares {component.shares!r}, which is not a component with pages of its own"
            )
        reason = component.coverage.why_not_in(owner.coverage)
        if reason is not None:
            raise ConfigurationError(f"{component.name}: cannot share the pages of {repr_of(owner.name)}: {reason}")
        if component.required and not owner.required:
            raise ConfigurationError(f"{component.name}: is required but shares the pages of the optional {owner.name!r}")
    if not any(c.coverage.is_path and c.required and c.shares is None for c in components):
        raise ConfigurationError("a tree needs at least one required Path component with pages of its own")
    return tuple(components)


def _validate_slots(component: Component, page_size: int) -> None:
    """A format of the wrong number of slots would give pages of the wrong size, and budgets that the device has no room for."""
    if component.format is None:
        return
    slots = 1 if component.coverage.is_exact else page_size // component.tokens_per_slot
    given, context = component.format.slots_per_page, component.format.context
    if slots % (context.count * context.interleave):
        raise ConfigurationError(
            f"{component.name}: a page's {slots} slots do not divide among {context.count} context-parallel ranks in runs of "
            f"{context.interleave}"
        )
    if given not in (1, slots // context.count):
        kind = f"pages of {page_size} tokens and {component.tokens_per_slot} tokens a slot have {slots // context.count}"
        kind += f" on each of {context.count} ranks, or 1 if not divided" if context.count > 1 else ", or 1 if not divided"
        if component.coverage.is_exact:
            kind = "a state has 1"
        raise ConfigurationError(f"{component.name}: its format has {given} slots a page; {kind}")
