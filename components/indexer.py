"""The keys of a sparse attention's indexer, which selects for each query the few tokens it attends to."""

from __future__ import annotations

from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Path
from unified_tree.declare.page_format import PageFormat


def indexer(
    *,
    page_size: int,
    bytes_per_slot: int = 0,
    page_format: PageFormat | None = None,
    tokens_per_slot: int = 1,
    shares: str = "full",
    flops_per_token: float = 0.0,
    name: str = "indexer",
) -> Component:
    """The required `Path` component of index keys, in the device pages of the KV they index.

    Source: the lightning indexer of DeepSeek-V3.2 (one key of `index_head_dim` a token and layer, shared by all index
    heads, so it is replicated over ranks) and of DeepSeek-V4 (one key every four tokens).

    Args:
        page_size: tokens a page.
        bytes_per_slot: bytes of one key, summed over the layers that run an indexer of their own. Left out with a format.
        page_format: what a page holds; needed to store it.
        tokens_per_slot: tokens one key stands for.
        shares: the component whose device pages hold the keys.
        flops_per_token: twice the indexers' weights, over all ranks.
        name: the component's name.
    """
    return Component(
        name=name,
        coverage=Path(),
        tokens_per_slot=tokens_per_slot,
        page_bytes=page_size // tokens_per_slot * bytes_per_slot,
        flops_per_token=flops_per_token,
        shares=shares,
        format=page_format,
    )
