"""The kinds of state one model keeps, with what a token costs in bytes and in FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from unified_tree.component import Component, Path, Point, Trailing, validate_components
from unified_tree.components.attention_cost import AttentionCost
from unified_tree.components.budget import BudgetPolicy, split
from unified_tree.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A model's components, ready for a tree.

    Bytes are those of one tensor-parallel rank; FLOPs are those of the whole model.

    Attributes:
        name: the model's name, for reports.
        page_size: tokens a page.
        components: valid together at `page_size`; raises ConfigurationError where they are not.
        attention_costs: what the attention scores cost, none for a component that scores nothing.
    """

    name: str
    page_size: int
    components: tuple[Component, ...]
    attention_costs: tuple[AttentionCost, ...] = ()

    def __post_init__(self) -> None:
        validate_components(self.components, self.page_size)

    def bytes_per_token(self) -> dict[str, float]:
        """Bytes a token, by component; of a window, bytes of a token inside it. States are in `bytes_per_state`."""
        return {c.name: c.page_bytes / self.page_size for c in self.components if not isinstance(c.coverage, Point)}

    def bytes_per_state(self) -> dict[str, int]:
        """Bytes of one saved state, by `Point` component."""
        return {c.name: c.page_bytes for c in self.components if isinstance(c.coverage, Point)}

    def pool_page_bytes(self) -> dict[str, int]:
        """Bytes of one device page, by component that owns pages, its sharers' bytes included."""
        sizes = {c.name: c.page_bytes for c in self.components if c.shares is None}
        for component in self.components:
            if component.shares is not None:
                sizes[component.shares] += component.page_bytes
        return sizes

    @property
    def replay_tokens(self) -> int | None:
        """Tokens to run again to rebuild every required window: their windows summed over their layers.

        0 without a required window; None where a state is required, or a window whose replay is not known to be exact.
        """
        total = 0
        for component in self.components:
            if not component.required or isinstance(component.coverage, Path):
                continue
            if isinstance(component.coverage, Point) or component.replay_tokens is None:
                return None
            total += component.replay_tokens
        return total

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
        least_path_share: float = 0.5,
        request_tokens: int | None = None,
        page_counts: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Propose how many pages each pool gets of `device_bytes` (of one rank), by component that owns pages.

        The `Path` pools get equally many pages. Windows and states get what is needed to resume at one boundary for every
        `tokens_between_boundaries` tokens of path and for `running_requests` requests on top; a window pool never holds
        more tokens than the path. Where that would leave the `Path` pools less than `least_path_share` of the budget,
        they get that share and the others keep fewer boundaries.

        Args:
            device_bytes: bytes for all pools together.
            tokens_between_boundaries: tokens of path for which one saved boundary is worth keeping, on average.
            running_requests: requests whose private window and state exist at the same time.
            least_path_share: share of the budget that the `Path` pools get at least, from 0 to 1.
            request_tokens: the smallest prompt that must fit; None for the longest window and a page.
            page_counts: page counts to take as they are; the rest is split among the other pools.

        Raises ConfigurationError, saying how many bytes are needed, where not even one request would fit.
        """
        policy = BudgetPolicy(
            tokens_between_boundaries=tokens_between_boundaries,
            running_requests=running_requests,
            least_path_share=least_path_share,
            request_tokens=request_tokens,
            page_counts={} if page_counts is None else dict(page_counts),
        )
        owners = tuple(c for c in self.components if c.shares is None)
        windows = [c.coverage.window_tokens for c in self.components if isinstance(c.coverage, Trailing)]
        return split(
            device_bytes,
            owners=owners,
            page_bytes=self.pool_page_bytes(),
            page_size=self.page_size,
            longest_window_tokens=max(windows, default=0),
            policy=policy,
        )

    def ungated(self) -> Composition:
        """The same composition with windows and states made optional, so that only the `Path` components gate a match."""
        components = tuple(c if isinstance(c.coverage, Path) else replace(c, required=False) for c in self.components)
        return replace(self, components=components)
