"""The KV of a draft model: EAGLE heads and multi-token-prediction (MTP) layers, for speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Coverage, Path
from unified_tree.declare.page_format import PageFormat, Part, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """What a draft costs on top of the model it drafts for.

    Attributes:
        layer_ids: the draft's own layer numbers.
        parts: what each of its layers keeps of a token on one rank.
        shard: which part of the draft's heads that is; None if the rank was not stated.
        flops_per_token: twice the active weights of the draft's layers, over all ranks. The projection that joins
            hidden state and embedding is left out.
        flops_per_entry: FLOPs for one query to score and weigh one cached token, summed over the draft's layers.
    """

    layer_ids: tuple[int, ...]
    parts: tuple[Part, ...]
    shard: Shard | None
    flops_per_token: float = 0.0
    flops_per_entry: float = 0.0

    def page_format(self, page_size: int) -> PageFormat:
        """What a page of the draft's KV holds."""
        return PageFormat(
            component="draft", layer_ids=self.layer_ids, parts=self.parts, slots_per_page=page_size, shard=self.shard
        )


def draft(
    *,
    page_size: int,
    bytes_per_token: int = 0,
    page_format: PageFormat | None = None,
    shares: str = "full",
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
        shares: the component whose device pages hold it.
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
