"""No hint makes a request fail that would have been admitted without it.

Two caches serve the same, and one of them gets hints.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from unified_tree import Component, Key, OutOfPagesError, Path, Point
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache import Lease
from unified_tree.controllers.host import HostTier, WritePolicy
from unified_tree.controllers.transfer_engines import NullEngine

PAGE = 2
KINDS = [Component(name="full", coverage=Path()), Component(name="mamba", coverage=Point(), save_grid_tokens=2)]


class Twin:
    """One of the two caches, with its open leases by session."""

    def __init__(self, pages: int, *, has_host: bool, policy: str, write_policy: WritePolicy) -> None:
        host = HostTier(page_counts={}, engine=NullEngine(), write_policy=write_policy, selective_hits=1) if has_host else None
        self.cache = PrefixCache(KINDS, PAGE, {"full": pages, "mamba": 64}, host=host, policy=policy, max_hints=3)
        self.open: dict[int, Lease] = {}

    def serve(self, session: int, length: int) -> bool:
        prompt = np.arange(length) + 1000 * session
        try:
            lease = self.cache.acquire(Key(prompt), session=session, reserve_tokens=length)
        except OutOfPagesError:
            return False
        self.cache.commit(lease, length, states={at: page for at, page in lease.save_pages.items() if at <= length})
        self.open[session] = lease
        return True

    def drop(self, session: int) -> None:
        if session in self.open:
            self.cache.release(self.open.pop(session))


def hint(rng: Random, cache: PrefixCache) -> None:
    session, hints = rng.randrange(4), cache.hints
    target = session if rng.random() < 0.7 else Key(np.arange(rng.randint(1, 12)) + 1000 * session)
    verbs = [hints.pin, hints.demote, hints.share, hints.prefetch, hints.prefetch]
    if not isinstance(target, Key):
        verbs.append(hints.retain)
    rng.choice(verbs)(target)
    if rng.random() < 0.1:
        hints.unpin(target)


@pytest.mark.parametrize("seed", range(60))
def test_no_hint_makes_a_request_fail(seed: int) -> None:
    rng = Random(seed)
    options = {"policy": rng.choice(["density", "lru", "cost"]), "write_policy": rng.choice(list(WritePolicy))}
    pages, has_host = rng.choice([3, 6, 12, 40]), rng.random() < 0.7
    plain, hinted = (Twin(pages, has_host=has_host, **options) for _ in range(2))  # type: ignore[arg-type]
    lengths = [rng.randint(1, 8) for _ in range(4)]
    for _ in range(80):
        hint(rng, hinted.cache)
        session, dice = rng.randrange(4), rng.random()
        if dice < 0.1:
            for twin in (plain, hinted):
                twin.cache.end_session(session)
            lengths[session] = rng.randint(1, 8)
        elif dice < 0.6 and session not in plain.open:
            lengths[session] = min(20, lengths[session] + rng.randrange(6))
            for twin in (plain, hinted):
                twin.cache.drain()  # backups pin pages, and the two make other ones
            if has_host:
                hinted.cache.hints.prefetch(rng.randrange(4))  # it is under way when the request comes
            admitted = plain.serve(session, lengths[session])
            assert hinted.serve(session, lengths[session]) or not admitted
            if not admitted:
                hinted.drop(session)
        else:
            for twin in (plain, hinted):
                twin.drop(session)
        assert not hinted.cache.tree.check()
    for session in range(4):
        hinted.drop(session)
    hinted.cache.drain()
    with hinted.cache.acquire(Key(np.arange(2 * pages) + 9000)) as lease:
        hinted.cache.allocate(lease, 2 * pages)
    assert sum(hinted.cache.stats().hints.values()) > 0
    hinted.cache.close()
