"""Closing raised RankError where ranks had fallen apart with a prefetch open, and left the engines and the consensus open.

Of 14 runs of two processes with a fault all 14 did so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kinds import SETS
from rank_threads import RankThreads
from stored_cache import Kept, StoredCache

from unified_tree import Key
from unified_tree.controllers.ranks import Consensus
from unified_tree.controllers.transfer_engines import Transfer
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import RankError, StorageError, TransferError

PROMPT = list(range(41))


class Counted(Kept):
    """Says how often it was closed, and may complain about it."""

    def __init__(self, pools: Sequence[Any]) -> None:
        super().__init__(pools)
        self.closed = 0
        self.error: Exception | None = None

    def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


FAULTS = ("another history", "gone", "another version")


def break_down(fault: str, cache: StoredCache, consensus: Consensus) -> None:
    match fault:
        case "another history":
            consensus.record(b"something else")
        case "gone":
            consensus.close()
        case _:
            cache.cache.invalidate("lora", "weights 9")


def one_rank(consensus: Consensus, rank: int, kinds: str, fault: str, steps: int, detaches: bool) -> dict[str, Any]:
    stores: list[Counted] = []

    def open_store(pools: Sequence[Any]) -> Counted:
        stores.append(Counted(pools))
        return stores[0]

    cache = StoredCache(SETS[kinds], store=open_store, ranks=consensus)
    cache.compute(PROMPT, checkpoints=[20, 40])
    cache.forget()
    cache.prefetch(PROMPT)
    request = cache.runner.start([5] * 41)
    cache.cache.allocate(request.lease, 41)
    cache.runner.compute(request, 41)
    cache.runner.commit(request)
    for _ in range(steps):
        cache.step()
    if rank == 1:
        break_down(fault, cache, consensus)
    raised = 0
    for _ in range(4):
        try:
            cache.clock.advance(1_000)
            cache.cache.poll()
        except RankError:
            raised += 1
    if detaches:
        cache.cache.detach_storage()
    with pytest.raises(RankError):
        consensus.tick()
    cache.cache.close()
    cache.cache.close()
    cache.runner.check()
    cache.runner.finish(request)
    engine = cache.cache.controller
    assert engine is not None
    with pytest.raises(TransferError, match="closed"):
        engine.tier.engine.submit([Transfer(ticket=10**6, kind=EffectKind.LOAD, copies=())])
    with pytest.raises(RankError, match="closed"):
        consensus.tick()
    host = cache.cache.stats().host_pools.values()
    return {"raised": raised > 0, "closed": stores[0].closed, "home": all(pool.used == pool.tree for pool in host)}


@pytest.mark.parametrize("detaches", [False, True], ids=["closed", "detached before"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kinds", ["full", "everything"])
def test_everything_is_closed_once(kinds: str, fault: str, detaches: bool) -> None:
    for steps in (0, 1, 2, 5, 9):
        ends = RankThreads(2).run(one_rank, kinds=kinds, fault=fault, steps=steps, detaches=detaches)
        assert ends == [{"raised": True, "closed": 1, "home": True}] * 2, steps


def test_a_store_that_does_not_close_keeps_nothing_else_open() -> None:
    stores: list[Counted] = []

    def open_store(pools: Sequence[Any]) -> Counted:
        stores.append(Counted(pools))
        return stores[-1]

    cache = StoredCache(SETS["full"], store=open_store)
    cache.compute(PROMPT)
    cache.forget()
    cache.prefetch(PROMPT)
    cache.step(3)
    stores[0].error = StorageError("stuck")
    with pytest.raises(StorageError, match="stuck"):
        cache.cache.close()
    cache.runner.check()
    assert cache.cache.storage is None
    cache.cache.close()
    assert stores[0].closed == 1
    assert not cache.cache.prefetch("request", Key(PROMPT))
    host = cache.cache.stats().host_pools.values()
    assert all(pool.used == pool.tree for pool in host)
