"""The KV of a draft model: EAGLE heads, multi-token-prediction (MTP) layers and block drafts (DFlash, DSpark)."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.components.attention_cost import AttentionCost
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Coverage, Path, Trailing
from unified_tree.declare.page_format import PageFormat, Part, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """The layers of a draft that see as far as each other: their KV, and what they add to the cost of its model.

    Layers that attend to the whole prefix lie in the device pages of the model's own. Those of a window have pages of their
    own. A missing window is not rebuilt, because a draft's KV comes from the model's hidden states.

    Attributes:
        layer_ids: the draft's own layer numbers.
        parts: what each of its layers keeps of a token on one rank.
        shard: which part of the draft's heads that is; None if the rank was not stated.
        flops_per_token: twice the active weights of the draft's layers, over all ranks. The projection that joins
            hidden state and embedding is left out.
        flops_per_entry: FLOPs for one query to score and weigh one cached token, summed over these layers.
        name: of their component.
        window_tokens: past tokens they see; None for all.
    """

    layer_ids: tuple[int, ...]
    parts: tuple[Part, ...]
    shard: Shard | None
    flops_per_token: float = 0.0
    flops_per_entry: float = 0.0
    name: str = "draft"
    window_tokens: int | None = None

    def component(self, page_size: int, owner: str) -> Component:
        """The component of these layers; the whole prefix's lies in the pages of `owner`."""
        kept = PageFormat(
            component=self.name, layer_ids=self.layer_ids, parts=self.parts, slots_per_page=page_size, shard=self.shard
        )
        return draft(
            page_size=page_size,
            page_format=kept,
            shares=owner if self.window_tokens is None else None,
            coverage=None if self.window_tokens is None else Trailing(self.window_tokens),
            flops_per_token=self.flops_per_token,
            name=self.name,
        )

    def attention_cost(self) -> AttentionCost:
        """The cost of its scores."""
        limit = None if self.window_tokens is None else self.window_tokens + 1
        return AttentionCost(component=self.name, flops_per_entry=self.flops_per_entry, max_entries=limit)


def draft(
    *,
    page_size: int,
    bytes_per_token: int = 0,
    page_format: PageFormat | None = None,
    shares: str | None = "full",
    coverage: Coverage | None = None,
    flops_per_token: float = 0.0,
    name: str = "draft",
) -> Component:
    """The optional component of a draft's KV, in the device pages of the component it follows.

    A missing draft never shortens a match: decoding goes on without it, only slower.

    Args:
        page_size: tokens a page.
        bytes_per_token: bytes one token takes on one rank, summed over the draft's layers. Left out with a format.
        page_format: what a page holds; needed to store it.
        shares: the component whose device pages hold it; None for pages of its own, as a window needs beside full attention.
        coverage: `Path()` unless the draft's layers have a window of their own.
        flops_per_token: twice the draft's active weights, over all ranks.
        name: the component's name.

    >>> draft(page_size=64, bytes_per_token=4096).required
    False
    """
    return Component(
        name=name,
        coverage=Path() if coverage is None else coverage,
        required=False,
        page_bytes=page_size * bytes_per_token,
        flops_per_token=flops_per_token,
        shares=shares,
        format=page_format,
    )
