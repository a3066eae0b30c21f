"""Full attention: every token's key and value, so a prefix needs every page of its path."""

from __future__ import annotations

from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Path
from unified_tree.declare.page_format import PageFormat


def full(
    *,
    page_size: int,
    bytes_per_token: int = 0,
    page_format: PageFormat | None = None,
    flops_per_token: float = 0.0,
    name: str = "full",
) -> Component:
    """The required `Path` component that owns the pages most others share.

    Args:
        page_size: tokens a page.
        bytes_per_token: bytes one token takes on one rank, summed over the layers this component serves:
            `kv_heads * (key_dim + value_dim) * dtype_bytes` a layer for grouped-query attention, and
            `(kv_lora_rank + qk_rope_head_dim) * dtype_bytes` a layer for latent attention (MLA). Left out with a format.
        page_format: what a page holds; needed to store it.
        flops_per_token: twice the active weights of those layers, over all ranks.
        name: the component's name.

    >>> full(page_size=16, bytes_per_token=32 * 8 * (128 + 128) * 2).page_bytes
    2097152
    """
    return Component(
        name=name,
        coverage=Path(),
        page_bytes=page_size * bytes_per_token,
        flops_per_token=flops_per_token,
        format=page_format,
    )
