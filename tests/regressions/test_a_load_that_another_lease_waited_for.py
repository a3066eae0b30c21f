"""Two leases waited for one load, of pages that a third published meanwhile. When one had waited, the load's own pages were
free again, and the other one's table still named them until the next poll.

Found by the simulated server with a store behind it (seed 43000068, 1000 ticks).
"""

from __future__ import annotations

import pytest
from kinds import FULL, MAMBA, swa
from stored_cache import StoredCache

from unified_tree import Component


@pytest.mark.parametrize("kinds", [[FULL], [FULL, swa(5)], [FULL, MAMBA]])
def test_the_other_lease_has_the_trees_pages_at_once(kinds: list[Component]) -> None:
    prompt = list(range(41))
    first = StoredCache(kinds)
    first.compute(prompt, checkpoints=[40])
    cache = first.like_this()
    running = cache.runner.start(prompt, checkpoints=[40])
    cache.cache.allocate(running.lease, 41)
    cache.runner.compute(running, 41)
    cache.prefetch(prompt)
    while not cache.cache.prefetched("request"):
        cache.step()
    waiting, other = cache.runner.start(prompt), cache.runner.start(prompt)
    assert [one.lease.is_loading for one in (waiting, other)] == [True, True]
    cache.runner.commit(running)
    cache.cache.advance(waiting.lease, 40)
    cache.runner.check()
    assert [one.lease.is_loading for one in (waiting, other)] == [False, False]
    cache.runner.verify(other)
    cache.runner.verify(waiting)
    cache.end()
