"""Compressed KV (DeepSeek-V4): one entry for several tokens, and the state a 4:1 compressor carries between entries.

Layers of one kind emit an entry every 4 tokens, pooled from the last 8, so the next entry needs the *overlap*: what the
last 4 tokens contribute to it. The other kind emits one every 128 tokens without overlap. Between entries both keep a
buffer of the tokens that have not filled one yet; at a page boundary it is empty, the page being a multiple of the ratio.
"""

from __future__ import annotations

from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Path, Trailing
from unified_tree.declare.page_format import PageFormat


def compressed(
    *,
    page_size: int,
    tokens_per_slot: int,
    bytes_per_slot: int = 0,
    page_format: PageFormat | None = None,
    shares: str | None = None,
    flops_per_token: float = 0.0,
    name: str | None = None,
) -> Component:
    """The required `Path` component of one compression ratio.

    Args:
        page_size: tokens a page, a multiple of `tokens_per_slot`.
        tokens_per_slot: tokens one entry stands for.
        bytes_per_slot: bytes of one entry, summed over the layers of this ratio: `head_dim * dtype_bytes` a layer, one
            vector being key and value of all heads. Left out with a format.
        page_format: what a page holds; needed to store it.
        shares: the compressed component whose device pages hold the entries; None to own pages.
        flops_per_token: twice the active weights of those layers, over all ranks.
        name: `c4` for 4:1, and so on, when None.

    >>> compressed(page_size=128, tokens_per_slot=4, bytes_per_slot=1024).page_bytes
    32768
    """
    return Component(
        name=f"c{tokens_per_slot}" if name is None else name,
        coverage=Path(),
        tokens_per_slot=tokens_per_slot,
        page_bytes=page_size // tokens_per_slot * bytes_per_slot,
        flops_per_token=flops_per_token,
        shares=shares,
        format=page_format,
    )


def overlap(
    *,
    window_tokens: int,
    state_bytes: int = 0,
    page_format: PageFormat | None = None,
    shares: str = "swa",
    name: str = "overlap",
) -> Component:
    """The required `Trailing` component of the overlap that follows the window, one state a page.

    No rebuild is declared: rebuilding it was not tried.

    Args:
        window_tokens: tokens of one compressed entry, whose contribution to the next entry the state is.
        state_bytes: bytes of the state at one boundary, summed over the overlapping layers: kv and gate,
            `2 * window_tokens * (head_dim + index_head_dim) * dtype_bytes` a layer. Left out with a format.
        page_format: what a page holds; needed to store it.
        shares: the component whose device pages hold the state.
        name: the component's name.
    """
    return Component(name=name, coverage=Trailing(window_tokens), page_bytes=state_bytes, shares=shares, format=page_format)
