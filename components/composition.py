"""The kinds of state one model keeps, with what a token costs in bytes and in FLOPs.

`split` proposes how to divide a device budget between pools, sized by the number of boundaries worth keeping. A `Path` pool
holds tokens; a window or state pool holds boundaries (lengths one can resume from). One number relates the two: the tokens of
path per boundary worth keeping. Pool sizes grow with the number of path pages, so bisection finds the largest split that fits;
a formula would have to know every limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from unified_tree.components.attention_cost import AttentionCost
from unified_tree.components.kinds import is_token_path
from unified_tree.declare.block_budget import BlockBudget
from unified_tree.declare.component import Component, validate_components
from unified_tree.declare.page_format import ContextShard, PageFormat
from unified_tree.inputs.arguments import number
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A model's components, ready for a tree.

    Bytes are those of one tensor-parallel rank; FLOPs are those of the whole model.

    Attributes:
        name: the model's name, unique among the models that share a store.
        page_size: tokens a page.
        components: the kinds of state; raises ConfigurationError unless they are valid together at `page_size`.
        attention_costs: the cost of attention scores; no entry for a component without scores.
        tensor_parallel: ranks that the state is divided over.
        rank: this rank, from 0; None if not stated.
        config_digest: of the configuration it was read from. Two models of one name and one shape whose digests differ (another
            rotary embedding, say) share nothing in a store. Not part of equality.
        notes: what a reader should know about how the configuration was read, a sentence each. Not part of equality.
    """

    name: str
    page_size: int
    components: tuple[Component, ...]
    attention_costs: tuple[AttentionCost, ...] = ()
    tensor_parallel: int = 1
    rank: int | None = None
    config_digest: str = field(default="", compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        validate_components(self.components, self.page_size)
        if type(self.tensor_parallel) is not int or self.tensor_parallel <= 0:
            raise ConfigurationError(f"tensor_parallel must be a positive integer, not {repr_of(self.tensor_parallel)}")
        if self.rank is not None and (type(self.rank) is not int or not 0 <= self.rank < self.tensor_parallel):
            raise ConfigurationError(f"rank must be one of 0 … {self.tensor_parallel - 1}, not {repr_of(self.rank)}")

    def with_formats(self, formats: Mapping[str, PageFormat]) -> Composition:
        """The same composition with other page formats: for an engine with its own layout, or for components written by hand
        without a format. Page bytes follow from the formats.

        Args:
            formats: by component; those left out stay as they are.

        Raises ConfigurationError for a format of an unknown component, or under another component's name.

        >>> from unified_tree import Component, PageFormat, Part, Path, WHOLE
        >>> kv = (Part("k", "bfloat16", (8, 128)), Part("v", "bfloat16", (8, 128)))
        >>> model = Composition(name="mine", page_size=16, components=(Component(name="full", coverage=Path()),))
        >>> model = model.with_formats(
        ...     {"full": PageFormat(component="full", layer_ids=(0, 1), parts=kv, slots_per_page=16, shard=WHOLE)}
        ... )
        >>> model.components[0].page_bytes
        131072
        """
        names = [component.name for component in self.components]
        for name in formats:
            if name not in names:
                raise ConfigurationError(f"{name!r} is no component of {self.name}; they are {', '.join(names)}")
        components = tuple(
            replace(c, format=formats[c.name], page_bytes=0) if c.name in formats else c for c in self.components
        )
        return replace(self, components=components)

    def with_context_parallel(self, ranks: int, *, interleave: int = 1, names: Sequence[str] = ("full",)) -> Composition:
        """The same composition where neighbouring tensor-parallel ranks divide the tokens of some components' pages, as
        decode context parallelism (DCP) does in vLLM and SGLang. Page bytes follow.

        A page of the tree then has the tokens of all these ranks: `page_size` is the engine's page size times `ranks`. Stores
        and linkers find pages of the same division only.

        Args:
            ranks: that divide a page; the ranks that keep the same heads are a multiple of it.
            interleave: slots that go to a rank before the next rank's turn: `cp_kv_cache_interleave_size` of vLLM.
            names: of the components whose tokens are divided. All others are the same on these ranks, as engines keep index
                keys, windows and states.

        Raises ConfigurationError without a stated rank, format or shard, for an unknown component, and for slots or ranks that
        do not divide.

        >>> from unified_tree.components import composition_for
        >>> latents = composition_for("deepseek-v3.2", page_size=64, tensor_parallel=8, rank=5)
        >>> divided = latents.with_context_parallel(4)
        >>> divided.components[0].format.context, latents.components[0].page_bytes // divided.components[0].page_bytes
        (ContextShard(index=1, count=4, interleave=1), 4)
        """
        if type(ranks) is not int or ranks <= 0:
            raise ConfigurationError(f"with_context_parallel: ranks must be a positive integer, not {repr_of(ranks)}")
        kept = {component.name: component.format for component in self.components}
        formats = {}
        for name in names:
            given = kept.get(name)
            if given is None or given.shard is None or self.rank is None:
                raise ConfigurationError(f"with_context_parallel: {name!r} needs a stated format, its shard, and the rank")
            same_heads = self.tensor_parallel // given.shard.count
            context = ContextShard(self.rank % ranks, ranks, interleave)
            if same_heads % ranks:
                raise ConfigurationError(
                    f"{name}: {same_heads} of {self.tensor_parallel} tensor-parallel ranks keep the same heads, which "
                    f"{ranks} context-parallel ranks do not divide"
                )
            formats[name] = given.divided(context)
        return self.with_formats(formats)

    def writes(self, name: str) -> bool:
        """Whether this rank stores a component's pages: it is the first of the ranks that keep the same state.

        True if the rank or the shard was not stated, or where the context-parallel ranks are not neighbours. Raises
        ConfigurationError for an unknown component.
        """
        for component in self.components:
            if component.name == name:
                kept = component.format
                if self.rank is None or kept is None or kept.shard is None:
                    return True
                context, same_heads = kept.context, max(1, self.tensor_parallel // kept.shard.count)
                return self.rank % same_heads < context.count or self.rank % context.count != context.index
        raise ConfigurationError(f"{name!r} is no component of {self.name}")

    def bytes_per_token(self) -> dict[str, float]:
        """Bytes a token, by component; of a window, bytes of a token inside it. States are in `bytes_per_state`."""
        return {c.name: c.page_bytes / self.page_size for c in self.components if not c.coverage.is_exact}

    def bytes_per_state(self) -> dict[str, int]:
        """Bytes of one saved state, by `Point` component."""
        return {c.name: c.page_bytes for c in self.components if c.coverage.is_exact}

    def pool_page_bytes(self) -> dict[str, int]:
        """Bytes of one device page, by component that owns pages, its sharers' bytes included."""
        sizes = {c.name: c.page_bytes for c in self.components if c.shares is None}
        for component in self.components:
            if component.shares is not None:
                sizes[component.shares] += component.page_bytes
        return sizes

    @property
    def rebuild_tokens(self) -> int | None:
        """Tokens to run again to rebuild every required window: their windows summed over their layers.

        0 without a required window; None where a state is required, or a window whose rebuild is not known to be exact.
        """
        total = 0
        for component in self.components:
            if not component.required or component.coverage.is_path:
                continue
            if component.rebuild_tokens is None:
                return None
            total += component.rebuild_tokens
        return total

    @property
    def states_flops(self) -> bool:
        """Whether it is known what prefilling costs; if not, `prefill_flops` is 0."""
        return bool(self.attention_costs) or any(component.flops_per_token for component in self.components)

    def prefill_flops(self, start_tokens: int, end_tokens: int) -> float:
        """FLOPs to prefill the tokens `[start_tokens, end_tokens)` on top of a cached prefix of `start_tokens`.

        Twice the active weights a token, plus the attention scores over what each query sees. Embedding and output head
        are excluded: a prefill looks up the one and computes the other for its last token only. Cost: O(components).
        """
        if not 0 <= start_tokens <= end_tokens:
            raise ConfigurationError(f"prefill_flops: [{start_tokens}, {end_tokens}) is not a range of token positions")
        linear = sum(c.flops_per_token for c in self.components) * (end_tokens - start_tokens)
        return linear + sum(cost.flops(start_tokens, end_tokens) for cost in self.attention_costs)

    def split_budget(
        self,
        device_bytes: int,
        *,
        tokens_between_boundaries: int = 8192,
        running_requests: int = 16,
        min_path_share: float = 0.5,
        request_tokens: int | None = None,
        page_counts: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Propose how many pages each pool gets of `device_bytes` (of one rank), by component that owns pages.

        The `Path` pools get equally many pages. Window and state pools get enough for one boundary (a length one can resume
        from) per `tokens_between_boundaries` tokens of path, and for `running_requests` requests on top. A window pool never
        holds more tokens than the path. If the `Path` pools would get less than `min_path_share` of the budget, they get that
        share and the others keep fewer boundaries.

        Args:
            device_bytes: bytes for all pools together.
            tokens_between_boundaries: tokens of path for which one saved boundary is worth keeping, on average.
            running_requests: requests that run at the same time, each with a private window and state.
            min_path_share: minimum share of the budget for the `Path` pools, from 0 to 1; ignored if they hold no state
                (`token_path`).
            request_tokens: the smallest prompt that must fit; None for the longest window and a page.
            page_counts: fixed page counts of some pools; the rest is split among the other pools.

        Raises ConfigurationError, stating how many bytes are needed, if not even one request would fit.
        """
        owners = tuple(c for c in self.components if c.shares is None)
        is_stateless = all(is_token_path(c) for c in owners if c.coverage.is_path)
        policy = BudgetPolicy(
            tokens_between_boundaries=tokens_between_boundaries,
            running_requests=running_requests,
            min_path_share=number(min_path_share, "min_path_share", ConfigurationError) * (not is_stateless),
            request_tokens=request_tokens,
            page_counts={} if page_counts is None else dict(page_counts),
        )
        windows = [c.coverage.window_tokens or 0 for c in self.components]
        return split(
            device_bytes,
            owners=owners,
            page_bytes=self.pool_page_bytes(),
            page_size=self.page_size,
            longest_window_tokens=max(windows, default=0),
            policy=policy,
        )

    def budget(self, device_bytes: int, *, block_bytes: int | None = None) -> BlockBudget:
        """`device_bytes` (of one rank) as one budget that all pools share; see `PrefixCache`.

        Args:
            block_bytes: see `BlockBudget.of`.

        Raises ConfigurationError for a component whose pages have no stated size, and where no page of some pool would fit.

        >>> from unified_tree.components import composition_for
        >>> dict(composition_for("gemma-3-27b").budget(1 << 30).page_blocks)
        {'full': 5, 'swa': 26}
        """
        return BlockBudget.of(self.pool_page_bytes(), device_bytes, block_bytes=block_bytes)

    def path_only(self) -> Composition:
        """The same composition with windows and states made optional, so that only the `Path` components gate a match."""
        components = tuple(c if c.coverage.is_path else replace(c, required=False) for c in self.components)
        return replace(self, components=components)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPolicy:
    """The choices behind a split; see `Composition.split_budget`."""

    tokens_between_boundaries: int
    running_requests: int
    min_path_share: float
    request_tokens: int | None = None
    page_counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tokens_between_boundaries", "running_requests"):
            value = getattr(self, name)
            if type(value) is not int or value <= 0:
                raise ConfigurationError(f"split_budget: {name} must be a positive integer, not {repr_of(value)}")
        if self.request_tokens is not None and (type(self.request_tokens) is not int or self.request_tokens <= 0):
            raise ConfigurationError(
                f"split_budget: request_tokens must be a positive integer, not {repr_of(self.request_tokens)}"
            )
        if not 0 <= self.min_path_share <= 1:
            raise ConfigurationError(f"split_budget: min_path_share must be from 0 to 1, not {repr_of(self.min_path_share)}")


def split(
    device_bytes: int,
    *,
    owners: Sequence[Component],
    page_bytes: Mapping[str, int],
    page_size: int,
    longest_window_tokens: int,
    policy: BudgetPolicy,
) -> dict[str, int]:
    """Page counts by owner, within `device_bytes`. See `Composition.split_budget`. Cost: O(owners · log pages)."""
    if type(device_bytes) is not int or device_bytes <= 0:
        raise ConfigurationError(f"split_budget: device_bytes must be a positive integer, not {repr_of(device_bytes)}")
    empty = [c.name for c in owners if not page_bytes[c.name]]
    if empty:
        raise ConfigurationError(f"split_budget: {empty[0]}: page_bytes is 0, so no number of pages can be proposed")
    fixed = _checked_page_counts(policy.page_counts, owners)
    request_tokens = policy.request_tokens or longest_window_tokens + page_size
    minimum = {c.name: fixed.get(c.name, _pages_for_one_request(c, request_tokens, page_size)) for c in owners}

    def cost(pages: Mapping[str, int]) -> int:
        return sum(count * page_bytes[name] for name, count in pages.items())

    if cost(minimum) > device_bytes:
        raise ConfigurationError(
            f"split_budget: {device_bytes} bytes cannot hold one request of {request_tokens} tokens: {cost(minimum)} are needed"
        )

    def sized(path_pages: int, boundaries: int) -> dict[str, int]:
        pages = {}
        for c in owners:
            wanted = path_pages if c.coverage.is_path else _pages_for_boundaries(c, boundaries, path_pages, page_size)
            pages[c.name] = fixed.get(c.name, max(minimum[c.name], wanted))
        return pages

    def with_boundaries(path_pages: int) -> dict[str, int]:
        saved = -(-path_pages * page_size // policy.tokens_between_boundaries)
        return sized(path_pages, saved + policy.running_requests)

    max_pages = device_bytes // min(page_bytes[c.name] for c in owners)
    path_pages = _largest(lambda n: cost(with_boundaries(n)) <= device_bytes, max_pages)
    proportional = with_boundaries(path_pages)
    share = _largest(lambda n: _path_cost(owners, sized(n, 0), page_bytes) <= device_bytes * policy.min_path_share, max_pages)
    if path_pages >= share and cost(proportional) <= device_bytes:
        return proportional
    path_pages = _largest(lambda n: cost(sized(n, 0)) <= device_bytes, share)
    boundaries = _largest(lambda n: cost(sized(path_pages, n)) <= device_bytes, max_pages)
    return sized(path_pages, boundaries)


def _pages_for_one_request(component: Component, request_tokens: int, page_size: int) -> int:
    """The minimum of pages for one request to run and be resumed. A window needs the pages it reads and the page it fills next.
    A state needs two: the saved one and the request's own.
    """
    if component.coverage.is_path:
        return component.coverage.pages_needed(request_tokens, page_size)
    return component.coverage.boundary_pages(page_size) + 1


def _pages_for_boundaries(component: Component, boundaries: int, path_pages: int, page_size: int) -> int:
    pages = boundaries * component.coverage.boundary_pages(page_size)
    return pages if component.coverage.is_exact else min(pages, path_pages)


def _path_cost(owners: Sequence[Component], pages: Mapping[str, int], page_bytes: Mapping[str, int]) -> int:
    return sum(pages[c.name] * page_bytes[c.name] for c in owners if c.coverage.is_path)


def _checked_page_counts(page_counts: Mapping[str, int], owners: Sequence[Component]) -> dict[str, int]:
    names = [c.name for c in owners]
    for name, count in page_counts.items():
        if name not in names:
            raise ConfigurationError(f"split_budget: page_counts names {name!r}; the pools are {', '.join(names)}")
        if type(count) is not int or count <= 0:
            raise ConfigurationError(
                f"split_budget: page_counts[{repr_of(name)}] must be a positive integer, not {repr_of(count)}"
            )
    return dict(page_counts)


def _largest(fits: Callable[[int], bool], max_pages: int) -> int:
    """The largest number of `0..most` that fits, for a `fits` that holds up to some number; 0 where none does."""
    low, high = 0, max_pages
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
