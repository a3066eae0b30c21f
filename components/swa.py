"""Sliding-window attention (SWA): a layer sees the query and its window of past tokens, nothing older."""

from __future__ import annotations

from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Trailing
from unified_tree.declare.page_format import PageFormat


def swa(
    *,
    page_size: int,
    window_tokens: int,
    layers: int,
    bytes_per_token: int = 0,
    page_format: PageFormat | None = None,
    flops_per_token: float = 0.0,
    exact_rebuild: bool = True,
    name: str = "swa",
) -> Component:
    """The `Trailing` component of all layers that share one window.

    A missing window is rebuilt exactly by running the last `layers * window_tokens` tokens again while the full layers
    read their cached pages: each window layer needs its own window to be exact before the next one can be.

    Args:
        page_size: tokens a page.
        window_tokens: *past* tokens the next one needs; a config's `sliding_window` counts the query too, so it is
            one more.
        layers: how many layers have this window.
        bytes_per_token: bytes one token takes on one rank, summed over those layers. Left out with a format.
        page_format: what a page holds; needed to store it.
        flops_per_token: twice the active weights of those layers, over all ranks.
        exact_rebuild: False where such a rebuild is not known to be exact.
        name: the component's name; models of several windows need one component a window.

    >>> swa(page_size=64, window_tokens=127, layers=18, bytes_per_token=36864).rebuild_tokens
    2286
    """
    return Component(
        name=name,
        coverage=Trailing(window_tokens),
        page_bytes=page_size * bytes_per_token,
        flops_per_token=flops_per_token,
        rebuild_tokens=layers * window_tokens if exact_rebuild else None,
        format=page_format,
    )
