"""Loads from host and prefetches from a store, over plain tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

import pytest
import torch
from fake_lanes import FakeDevice, delay_copies
from rank_threads import RankThreads
from sglang_tiers import KINDS, PAGES, SIZE, TOKENS, Served
from watchdog import until

from unified_tree import Key, TransferError
from unified_tree.controllers.adapters.sglang.device_pools import FULL, WINDOW
from unified_tree.controllers.adapters.sglang.engine_tensors import EngineMover
from unified_tree.controllers.ranks import Consensus
from unified_tree.controllers.ranks.rank_agreement import MultiRank
from unified_tree.controllers.transfer_engines.cuda_engine import Lane
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import ConfigurationError
from unified_tree.terms.results import Boundary


@pytest.fixture(params=["thread", "streams"])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mapping[EffectKind, Lane] | None:
    """What copies: a thread, or streams whose work runs late."""
    if request.param == "thread":
        return None
    device = FakeDevice()
    delay_copies(device, EngineMover, monkeypatch)
    return device.lanes


@pytest.fixture(params=KINDS)
def served(request: pytest.FixtureRequest, lanes: Mapping[EffectKind, Lane] | None) -> Iterator[Served]:
    made = Served(request.param, lanes=lanes)
    made.publish()
    yield made
    made.check_nothing_is_lost()
    made.tiers.close()
    made.tiers.close()


def test_a_load_brings_the_bytes_back(served: Served) -> None:
    whole = served.tree.match_prefix(Key(TOKENS)).device
    assert whole.length == len(TOKENS)
    assert served.tiers.host_needs(served.tree.match_prefix(Key(TOKENS))) == {}
    wanted = served.bytes_of(whole)
    served.forget()
    lock = served.begin()
    assert lock is not None
    for load in served.tiers.start_batch():
        served.tiers.controller.wait_layer(load, 6)
    lock.wait()
    found = served.tree.match_prefix(Key(TOKENS)).device
    assert found.length == len(TOKENS)
    assert all(torch.equal(a, b) for a, b in zip(served.bytes_of(found), wanted, strict=True))
    served.device.evict({FULL: PAGES})
    assert served.tree.match_prefix(Key(TOKENS)).device.length == len(TOKENS), "the lock keeps it"
    lock.release(WINDOW)
    lock.release()
    served.forget()


def test_pipeline_stages_have_their_loads_before_a_batch_runs(lanes: Mapping[EffectKind, Lane] | None) -> None:
    """While it runs a stage must wait for no other, so that nothing is left to agree on."""
    served = Served("windows", lanes=lanes, has_stages=True)
    served.publish()
    wanted = served.bytes_of(served.tree.match_prefix(Key(TOKENS)).device)
    served.forget()
    lock = served.begin()
    assert lock is not None
    assert served.tiers.start_batch() == []
    found = served.tree.match_prefix(Key(TOKENS)).device
    assert all(torch.equal(a, b) for a, b in zip(served.bytes_of(found), wanted, strict=True))
    lock.release()
    served.check_nothing_is_lost()
    served.tiers.close()


def test_too_little_host_memory_names_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unified_tree.controllers.pools.host_memory.host_memory_available", lambda _: 0)
    with pytest.raises(ConfigurationError, match="0 are available; give a smaller --hicache-ratio"):
        Served("full")


@pytest.mark.parametrize("is_submitted", [False, True])
def test_a_load_that_nobody_waits_for_is_cancelled(served: Served, is_submitted: bool) -> None:
    served.forget()
    lock = served.begin()
    assert lock is not None
    if is_submitted:
        served.tiers.poll()
    lock.release()
    served.check_nothing_is_lost()
    assert not served.tiers.is_busy


def test_the_layers_of_a_batch_do_not_wait_for_a_load_that_was_released(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineMover, "load_layers", broken)
    served.forget()
    lock = served.begin()
    assert lock is not None
    batch = list(served.tiers._batch)
    lock.release()
    for load in batch:
        served.tiers.wait_layer(load, 6)
    assert served.tiers.start_batch() == []


def broken(*_: Any) -> None:
    raise OSError("a bad cable")


def test_a_load_that_fails_is_reported_and_frees_its_pages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineMover, "load_layers", broken)
    served.forget()
    lock = served.begin()
    assert lock is not None
    with pytest.raises(TransferError, match="a bad cable"):  # noqa: PT012
        for load in served.tiers.start_batch():
            served.tiers.wait_layer(load, 6)
    with pytest.raises(TransferError, match="a bad cable"):
        lock.wait()
    lock.release()
    assert served.tree.match_prefix(Key(TOKENS)).device.length == 0


def test_without_room_nothing_is_loaded(served: Served) -> None:
    served.forget()
    taken = served.pools.allocate(FULL, PAGES - 1)
    try:
        assert served.begin() is None
        assert served.tiers.counters.drops["no room to load"] == 1
        assert served.pools.free_pages(FULL) == 1
    finally:
        served.pools.free({FULL: taken})


def test_a_boundary_that_is_gone_is_not_loaded(served: Served) -> None:
    gone = Boundary(served.tree.match_prefix(Key(TOKENS)).device.node, 2 * len(TOKENS))
    assert served.tiers.begin_load(gone, 1, takes_state=False) is None
    assert served.tiers.counters.drops["load lost its boundary"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_life_finds_what_the_first_has_stored(
    kind: str, tmp_path: FilePath, lanes: Mapping[EffectKind, Lane] | None
) -> None:
    first = Served(kind, tmp_path, lanes)
    first.publish()
    wanted = first.bytes_of(first.tree.match_prefix(Key(TOKENS)).device)
    until(lambda: not first.polled().is_busy, "the store has it")
    first.tiers.close()
    second = Served(kind, tmp_path, lanes)
    key = Key([*TOKENS, 0])
    assert second.tiers.prefetch("request", key)
    until(lambda: second.polled().is_prefetched("request"), "the prefetch ends")
    assert second.tiers.end_prefetch("request") == len(TOKENS)
    assert second.tiers.end_prefetch("request") == 0
    second.tiers.cancel_prefetch("nobody")
    lock = second.begin()
    assert lock is not None
    second.tiers.start_batch()
    lock.wait()
    found = second.bytes_of(second.tree.match_prefix(Key(TOKENS)).device)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    lock.release()
    second.check_nothing_is_lost()
    second.tiers.close()


def test_without_a_store_no_request_waits() -> None:
    tiers = Served("full").tiers
    assert not tiers.prefetch("request", Key(TOKENS))
    assert tiers.is_prefetched("request")
    assert tiers.end_prefetch("request") == 0
    tiers.cancel_prefetch("request")
    tiers.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_fall_short_of_pages_wait_for_copies_alike(kind: str, ranks: int) -> None:
    def script(consensus: Consensus, rank: int) -> tuple[dict[str, int], int]:
        served = Served(kind, ranks=MultiRank(consensus))
        served.tiers.controller.committed(served.compute())
        served.tiers.poll()
        if rank:
            served.tiers.controller.tier.engine.drain()  # its copies have ended before
        freed = served.device.evict({name: served.tree.pool(name).used_pages for name in served.tensors})
        reachable = served.tree.match_prefix(Key(TOKENS)).reachable.length
        served.check_nothing_is_lost()
        served.tiers.close()
        return freed, reachable

    found = RankThreads(ranks).run(script)
    assert found == [found[0]] * ranks
    freed, reachable = found[0]
    assert freed[FULL] == reachable // SIZE == len(TOKENS) // SIZE
