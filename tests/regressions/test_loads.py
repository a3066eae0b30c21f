"""Loads from host: what they wait for, what they bring, and what becomes of a request whose load ends or fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from held_engine import HeldEngine, Tiered
from kinds import CARRY_OVER, FULL, MAMBA, SETS, swa
from memory_model import Request
from page_memory import PageMemory
from published import publish
from stored_cache import StoredCache

from unified_tree import Component, Key, TransferError
from unified_tree.controllers import HostTier, LoadCost, PrefixCache
from unified_tree.controllers.testing import SimulatedEngine
from unified_tree.controllers.transfer_engines import NullEngine, VirtualClock
from unified_tree.nodes.effect import EffectKind

TOKENS = np.arange(13)
PROMPT = list(range(41))


def on_host_alone(engine: Any) -> PrefixCache:
    """A cache whose device pages hold another prompt, and which has copied TOKENS to host."""
    cache = PrefixCache([FULL], 2, {"full": 8}, host=HostTier(page_counts={"full": 16}, engine=engine))
    for tokens in (TOKENS, np.arange(100, 114)):
        publish(cache, tokens)
        cache.drain()
    return cache


def test_a_load_does_not_join_a_cancelled_one() -> None:
    """A request asked for what a cancelled load was bringing, before that load had ended, and failed with it."""
    cache = on_host_alone(SimulatedEngine(0, VirtualClock()))
    first = cache.acquire(Key(TOKENS))
    assert first.is_loading
    cache.poll()
    cache.release(first)
    second = cache.acquire(Key(TOKENS))
    assert not second.is_loading
    assert cache.stats().drops["load beside a cancelled one"] == 1
    cache.release(second)
    cache.drain()
    third = cache.acquire(Key(TOKENS))
    assert third.cached_tokens == 12
    cache.drain()
    assert (third.is_loading, third.failure) == (False, None)
    cache.release(third)
    cache.close()


def test_a_request_can_do_without_loads() -> None:
    """Where loads kept failing, a request that tried again got another load, which failed too, and so on for ever."""
    engine = HeldEngine(PageMemory([FULL]).movers())
    cache = on_host_alone(engine)
    for _ in range(2):
        failing = cache.acquire(Key(TOKENS))
        assert failing.is_loading
        cache.poll()
        [ticket] = engine.tickets(EffectKind.LOAD)
        engine.fail(ticket)
        cache.poll()
        assert failing.failure is not None
        cache.release(failing)
    computing = cache.acquire(Key(TOKENS), may_load=False)
    assert (computing.is_loading, computing.cached_tokens) == (False, 0)
    assert not engine.open
    cache.release(computing)
    publish(cache, TOKENS, may_load=False)
    cache.drain()
    assert cache.acquire(Key(TOKENS)).cached_tokens == 12
    cache.close()


def test_a_load_leaves_a_page_for_the_running_state() -> None:
    """A load took the last state page, so that the request that asked for it was refused: after pages had been evicted for it,
    and though it could have run without. Found by the simulation, which compares the books before and after a refusal.
    """
    tiered = Tiered([FULL, MAMBA], counts={"mamba": 2}).served("abcde")
    other = tiered.start("uv")
    dump = tiered.cache.tree.dump()
    request = tiered.start("abcdefg")
    assert (request.lease.cached_tokens, request.lease.is_loading) == (0, False)
    assert tiered.cache.tree.dump() == dump
    assert tiered.engine.open == {}
    tiered.runner.finish(other)
    tiered.runner.finish(request)
    tiered.forget()
    assert tiered.serve("abcdefg") == 4
    tiered.end()


def test_a_lease_can_be_released_though_the_engine_is_gone() -> None:
    """Releasing a lease whose load had not been handed over raised when the engine refused it, with its pages half given back.
    Found by a test of engines that die.
    """
    tiered = Tiered([FULL, MAMBA]).served("abcdefgh")
    requests = [tiered.start("abcdefghi"), tiered.start("abcdefghj")]
    tiered.cache.allocate(requests[0].lease, 9)
    tiered.engine.error = "gone for good"
    tiered.runner.finish(requests[0])
    tiered.check()
    with pytest.raises(TransferError, match="gone for good"):
        tiered.cache.wait_layer(requests[1].lease, 0)
    tiered.runner.finish(requests[1])
    tiered.end()


def test_a_load_that_has_arrived_stays() -> None:
    """A load that had arrived and whose gates had all opened was declared stale: its boundary lay inside a node, was cut off
    when it was pinned, and went on naming the lower half, which nothing pinned and the host evicted.
    """
    host = HostTier(page_counts={"full": 8}, engine=NullEngine(), load_cost=LoadCost(min_tokens=1))
    cache = PrefixCache([FULL], 1, {"full": 20}, host=host)
    publish(cache, [1, 2, 3, 4, 5, 6], may_load=False)
    cache.drain()
    cache.device.free_evicted(cache.tree.evict({"full": 20}))
    lease = cache.acquire(Key([1, 2, 3, 9]))
    assert (lease.cached_tokens, lease.is_loading) == (3, True)
    cache.wait_layer(lease, 0)
    for other in ([11, 12], [21, 22, 23]):
        publish(cache, other, may_load=False)
    cache.poll()
    cache.allocate(lease, 4)
    cache.commit(lease, [1, 2, 3, 9])
    assert lease.committed == 4
    cache.release(lease)
    cache.drain()
    assert cache.tree.check() == []
    cache.close()


def test_a_lease_keeps_window_pages_that_hold_more() -> None:
    """Two requests computed the same tokens, and one of them got pages from host in which a carry-over was missing. Found by
    the simulation: a load brings of the carry-over only what its boundary needs. The window page before that came without
    it, and the other request's commit swapped its own, whole page for the tree's.
    """
    host = HostTier(page_counts={"full": 100, "swa": 100, "carry": 100}, engine=NullEngine(), load_cost=LoadCost(min_tokens=1))
    cache = PrefixCache([FULL, swa(5), CARRY_OVER], 2, {"full": 50, "swa": 50}, host=host)
    with cache.acquire(Key(TOKENS[:10])) as first:
        cache.allocate(first, 10)
        cache.commit(first, 6, resumable=False)  # a node ends here
        cache.commit(first, 10)
    cache.drain()
    cache.tree.evict({"full": 50, "swa": 50})
    slow = cache.acquire(Key(TOKENS[:7]))
    cache.allocate(slow, 7)
    loading = cache.acquire(Key(TOKENS[:11]))
    cache.drain()
    assert (slow.cached_tokens, loading.cached_tokens, loading.is_loading) == (0, 10, False)
    own = slow.pages("swa").tolist()
    cache.commit(slow, 6, resumable=True)
    assert slow.pages("swa").tolist() == own
    cache.release(slow)
    cache.release(loading)
    assert cache.tree.check() == []
    cache.close()


def over_a_store(kinds: list[Component], *checkpoints: int) -> tuple[StoredCache, Request]:
    """A prompt that a store has: a request has computed it and not published it yet, a prefetch has brought it to host."""
    first = StoredCache(kinds)
    first.compute(PROMPT, checkpoints=[40])
    cache = first.like_this()
    running = cache.runner.start(PROMPT, checkpoints=checkpoints)
    cache.cache.allocate(running.lease, 41)
    cache.runner.compute(running, 41)
    cache.prefetch(PROMPT)
    while not cache.cache.prefetched("request"):
        cache.step()
    return cache, running


@pytest.mark.parametrize("kinds", [[FULL], [FULL, swa(5)], [FULL, MAMBA]])
def test_a_load_that_another_lease_waited_for(kinds: list[Component]) -> None:
    """Two leases waited for one load, of pages that a third published meanwhile. When one had waited, the load's own pages
    were free again, and the other one's table still named them until the next poll. Found by the simulated server with a
    store behind it (seed 43000068, 1000 ticks).
    """
    cache, running = over_a_store(kinds, 40)
    waiting, other = cache.runner.start(PROMPT), cache.runner.start(PROMPT)
    assert [one.lease.is_loading for one in (waiting, other)] == [True, True]
    cache.runner.commit(running)
    cache.cache.advance(waiting.lease, 40)
    cache.runner.check()
    assert [one.lease.is_loading for one in (waiting, other)] == [False, False]
    cache.runner.verify(other)
    cache.runner.verify(waiting)
    cache.end()


def test_a_state_on_its_way_to_another_is_not_copied() -> None:
    """A lease that waits for nothing copied an optional state from a page that another lease's load was still to write. Found
    by the simulated server with a store behind it (seed 43000068, 1000 ticks).
    """
    cache, running = over_a_store(SETS["optional mamba"])
    loading = cache.runner.start(PROMPT)
    assert loading.lease.is_loading
    cache.runner.commit(running, states=False)
    third = cache.runner.start(PROMPT)  # reads at once what it copies from
    assert not third.lease.is_loading
    cache.end()
