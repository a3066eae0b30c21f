"""Pages for the states that a lease will save as its run goes on.

Within the prompt each place of `save_at` has a page of its own. Behind it the state follows the output: each new place on the
grid supersedes the one before. Speculation runs ahead of what is certain, though, and takes back what was rejected: the
page of the place before is kept until so many tokens have been run beyond the new place that no rejection leads back there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache


def allocate_saves(cache: PrefixCache, lease: Lease, certain_tokens: int) -> None:
    """Pages for the states to be saved up to the lease's length. A pool that is short saves fewer.

    Args:
        certain_tokens: what was run and will not be taken back.
    """
    assert cache.point is not None
    for length in lease.save_at:
        due = lease.committed < length <= lease.length and length not in lease.saved
        if due and length not in lease.save_pages and cache.device.try_reserve(cache.point):
            lease.save_pages[length] = int(cache.device.allocate(cache.point, 1)[0])
    if not lease.save_output:
        return
    _follow_output(cache, lease, cache.point)
    drop_superseded(cache, lease, certain_tokens)


def _follow_output(cache: PrefixCache, lease: Lease, point: str) -> None:
    """A page for the last place that the output has pages for: a new one, or that of the place before the last."""
    latest = lease.length // cache.save_grid_tokens * cache.save_grid_tokens
    if latest <= max(lease.prompt_tokens, lease.committed) or latest in lease.save_pages:
        return
    earlier = output_lengths(lease, lease.save_pages)
    if len(earlier) < 2 and cache.device.try_reserve(point):
        lease.save_pages[latest] = int(cache.device.allocate(point, 1)[0])
    elif earlier:
        lease.save_pages[latest] = lease.save_pages.pop(earlier[0])


def output_lengths(lease: Lease, lengths: Iterable[int]) -> list[int]:
    """Which of these lie behind the prompt, ascending."""
    return sorted(length for length in lengths if length > lease.prompt_tokens)


def drop_superseded(cache: PrefixCache, lease: Lease, certain_tokens: int, saved: Iterable[int] = ()) -> None:
    """Give back the pages of the output's states before the last one that is certain, among those kept or `saved`."""
    kept = output_lengths(lease, lease.save_pages)
    certain = [length for length in output_lengths(lease, (*kept, *saved)) if length <= certain_tokens]
    superseded = [length for length in kept if certain and length < certain[-1]]
    if superseded:
        assert cache.point is not None
        cache.device.free(cache.point, np.array([lease.save_pages.pop(length) for length in superseded], np.int64))
