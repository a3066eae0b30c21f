"""The kinds of state one model keeps, with what a token costs in bytes and in FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from unified_tree.components.attention_cost import AttentionCost
from unified_tree.components.budget import BudgetPolicy, split
from unified_tree.components.token_path import is_token_path
from unified_tree.declare.block_budget import BlockBudget
from unified_tree.declare.component import Component, validate_components
from unified_tree.declare.page_format import ContextShard, PageFormat
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
            raise ConfigurationError(f"tensor_parallel must be a positive integer, not {self.tensor_parallel!r}")
        if self.rank is not None and (type(self.rank) is not int or not 0 <= self.rank < self.tensor_parallel):
            raise ConfigurationError(f"rank must be one of 0 … {self.tensor_parallel - 1}, not {self.rank!r}")

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
            raise ConfigurationError(f"with_context_parallel: ranks must be a positive integer, not {ranks!r}")
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
            min_path_share=min_path_share * (not is_stateless),
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
