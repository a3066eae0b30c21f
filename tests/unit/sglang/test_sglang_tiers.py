"""Loads from host and prefetches from a store, over plain tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

import pytest
import sglang_pools as kv
import torch
from fake_lanes import FakeDevice, delay_copies
from sglang_allocators import SlotAllocator, StateAllocator, WindowAllocator
from watchdog import until

from unified_tree import Component, Key, Path, Point, Trailing, TransferError, UnifiedTree
from unified_tree.components import Composition
from unified_tree.controllers.cache.stats import CacheCounters
from unified_tree.controllers.host.host_tier import WritePolicy
from unified_tree.controllers.sglang.device_pools import FULL, STATE, WINDOW, DevicePools
from unified_tree.controllers.sglang.device_tier import DeviceTier
from unified_tree.controllers.sglang.engine_mover import EngineMover
from unified_tree.controllers.sglang.engine_tensors import engine_tensors
from unified_tree.controllers.sglang.tiers import LoadLock, Tiers, host_memory
from unified_tree.controllers.storage_tier import StorageTier
from unified_tree.controllers.storage_tier.policies import PrefetchPolicy
from unified_tree.controllers.transfer_engines.lane import Lane
from unified_tree.effect import EffectKind
from unified_tree.errors import ConfigurationError
from unified_tree.page_format import Shard
from unified_tree.receipt import Boundary

SIZE, PAGES, STATES, TOKENS = 2, 8, 4, list(range(8))
KINDS = ("full", "windows", "states")


class Served:
    """One life of a cache with a host tier; `publish` writes a prompt's own numbers into its pages.

    With lanes it is as on a GPU: page numbers are not read, and streams copy.
    """

    def __init__(self, kind: str, files: FilePath | None = None, lanes: Mapping[EffectKind, Lane] | None = None) -> None:
        self.has_states, slots = kind == "states", (PAGES + 1) * SIZE
        allocator: Any = WindowAllocator(PAGES, PAGES, SIZE) if kind == "windows" else SlotAllocator(PAGES, SIZE)
        pool: Any = {"full": kv.attention, "windows": kv.windowed, "states": lambda slots, _: kv.hybrid(slots)}[kind]
        self.tensors = engine_tensors(
            pool(slots, 2 if kind == "full" else slots),
            kv.with_states(STATES + 1),
            SIZE,
            Shard(0, 1),
            has_windows=kind == "windows",
            has_states=self.has_states,
        )
        coverage: dict[str, Any] = {FULL: Path(), WINDOW: Trailing(SIZE), STATE: Point()}
        components = [Component(name=name, coverage=coverage[name], format=each.format) for name, each in self.tensors.items()]
        self.tree = UnifiedTree(components, SIZE)
        states = StateAllocator(STATES) if self.has_states else None
        window_tokens = SIZE if kind == "windows" else None
        self.in_host_memory = lanes is None
        self.pools = DevicePools(
            allocator, SIZE, window_tokens=window_tokens, state_allocator=states, in_host_memory=self.in_host_memory
        )
        self.device = DeviceTier(self.tree, self.pools, CacheCounters())
        self.tiers = Tiers(
            self.tree,
            self.device,
            self.pools,
            self.tensors,
            host_memory(self.tensors, dict.fromkeys(self.tensors, 16)),
            write_policy=WritePolicy.WRITE_THROUGH,
            model=Composition(name="model", page_size=SIZE, components=self.tree.components, tensor_parallel=1, rank=0),
            open_store=None if files is None else lambda model, host: store(files, model, host),
            lanes=lanes,
        )

    def publish(self) -> None:
        """Compute the prompt, and have it copied to host."""
        row = self.pools._allocator.alloc(len(TOKENS))[:: self.tree.page_size]
        offered = self.pools.offer(row.numpy() if self.in_host_memory else row, range(0))
        pages, states = {FULL: offered.full}, {}
        if WINDOW in self.tensors:
            pages[WINDOW] = offered.windows
        if self.has_states:
            states[STATE] = {len(TOKENS): int(self.pools.allocate(STATE, 1)[0])}
        result = self.tree.insert(Key(TOKENS), pages, states)
        self.pools.settle(offered, result)
        for at, rows in enumerate(self.contents(result.boundary)):
            rows[0][rows[1]] = torch.arange(rows[0][rows[1]].numel()).view(rows[0][rows[1]].shape) + 100.0 * at + 1
        self.tiers.controller.committed(result.boundary)
        self.tiers.controller.drain()

    def contents(self, boundary: Boundary) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor, and the pages of it that belong to a boundary."""
        for name, each in self.tensors.items():
            names = self.tree.transfers.pages_with_loads(boundary, name)
            pages = torch.as_tensor(self.pools.names(name).pages(names.copy()))
            for parts in each.by_part.values():
                yield from ((tensor, pages) for tensor in parts)

    def bytes_of(self, boundary: Boundary) -> list[torch.Tensor]:
        return [tensor[pages].clone() for tensor, pages in self.contents(boundary)]

    def forget(self) -> None:
        """Evict all from device, and spoil what was there."""
        self.device.evict(dict.fromkeys(self.tensors, PAGES))
        assert [self.pools.free_pages(name) for name in self.tensors] == [self.pools.page_count(name) for name in self.tensors]
        for each in self.tensors.values():
            for parts in each.by_part.values():
                for tensor in parts:
                    tensor.fill_(-1)

    def begin(self) -> LoadLock | None:
        match = self.tree.match_prefix(Key(TOKENS))
        needs = self.tiers.host_needs(match)
        assert needs.keys() == self.tensors.keys()
        load = self.tiers.begin_load(match.reachable, match.reachable.length, takes_state=self.has_states)
        if load is None:
            return None
        lock = self.tiers.lock_of(load.boundary)
        assert self.tiers.lock_of(load.boundary) is None, "a load has one request"
        return lock

    def polled(self) -> Tiers:
        self.tiers.poll()
        return self.tiers

    def check_nothing_is_lost(self) -> None:
        self.tiers.controller.drain()
        assert not self.tree.check()
        for name in self.tensors:
            assert len(self.pools.names(name)) == self.tree.pool(name).used_pages
            assert self.pools.free_pages(name) + len(self.pools.names(name)) == self.pools.page_count(name)


def store(files: FilePath, model: Composition, host: Mapping[str, Any]) -> StorageTier:
    options = {"directory": str(files), "capacity_bytes": 1 << 22}
    prefetch = PrefetchPolicy(min_tokens=1)
    return StorageTier.open("file", model, memory=host, weights_version="1", options=options, prefetch=prefetch)


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
        served.tiers.controller.wait_layer(load, 3)
    lock.wait()
    found = served.tree.match_prefix(Key(TOKENS)).device
    assert found.length == len(TOKENS)
    assert all(torch.equal(a, b) for a, b in zip(served.bytes_of(found), wanted, strict=True))
    served.device.evict({FULL: PAGES})
    assert served.tree.match_prefix(Key(TOKENS)).device.length == len(TOKENS), "the lock keeps it"
    lock.release(WINDOW)
    lock.release()
    served.forget()


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
        served.tiers.wait_layer(load, 3)
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
            served.tiers.wait_layer(load, 3)
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
