"""No hint makes a call fail that would have succeeded without it.

Two caches serve the same. One knows of no sessions; the other has named sessions, and is told hints and ends of sessions at any
moment between two calls. Copies take time. Before each call all copies have ended but those that were begun by what was said
since: backups keep pages, and the two caches make other ones.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from kinds import SETS

from unified_tree import BlockBudget, Key, OutOfPagesError
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache import Lease
from unified_tree.controllers.cache.hints import Hints
from unified_tree.controllers.host import HostTier, WritePolicy
from unified_tree.controllers.testing import Latencies, SimulatedEngine
from unified_tree.controllers.transfer_engines import VirtualClock

PAGE = 2
TEXT = 1000
KINDS = ("full", "narrow window", "mamba", "window and mamba")
NAMES = 6


class Twin:
    """One of the two caches, with its open leases by session.

    Args:
        settings: of the cache alone, beside what a seed decides for both.
    """

    def __init__(self, seed: int, **settings: Any) -> None:
        rng = Random(seed)
        kinds = SETS[rng.choice(KINDS)]
        counts = {each.name: rng.choice([6, 8, 12, 16]) for each in kinds}
        budget = None
        if rng.random() < 0.3:
            budget = BlockBudget(block_count=sum(counts.values()), page_blocks=dict.fromkeys(counts, 1))
        host = None
        if rng.random() < 0.7:
            host = HostTier(
                page_counts=dict.fromkeys(counts, rng.choice([4, 1000, 1000])),
                engine=SimulatedEngine(1, VirtualClock(), Latencies(stage_ns=100, page_ns=10, cancel_ns=1000)),
                write_policy=rng.choice([WritePolicy.WRITE_THROUGH, *WritePolicy]),
                selective_hits=1,
                exclusive=rng.random() < 0.5,
            )
        policy = rng.choice(["density", "lru", "cost"])
        self.has_host = host is not None
        self.cache = PrefixCache(
            kinds, PAGE, None if budget else counts, budget=budget, host=host, policy=policy, max_sessions=100, **settings
        )
        self.open: dict[int, Lease] = {}

    def admit(self, prompt: Key, owner: int, reserve: int, session: int | None) -> bool:
        try:
            self.open[owner] = self.cache.acquire(prompt, session=session, reserve_tokens=reserve)
        except OutOfPagesError:
            return False
        return True

    def grow(self, owner: int, length: int) -> bool:
        lease = self.open[owner]
        try:
            self.cache.allocate(lease, length)
        except OutOfPagesError:
            return False
        self.cache.wait_layer(lease, 0)
        if length > lease.computed:
            self.cache.commit(lease, length, states={at: page for at, page in lease.save_pages.items() if at <= length})
        return True

    def drop(self, owner: int) -> None:
        if owner in self.open:
            self.cache.release(self.open.pop(owner))


def talk(rng: Random, cache: PrefixCache) -> None:
    """Anything about any session, or about a prompt; also that a session has ended."""
    session, hints = rng.randrange(NAMES), cache.hints
    target = session if rng.random() < 0.7 else Key(np.arange(rng.randint(1, 12)) + TEXT * session)
    verbs: list[Callable[[Any], object]] = [hints.pin, hints.demote, hints.share, hints.unpin, *[hints.prefetch] * 4]
    if not isinstance(target, Key):
        verbs += [hints.retain, cache.end_session]
    rng.choice(verbs)(target)
    if rng.random() < 0.5:
        cache.poll()
    if hints.loading and rng.random() < 0.3:
        for each in range(NAMES):
            cache.end_session(each)


@pytest.mark.parametrize("seed", range(80))
def test_no_hint_makes_a_call_fail(seed: int) -> None:
    rng = Random(f"steps {seed}")
    plain, hinted = Twin(seed), Twin(seed, max_hints=rng.choice([1, 3, 100]), infer_sessions=True)
    twins = plain, hinted
    lengths = [rng.randint(1, 8) for _ in range(NAMES)]
    twos = rng.choice([1, 2])  # two sessions may have one text
    for _ in range(80):
        owner = rng.randrange(NAMES)
        if owner in plain.open and rng.random() < 0.4:
            for twin in twins:
                twin.drop(owner)
            continue
        for twin in twins:
            twin.cache.drain()
        for _ in range(rng.randrange(4)):
            talk(rng, hinted.cache)
        if owner not in plain.open:
            lengths[owner] = rng.choice([rng.randint(1, 8), min(20, lengths[owner] + rng.randrange(6))])
            prompt, reserve = np.arange(lengths[owner]) + TEXT * (owner // twos), rng.choice([0, lengths[owner]])
            did = [twin.admit(Key(prompt), owner, reserve, owner if twin is hinted else None) for twin in twins]
        else:
            length = rng.randint(1, lengths[owner])
            did = [twin.grow(owner, length) for twin in twins]
        assert did[1] or not did[0], "a hint was the reason"
        if not all(did):
            for twin in twins:
                twin.drop(owner)
        assert not hinted.cache.tree.check()
        assert did[1] or not hinted.cache.hints.loading
    for owner in range(NAMES):
        hinted.drop(owner)
    hinted.cache.drain()
    stats = hinted.cache.stats()
    for name, pool in stats.pools.items():
        assert pool.leased == pool.protected == 0, name
    assert sum(stats.hints.values()) > 0
    hinted.cache.close()


def test_a_cache_whose_hints_keep_requests_out_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hints, "relieve", lambda _: False)
    with pytest.raises(AssertionError, match="a hint was the reason"):
        test_no_hint_makes_a_call_fail(24)
