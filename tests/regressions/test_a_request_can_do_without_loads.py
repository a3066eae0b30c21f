"""Where loads kept failing, a request that tried again got another lease on a load, which failed too, and so on for ever."""

from __future__ import annotations

import numpy as np
from held_engine import HeldEngine
from page_memory import PageMemory

from unified_tree import Component, Key, Path
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.nodes.effect import EffectKind

FULL = Component(name="full", coverage=Path())
TOKENS = np.arange(13)


def commit(cache: PrefixCache, tokens: np.ndarray) -> None:
    with cache.acquire(Key(tokens)) as lease:
        cache.allocate(lease, tokens.size)
        cache.commit(lease, tokens)
    cache.drain()


def test_it_computes_instead() -> None:
    engine = HeldEngine(PageMemory([FULL]).movers())
    cache = PrefixCache([FULL], 2, {"full": 8}, host=HostTier(page_counts={"full": 16}, engine=engine))
    commit(cache, TOKENS)
    commit(cache, np.arange(100, 114))
    for _ in range(2):
        failing = cache.acquire(Key(TOKENS))
        assert failing.is_loading
        cache.poll()
        [ticket] = engine.tickets(EffectKind.LOAD)
        engine.fail(ticket)
        cache.poll()
        assert failing.failure is not None
        cache.release(failing)
    computing = cache.acquire(Key(TOKENS), may_load=False)
    assert (computing.is_loading, computing.cached_tokens) == (False, 0)
    assert not engine.open
    cache.allocate(computing, TOKENS.size)
    cache.commit(computing, TOKENS)
    cache.release(computing)
    cache.drain()
    assert cache.acquire(Key(TOKENS)).cached_tokens == 12
    cache.close()
