"""Turns of sessions over caches of pages of four tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unified_tree import Component, Key, Path, Point
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.host import HostTier, WritePolicy
from unified_tree.controllers.transfer_engines import NullEngine

STATES = [Component(name="full", coverage=Path()), Component(name="mamba", coverage=Point(), save_grid_tokens=4)]


def cache_of(kinds: Sequence[Component], counts: dict[str, int], *, has_host: bool = False, **options: Any) -> PrefixCache:
    """A cache, written through to a host tier without limits if that is wanted."""
    host = None
    if has_host:
        host = HostTier(page_counts={}, engine=NullEngine(), write_policy=WritePolicy.WRITE_THROUGH)
    return PrefixCache(kinds, 4, counts, host=host, **options)


def turn(cache: PrefixCache, tokens: Any, session: object = None) -> int:
    """Serve a prompt; how many of its tokens were cached."""
    prompt = np.asarray(tokens)
    with cache.acquire(Key(prompt), session=session) as lease:
        cache.allocate(lease, prompt.size)
        for stop in (*lease.save_at, prompt.size):
            if stop > lease.committed:
                cache.commit(lease, stop, states={at: page for at, page in lease.save_pages.items() if at <= stop})
        cached = lease.cached_tokens
    cache.drain()
    assert not cache.tree.check()
    return cached
