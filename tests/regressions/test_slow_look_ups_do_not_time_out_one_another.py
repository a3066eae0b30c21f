"""One thread read for all prefetches: sixteen look-ups in a slow store stood in line until all had timed out but the first."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from kinds import FULL
from stored_cache import Kept, StoredCache, policy
from waiting import PATIENCE_S

from unified_tree.controllers.storage_tier import PrefetchMode, StorageTier

ARRIVALS = 16
PROMPTS = [[*range(21), user] for user in range(ARRIVALS)]


class Meeting(Kept):
    """A store whose look-ups end when as many are under way as there are arrivals, if that ever happens."""

    def __init__(self, pools: Sequence[Any]) -> None:
        super().__init__(pools)
        self.met = threading.Barrier(ARRIVALS)

    def exists(self, pool: str, keys: Sequence[bytes]) -> Any:
        self.met.wait(PATIENCE_S)
        return super().exists(pool, keys)


def test_sixteen_arrivals_are_looked_up_side_by_side() -> None:
    cache = StoredCache([FULL], store=Meeting, threads=True, attach=False)
    made = cache.make_tier()
    tier = StorageTier(
        engine=made.engine, pools=made.pools, memory=made.memory, weights_version="weights 0", prefetch=made.prefetch
    )
    for jobs in (made.reading, made.writing):
        jobs.close()
    cache.cache.attach_storage(tier)
    for user, prompt in enumerate(PROMPTS):
        assert cache.prefetch(prompt, namespace=f"user {user}", request=user)
    cache.cache.drain()
    assert cache.drops() == {}, "a barrier that breaks is an error of the look-up"
    cache.end()


def test_those_that_gave_up_leave_the_line() -> None:
    """With a single reader, what waits behind them is looked up as soon as the call under way has returned."""
    cache = StoredCache([FULL], prefetch=policy(mode=PrefetchMode.TIMEOUT, base_s=1.0))
    for user, prompt in enumerate(PROMPTS):
        cache.prefetch(prompt, namespace=f"user {user}", request=user)
    cache.clock.advance(2 * 10**9)
    assert all(cache.cache.prefetched(user) for user in range(ARRIVALS))
    cache.cache.drain()
    assert cache.store.calls == []
    assert cache.drops() == {"prefetch out of time": ARRIVALS}
    cache.end()


def test_one_goes_on_for_who_still_waits_for_the_same() -> None:
    cache = StoredCache([FULL])
    cache.compute(PROMPTS[0])
    twin = cache.like_this()
    twin.prefetch(PROMPTS[0], request="first")
    twin.prefetch(PROMPTS[0], request="second")
    twin.hit(PROMPTS[0], request="first")
    twin.cache.drain()
    assert twin.hit(PROMPTS[0], request="second") == 20
    assert twin.cache.storage is not None
    assert twin.cache.storage.stats().prefetches == 1, "the first one's look-up served both"
    cache.end()
    twin.end()
