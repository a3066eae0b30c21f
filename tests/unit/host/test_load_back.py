"""What comes back from host: all or nothing, when it pays, if there is room, and once."""

from __future__ import annotations

import pytest
from held_engine import Tiered, WouldWaitError
from kinds import DRAFT, FULL, MAMBA, swa

from unified_tree import Component, ConfigurationError, Path, Tier
from unified_tree.controllers import LoadCost
from unified_tree.nodes.effect import EffectKind


def remembered(tiered: Tiered, *texts: str) -> Tiered:
    """Serve texts, copy them to host, and let the device forget them."""
    for text in texts:
        tiered.serve(text)
    tiered.settle()
    tiered.forget()
    return tiered


def test_the_gates_open_layer_by_layer() -> None:
    tiered = remembered(Tiered([FULL, swa(3)]), "abcdefgh")
    request = tiered.start("abcdefghij")
    tiered.cache.poll()
    [ticket] = tiered.engine.tickets(EffectKind.LOAD)
    with pytest.raises(WouldWaitError):
        tiered.cache.wait_layer(request.lease, 0)
    tiered.engine.land_layer(ticket, 0)
    tiered.cache.wait_layer(request.lease, 0)
    with pytest.raises(WouldWaitError):
        tiered.cache.wait_layer(request.lease, 1)
    tiered.engine.land_layer(ticket, 1)
    tiered.cache.wait_layer(request.lease, 1)
    tiered.engine.land_layer(ticket, 2)
    tiered.runner.verify(request)
    assert tiered.is_loading(request), "nothing was applied, though all is there"
    tiered.engine.land()
    tiered.cache.poll()
    assert not tiered.is_loading(request)
    tiered.runner.finish(request)
    tiered.end()


def test_a_gate_hands_over_what_was_not_handed_over_yet() -> None:
    tiered = remembered(Tiered([FULL]), "abcd")
    request = tiered.start("abcdef")
    assert tiered.engine.open == {}
    with pytest.raises(WouldWaitError):
        tiered.cache.wait_layer(request.lease, 0)
    assert len(tiered.engine.tickets(EffectKind.LOAD)) == 1
    tiered.end()


def test_all_of_a_boundary_or_nothing() -> None:
    tiered = Tiered([FULL, MAMBA])
    tiered.serve("abcde")
    tiered.serve("abcdefghi")
    tiered.settle()
    tiered.forget()
    assert tiered.cache.controller is not None
    tiered.cache.controller.host.free_evicted(tiered.cache.tree.evict({"mamba": 1}, Tier.HOST))
    assert tiered.serve("abcd??") == 0, "the older state is gone, and without it its path is worth nothing"
    assert tiered.cache.stats().loads == 0
    assert tiered.serve("abcdefgh??") == 8
    tiered.end()


def test_a_load_that_is_not_worth_it() -> None:
    tiered = remembered(Tiered([FULL], load_cost=LoadCost(min_tokens=6)), "abcd", "efghij")
    assert tiered.serve("abcd?") == 0
    assert tiered.serve("efghij?") == 6
    tiered.end()


def test_the_threshold_compares_seconds() -> None:
    cost = LoadCost(bytes_per_s=1e9, latency_s=1e-3, flops_per_s=1e12)
    assert cost.prefers_load(tokens=1, flops=3e9, size_bytes=1e6)
    assert not cost.prefers_load(tokens=1, flops=3e9, size_bytes=2e6)
    assert cost.prefers_load(tokens=1, flops=0, size_bytes=1e12), "nothing is known of FLOPs"
    with pytest.raises(ConfigurationError, match="positive"):
        LoadCost(bytes_per_s=0)


@pytest.mark.parametrize(("bytes_per_s", "hit"), [(1e3, 0), (1e9, 4)])
def test_slow_memory_is_not_asked(bytes_per_s: float, hit: int) -> None:
    costly = Component(name="full", coverage=Path(), page_bytes=1000, flops_per_token=1e9)
    cost = LoadCost(bytes_per_s=bytes_per_s, latency_s=0, flops_per_s=1e12)
    tiered = remembered(Tiered([costly], load_cost=cost), "abcd")
    assert tiered.serve("abcd?") == hit
    tiered.end()


def test_a_load_is_single_flight() -> None:
    tiered = remembered(Tiered([FULL, MAMBA]), "abcdefgh")
    requests = [tiered.start("abcdefghij"), tiered.start("abcdefghkl")]
    tiered.cache.poll()
    moved = [copy.source.size for transfer in tiered.engine.open.values() for copy in transfer.copies]
    assert sum(moved) == 5, "four pages and a state, once"
    assert requests[0].lease.pages("full").tolist() == requests[1].lease.pages("full").tolist()
    for request in requests:
        tiered.run(request)
    assert tiered.cache.stats().host_hit_tokens == 16
    tiered.end()


def test_a_longer_load_stands_on_a_shorter_one() -> None:
    tiered = remembered(Tiered([FULL]), "abcd", "abcdefgh")
    short = tiered.start("abcd?")
    tiered.cache.poll()
    long = tiered.start("abcdefgh?")
    tiered.cache.poll()
    first, second = tiered.engine.tickets(EffectKind.LOAD)
    assert [copy.source.size for copy in tiered.engine.open[second].copies] == [2]
    tiered.engine.fail(first)
    tiered.engine.land()
    tiered.cache.poll()
    for request in (short, long):
        assert request.lease.failure is not None
        tiered.runner.finish(request)
    assert tiered.cache.tree.match_prefix(tiered.start("xy").lease.key).device.length == 0
    tiered.end()


def test_what_others_computed_meanwhile_is_what_the_lease_gets() -> None:
    tiered = Tiered([FULL, MAMBA])
    slow = tiered.start("abcdefgh")
    remembered(tiered, "abcdefgh")
    loading = tiered.start("abcdefghij")
    assert tiered.is_loading(loading)
    target = loading.lease.pages("full").tolist()
    tiered.run(slow)
    tiered.bring()
    tiered.cache.poll()
    assert not tiered.is_loading(loading)
    assert loading.lease.pages("full").tolist() == slow.lease.pages("full").tolist() != target
    assert tiered.cache.stats().pools["full"].leased == 0, "what was loaded for nothing is free again"
    tiered.check()
    tiered.runner.finish(slow)
    tiered.run(loading)
    tiered.end()


def test_a_request_allocates_while_it_loads() -> None:
    tiered = remembered(Tiered([FULL, MAMBA]), "abcdefgh")
    request = tiered.start("abcdefghijkl")
    tiered.cache.allocate(request.lease, 12)
    assert tiered.is_loading(request)
    assert request.lease.pages("full").size == 6
    tiered.check()
    tiered.cache.truncate(request.lease, 10)
    assert not tiered.is_loading(request), "to take pages back is to wait"
    assert request.lease.pages("full").size == 5
    tiered.end()


def test_a_draft_that_was_not_copied_is_missing_not_garbage() -> None:
    tiered = Tiered([FULL, DRAFT], host_counts={"draft": 2})
    remembered(tiered, "abcdefgh")
    request = tiered.start("abcdefghij")
    assert request.lease.pages("draft").tolist() == [-1, -1, -1, -1]
    assert (request.lease.pages("full") >= 0).all()
    tiered.run(request, without=["draft"])
    tiered.end()


@pytest.mark.parametrize("exclusive", [True, False])
def test_exclusive_tiering_gives_up_what_is_on_device_again(exclusive: bool) -> None:
    tiered = Tiered([FULL], device=20, host=8, exclusive=exclusive)
    remembered(tiered, "ijklmnop", "abcdefgh")
    assert tiered.on_host() == 8
    assert tiered.serve("abcdefgh?") == 8
    tiered.serve("0123")
    tiered.settle()
    kept = tiered.cache.tree.match_prefix(tiered.start("ijklmnop?").lease.key).reachable.length
    assert (kept == 8) is exclusive, "the older one, which is on host alone"
    tiered.end()
