"""A lease that waits for nothing copied an optional state from a page that another lease's load was still to write.

Found by the simulated server with a store behind it (seed 43000068, 1000 ticks).
"""

from __future__ import annotations

from kinds import FULL
from stored_cache import StoredCache

from unified_tree import Component, Point


def test_only_what_is_there_is_copied() -> None:
    kinds = [FULL, Component(name="mamba", coverage=Point(), required=False)]
    first = StoredCache(kinds)
    prompt = list(range(41))
    first.compute(prompt, checkpoints=[40])
    cache = first.like_this()
    running = cache.runner.start(prompt)
    cache.cache.allocate(running.lease, 41)
    cache.runner.compute(running, 41)
    cache.prefetch(prompt)
    while not cache.cache.prefetched("request"):
        cache.step()
    loading = cache.runner.start(prompt)
    assert loading.lease.is_loading
    cache.runner.commit(running, states=False)
    third = cache.runner.start(prompt)  # reads at once what it copies from
    assert not third.lease.is_loading
    cache.end()
