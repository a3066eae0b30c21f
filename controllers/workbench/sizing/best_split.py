"""The split of a budget between pools that hits most.

Pools of one boundary are complements: a window is worth nothing without the path before it. So the two are not sized by
curves of their own. All windows and states take part in the same boundaries, so what is left to choose is one number: the
paths' share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.sizing.surface import Surface

SHARES = 96
FLAT = 1e-4
"""Shares whose hit rates are that close are as good as each other: the proposed one is kept, or the middle one taken."""


def best_split(surface: Surface, size_bytes: int, running: int) -> dict[str, int] | None:
    """Pages by pool of a device. Of shares that are equally good it takes the middle one, farthest from what is worse on either
    side. It rejects as few prompt tokens as any share does, whatever it hits of the rest.

    Args:
        running: requests at once, which take pages of the same pools.

    Returns None where not even the running requests fit. Cost: O(SHARES · (passes + requests)).
    """
    if not surface.needs.is_gated:
        return split_by_share(surface, size_bytes, 1.0, running)
    candidates = [
        (surface.rejected(counts).token_share, surface.hit_rate(counts), counts)
        for i in range(1, SHARES)
        if (counts := split_by_share(surface, size_bytes, i / SHARES, running)) is not None
    ]
    if not candidates:
        return None
    least = min(rejected for rejected, _, _ in candidates)
    most = max(rate for rejected, rate, _ in candidates if rejected == least)
    good = [counts for rejected, rate, counts in candidates if rejected == least and rate >= most - FLAT]
    return good[len(good) // 2]


def split_by_share(surface: Surface, size_bytes: int, share: float, running: int) -> dict[str, int] | None:
    """Pages by pool with this share of the budget for paths; None where the others have too little for what is running."""
    needs = surface.needs
    pages = int(share * size_bytes / sum(needs.path_bytes.values()))
    counts = dict.fromkeys(needs.path_bytes, pages)
    left = size_bytes - pages * sum(needs.path_bytes.values())
    held = {name: running * pool.running_pages + pool.step_pages for name, pool in needs.values.items()}
    left -= sum(held[name] * pool.page_bytes for name, pool in needs.values.items())
    if left < 0 or pages == 0:
        return None
    value_bytes = sum(pool.pages * pool.page_bytes for pool in needs.values.values())
    for name, pool in needs.values.items():
        counts[name] = held[name] + left // value_bytes * pool.pages
    return counts
