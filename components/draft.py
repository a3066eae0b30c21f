"""The KV of a draft model: EAGLE heads and multi-token-prediction (MTP) layers, for speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.component import Component, Coverage, Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """What a draft costs on top of the model it drafts for.

    Attributes:
        bytes_per_token: bytes one token's draft KV takes on one rank.
        flops_per_token: twice the active weights of the draft's layers, over all ranks. The projection that joins
            hidden state and embedding is left out.
        flops_per_entry: FLOPs for one query to score and weigh one cached token, summed over the draft's layers.
    """

    bytes_per_token: int
    flops_per_token: float = 0.0
    flops_per_entry: float = 0.0


def draft(
    *,
    page_size: int,
    bytes_per_token: int,
    shares: str = "full",
    coverage: Coverage | None = None,
    flops_per_token: float = 0.0,
    name: str = "draft",
) -> Component:
    """The optional component of a draft's KV, in the device pages of the component it follows.

    A missing draft never shortens a match: decoding goes on without it, only slower.

    Args:
        page_size: tokens a page.
        bytes_per_token: bytes one token takes on one rank, summed over the draft's layers.
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
    )
