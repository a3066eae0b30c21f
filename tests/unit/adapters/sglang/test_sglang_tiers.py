"""Loads from host and prefetches from a store, over plain tensors; and what copies, waits and counts for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import pytest
from fake_lanes import FakeDevice, delay_copies
from rank_threads import RankThreads
from sglang_tiers import KINDS, PAGES, SIZE, TOKENS, Served

from unified_tree import Key, TransferError
from unified_tree.controllers.adapters.sglang.device_pools import FULL, WINDOW
from unified_tree.controllers.adapters.sglang.engine_tensors import EngineMover
from unified_tree.controllers.adapters.sglang.tiers import HostPoolSize, LayerGate, SettledEngine
from unified_tree.controllers.pages.page_allocator import PageAllocator
from unified_tree.controllers.ranks import Consensus
from unified_tree.controllers.ranks.rank_agreement import MultiRank
from unified_tree.controllers.transfer_engines.cuda_engine import Lane
from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer
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
    assert served.tree.match_prefix(Key(TOKENS)).device.length == len(TOKENS)
    assert served.tiers.host_needs(served.tree.match_prefix(Key(TOKENS))) == {}
    wanted = served.prompt_bytes()
    served.forget()
    lock = served.begun()
    for load in served.tiers.start_batch():
        served.tiers.controller.wait_layer(load, 6)
    lock.wait()
    assert served.tree.match_prefix(Key(TOKENS)).device.length == len(TOKENS)
    served.check_bytes(wanted)
    served.device.evict({FULL: PAGES})
    assert served.tree.match_prefix(Key(TOKENS)).device.length == len(TOKENS), "the lock keeps it"
    lock.release(WINDOW)
    lock.release()
    served.forget()


def test_pipeline_stages_have_their_loads_before_a_batch_runs(lanes: Mapping[EffectKind, Lane] | None) -> None:
    """While it runs a stage must wait for no other, so that nothing is left to agree on."""
    served = Served("windows", lanes=lanes, has_stages=True)
    served.publish()
    wanted = served.prompt_bytes()
    served.forget()
    lock = served.begun()
    assert served.tiers.start_batch() == []
    served.check_bytes(wanted)
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
    lock = served.begun()
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
    lock = served.begun()
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
    lock = served.begun()
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
    first = Served(kind, tmp_path, lanes).stored()
    wanted = first.prompt_bytes()
    first.tiers.close()
    second = Served(kind, tmp_path, lanes)
    assert second.tiers.prefetch("request", Key([*TOKENS, 0]))
    assert second.found() == len(TOKENS)
    assert second.tiers.end_prefetch("request") == 0
    second.tiers.cancel_prefetch("nobody")
    lock = second.loaded()
    second.check_bytes(wanted)
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


class SlowEngine:
    """Ends transfers when it is drained, the last one first."""

    def __init__(self, errors: Sequence[int] = ()) -> None:
        self.errors = errors
        self.open: list[int] = []
        self.ended: list[int] = []

    def submit(self, transfers: Sequence[Transfer]) -> None:
        self.open += [transfer.ticket for transfer in transfers]

    def poll(self) -> list[Completion]:
        found, self.ended = self.ended, []
        return [Completion(ticket, "a bad cable" if ticket in self.errors else None) for ticket in found]

    def cancel(self, ticket: int) -> None:
        self.open.remove(ticket)

    def wait(self, ticket: int) -> None:
        assert ticket in self.open

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        assert ticket in self.open, layer_id

    def drain(self) -> None:
        self.ended += reversed(self.open)
        self.open = []

    def close(self) -> None:
        self.drain()


def transfers(*tickets: int) -> list[Transfer]:
    return [Transfer(ticket, EffectKind.BACKUP, ()) for ticket in tickets]


def test_what_was_submitted_has_ended_at_the_next_poll_in_order() -> None:
    engine = SettledEngine(SlowEngine())
    engine.submit(transfers(1, 2))
    engine.submit(transfers(3))
    assert [completion.ticket for completion in engine.poll()] == [1, 2, 3]
    assert engine.poll() == []


def test_nothing_is_cancelled() -> None:
    engine = SettledEngine(SlowEngine())
    engine.submit(transfers(1))
    engine.cancel(1)
    assert engine.poll() == [Completion(1, None)]


def test_a_copy_that_fails_ends_the_stage() -> None:
    engine = SettledEngine(SlowEngine(errors=[2]))
    engine.submit(transfers(1, 2))
    with pytest.raises(TransferError, match="transfer 2: a bad cable"):
        engine.poll()


def test_a_closed_engine_tells_how_its_transfers_ended() -> None:
    engine = SettledEngine(SlowEngine(errors=[1]))
    engine.submit(transfers(1))
    engine.close()
    assert engine.poll() == [Completion(1, "a bad cable")]


def test_layers_wait_for_the_loads_of_their_own_batch() -> None:
    waited: list[tuple[Any, int]] = []
    gate = LayerGate(lambda load, layer: waited.append((load, layer)), 4)
    loads: list[Any] = ["a", "b", "c"]
    assert gate.open([]) == -1
    first, second = gate.open(loads[:2]), gate.open(loads[2:])
    gate.wait_until(0)
    assert not waited, "no batch runs"
    for batch, expected in ((first, [("a", 3), ("b", 3)]), (second, [("c", 3)]), (-1, [])):
        waited.clear()
        gate.set_consumer(batch)
        gate.wait_until(gate.num_layers - 1)
        assert waited == expected


def test_a_batch_is_forgotten_after_some_later_ones() -> None:
    waited: list[Any] = []
    gate = LayerGate(lambda load, _: waited.append(load), 1)
    loads: list[Any] = ["a"]
    batches = [gate.open(loads) for _ in range(LayerGate.REMEMBERED + 1)]
    assert len(set(batches)) == len(batches)
    for batch in batches:
        gate.set_consumer(batch)
        gate.wait_until(0)
    assert len(waited) == LayerGate.REMEMBERED


def test_a_host_pool_is_counted_in_tokens() -> None:
    allocator = PageAllocator("full", 10)
    size = HostPoolSize(allocator, 16)
    allocator.allocate(3)
    assert (size.logical_size, size.available_size()) == (160, 112)
