"""A prompt whose path the tree knows, and which computes it again for want of a state, was lost from the prompts under way with
its first chunk: it was filed under the length of that chunk, where no other prompt looks. What the other computed behind the
path counted as never seen instead of in flight.
"""

from __future__ import annotations

import pytest
from kinds import FULL, MAMBA

from unified_tree import Key, MissCause
from unified_tree.controllers import PrefixCache


def tokens(count: int) -> list[int]:
    return list(range(count))


@pytest.mark.parametrize("committed", [0, 2, 4, 6, 8, 10])
def test_a_chunk_below_what_the_tree_knows_leaves_the_prompt_in_flight(committed: int) -> None:
    cache = PrefixCache([FULL, MAMBA], 2)
    with cache.acquire(Key(tokens(8))) as lease:  # an engine that saves no state
        cache.allocate(lease, 8)
        cache.commit(lease, tokens(8))
    first = cache.acquire(Key(tokens(13)))
    if committed:
        cache.allocate(first, committed)
        cache.commit(first, tokens(committed))
    known = max(8, committed)
    second = cache.acquire(Key(tokens(13)))
    found = {miss.cause: (miss.begin, miss.end) for miss in second.misses}
    assert found[MissCause.IN_FLIGHT] == (known, 12)
    assert found[MissCause.NEVER_SAVED] == (0, known)
    cache.release(first)
    cache.release(second)
    assert cache.ledger.in_flight.count == 0
