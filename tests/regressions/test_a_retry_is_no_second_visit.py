"""Each try of a request that forked off a known prompt counted as a visit of that place, so that three tries made it one that
sessions fork off at steadily.
"""

from __future__ import annotations

from kinds import FULL

from unified_tree import Key
from unified_tree.controllers import PrefixCache
from unified_tree.policies.density.turns import session_of

PROMPT = list(range(64))
FORK = [*PROMPT[:8], *[99] * 8]


def served() -> PrefixCache:
    cache = PrefixCache([FULL], 2, {"full": 64})
    with cache.acquire(Key(PROMPT), reserve_tokens=64) as lease:
        cache.commit(lease, 64)
    return cache


def visits_at(cache: PrefixCache, length: int) -> int:
    """How many visits the place had where prompts fork off the first one."""
    lines = [node.line for node in cache.tree.state.nodes]
    places = [session_of(line).places or {} for line in lines if line is not None]
    return max([each[length].uses for each in places if length in each], default=0)


def test_tries_that_publish_nothing_are_one_visit() -> None:
    cache = served()
    for _ in range(5):
        cache.release(cache.acquire(Key(FORK)))
    assert visits_at(cache, 8) == 1
    with cache.acquire(Key(FORK), reserve_tokens=16) as lease:
        cache.commit(lease, 16)
    assert visits_at(cache, 8) == 1


def test_requests_side_by_side_are_visits_each() -> None:
    cache = served()
    leases = [cache.acquire(Key([*PROMPT[:8], *[100 + i] * 8])) for i in range(3)]
    assert visits_at(cache, 8) == 3
    for lease in leases:
        cache.release(lease)


def test_requests_that_publish_are_visits_each() -> None:
    cache = served()
    for i in range(3):
        with cache.acquire(Key([*PROMPT[:8], *[100 + i] * 8]), reserve_tokens=16) as lease:
            cache.commit(lease, 16)
    assert visits_at(cache, 8) == 3
