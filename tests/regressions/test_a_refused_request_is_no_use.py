"""A load that was refused for room counted its request twice. A transfer without room left the node of its boundary cut in two.

`tests/model/test_refusals.py` proves of every call that is refused that it is no use of anything.
"""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FULL

from unified_tree import Key, OutOfPagesError, Tier, UnifiedTree
from unified_tree.controllers import HostTier, PrefixCache, WritePolicy
from unified_tree.controllers.transfer_engines import NullEngine

PROMPT = list(range(32))


def test_a_load_without_room_ticks_once() -> None:
    host = HostTier(page_counts={"full": 64}, engine=NullEngine(), write_policy=WritePolicy.WRITE_THROUGH)
    cache = PrefixCache([FULL], 2, {"full": 24}, host=host)
    with cache.acquire(Key(PROMPT), reserve_tokens=32) as lease:
        cache.commit(lease, 32)
    cache.drain()
    cache.evict({"full": 16})
    running = cache.acquire(Key([9] * 20), reserve_tokens=20)
    before, loads = cache.tree.state.clock, cache.stats().loads
    lease = cache.acquire(Key([*PROMPT, 1]), reserve_tokens=10)
    assert (lease.cached_tokens, cache.tree.state.clock, cache.stats().loads) == (0, before + 1, loads)
    assert cache.stats().drops == {"no room to load": 1} and cache.stats().refused == 0
    hits = [value.hits for node in cache.tree.state.nodes for value in node.host if value is not None]
    assert hits == [1]
    for each in (running, lease):
        cache.release(each)


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DEVICE])
def test_a_transfer_without_room_leaves_no_cut(tier: Tier) -> None:
    tree = UnifiedTree([FULL], 2)
    whole = tree.insert(Key(PROMPT), {"full": np.arange(16)}).boundary
    part = whole._replace(length=8)
    if tier is Tier.DEVICE:
        effect = tree.transfers.backup(whole, {"full": np.arange(16)})
        assert effect is not None
        tree.transfers.acknowledge(effect)
        tree.evict({"full": 16})
    begin, before = (tree.transfers.backup, tree.transfers.load)[tier is Tier.DEVICE], tree.dump()

    def refuse(needs: dict[str, int]) -> dict[str, np.ndarray]:
        assert needs == {"full": 4}
        raise OutOfPagesError("none")

    for _ in range(3):
        with pytest.raises(OutOfPagesError):
            begin(part, refuse)
    assert tree.dump() == before and not tree.locks.open
    effect = begin(part, {"full": np.arange(20, 24)})
    assert effect is not None
    tree.transfers.acknowledge(effect)
    assert not tree.check() and not tree.locks.open and tree.pages(part, "full", tier).tolist() == [20, 21, 22, 23]
