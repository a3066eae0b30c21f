"""A prompt in chunks kept the windows of each chunk locked as a whole, though its next token needs less: a pool that held a
window and a chunk turned such prompts away.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from kinds import FULL, swa

from unified_tree import Key
from unified_tree.controllers import PrefixCache


@pytest.mark.parametrize("seed", range(20))
def test_what_is_locked_of_spare_windows_is_what_the_next_token_needs(seed: int) -> None:
    rng = Random(seed)
    page, window = rng.choice([1, 2, 4]), rng.randrange(1, 60)
    cache = PrefixCache([FULL, swa(window)], page)
    tokens = np.arange(page * rng.randrange(2, 100) + rng.randrange(page))
    with cache.acquire(Key(tokens)) as lease:
        at = 0
        while at < tokens.size - 1:
            at = min(tokens.size - 1, at + rng.randrange(1, 70))
            cache.allocate(lease, at)
            cache.commit(lease, at, resumable=False)
            end = at // page * page
            needed = end // page - max(0, end - window) // page
            assert cache.stats().pools["swa"].protected == needed
            assert cache.tree.check() == []
    assert cache.stats().pools["swa"].protected == 0


@pytest.mark.parametrize(("chunk", "window"), [(512, 600), (64, 600), (512, 5), (512, 512)])
def test_a_window_and_a_chunk_are_room_enough(chunk: int, window: int) -> None:
    size = 16
    room = -(-window // size) + 1 + chunk // size
    cache = PrefixCache([FULL, swa(window)], size, {"full": 200, "swa": room})
    tokens = np.arange(3000)
    for _ in range(2):
        with cache.acquire(Key(tokens)) as lease:
            for at in [*range(lease.compute_from + chunk, tokens.size, chunk), tokens.size]:
                cache.allocate(lease, at)
                cache.commit(lease, at)
        tokens = tokens + 5000
