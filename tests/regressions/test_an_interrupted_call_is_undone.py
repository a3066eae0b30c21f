"""A Ctrl-C inside `DecodeBatch.allocate` lost pages, inside `acquire` a state page and locks; inside the release of a lease in
a batch it let the same pages be released a second time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from interrupted import Stop
from kinds import FULL, MAMBA, swa

from unified_tree import Key, LeaseError
from unified_tree.controllers import DecodeBatch, Lease, PrefixCache
from unified_tree.controllers.cache import lease as lease_module

Made = tuple[PrefixCache, DecodeBatch, Lease]


def made() -> Made:
    """A cached prompt, and a lease that goes on from it in a batch."""
    cache = PrefixCache([FULL, swa(3), MAMBA], 2, {"full": 24, "swa": 24, "mamba": 6})
    with cache.acquire(Key(range(8)), reserve_tokens=8) as first:
        cache.commit(first, 8, dict(first.save_pages))
    lease = cache.acquire(Key(range(9)), reserve_tokens=9)
    batch = cache.batch(2, 32)
    batch.add(lease)
    return cache, batch, lease


CALLS: dict[str, Callable[[Made], object]] = {
    "allocate of a batch": lambda made: made[1].allocate(5),
    "acquire": lambda made: made[0].acquire(Key([*range(8), 77]), reserve_tokens=12),
    "release in a batch": lambda made: made[0].release(made[2]),
}


@pytest.mark.skipif(not lease_module.__file__.endswith(".py"), reason="compiled modules have no lines to interrupt")
@pytest.mark.parametrize("name", CALLS)
def test_whatever_line_is_interrupted(name: str) -> None:
    whole, world = Stop(), made()
    whole.run(lambda: CALLS[name](world))
    assert len(whole.lines) > 50
    for line in whole.lines:
        cache, batch, lease = world = made()
        before = lease.length, cache.device.allocators["full"].used_pages, cache.lease_count
        stop = Stop(line)
        stop.run(lambda world=world: CALLS[name](world))  # type: ignore[misc]
        assert stop.raised, line
        if name != "release in a batch":
            assert (lease.length, cache.device.allocators["full"].used_pages, cache.lease_count) == before, line
        for each in cache.leases:
            cache.release(each)
        with pytest.raises(LeaseError):
            cache.release(lease)
        stats = cache.stats().pools
        assert [(pool.leased, pool.protected) for pool in stats.values()] == [(0, 0)] * 3, line
        assert not batch.leases and not cache.tree.check() and not cache.tree.locks.open, line
        cache.evict(dict.fromkeys(stats, 24))
        assert [pool.used for pool in cache.stats().pools.values()] == [0, 0, 0], line
        assert sorted(cache.device.allocate_all({"full": 24})["full"].tolist()) == list(range(24)), line
