"""Lengths, counts, page ids and priorities may be numpy's integers: schedulers compute them with arrays."""

from __future__ import annotations

import numpy as np
from kinds import FULL, MAMBA, swa

from unified_tree import Key, UnifiedTree
from unified_tree.controllers import PrefixCache

TWO, FOUR, SIX = np.int64(2), np.int32(4), np.int64(6)


def test_a_tree_takes_them() -> None:
    tree = UnifiedTree([FULL, MAMBA], 2)
    key = Key(np.arange(6), bigram=np.False_, copy=np.True_).prefix(SIX)
    key.require_tokens(TWO)
    tail = key.tail(FOUR)
    assert (len(tail), tail.begin, type(tail.begin), type(key.bigram)) == (6, 4, int, bool)
    tree.insert(key, {"full": np.arange(3, dtype=np.int32)}, {"mamba": {FOUR: TWO}}, priority=TWO)  # type: ignore[dict-item, arg-type]
    match = tree.match_prefix(key, limit=FOUR)  # type: ignore[arg-type]
    assert match.device.length == 4
    receipt = tree.lock(match.device)
    receipt.release()
    assert tree.evict({"full": TWO}).freed["full"].size >= 2  # type: ignore[dict-item]
    assert tree.check() == []


def test_a_cache_takes_them() -> None:
    tokens = np.arange(8)
    cache = PrefixCache([FULL, swa(3), MAMBA], 2, {"full": 16, "swa": 16, "mamba": 16})
    lease = cache.acquire(Key(tokens), checkpoints=np.array([2, 6]), priority=TWO)  # type: ignore[arg-type]
    cache.allocate(lease, np.int64(8))  # type: ignore[arg-type]
    cache.advance(lease, FOUR)  # type: ignore[arg-type]
    states = {np.int64(length): np.int64(page) for length, page in lease.save_pages.items()}
    cache.commit(lease, tokens, states)  # type: ignore[arg-type]
    cache.allocate(lease, np.int64(11))  # type: ignore[arg-type]
    cache.truncate(lease, np.int64(9))  # type: ignore[arg-type]
    cache.release(lease)
    assert cache.acquire(Key([*tokens[:6], 9])).cached_tokens == 6
    assert cache.tree.check() == []
