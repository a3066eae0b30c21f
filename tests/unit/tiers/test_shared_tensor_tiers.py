"""Caches over real tensors whose host memory is one budget: every byte that is handed out is the one that was put in.

Two real threads or more: the engine's copies, and the jobs of a store. Blocks that nobody has are overwritten after each step,
so whoever reads or writes a block that is not its own is found.
"""

from __future__ import annotations

from pathlib import Path as FilePath
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from computed_pages import blocks

from unified_tree import Component, ConfigurationError, Key, OutOfPagesError, Path, Point, Trailing
from unified_tree.components import Composition
from unified_tree.controllers import HostTier, Lease, PrefixCache, TensorTiers, WritePolicy, tensor_tiers
from unified_tree.controllers.pools import (
    BlockArena,
    BlockLayout,
    BlockTables,
    HostLayout,
    host_budget,
    indexer_format,
    mha_format,
    staged_pages,
    state_format,
)
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy, stored_composition
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.declare.page_format import WHOLE

PAGE = 4
WINDOW = 7
FORMATS = {
    "full": mha_format("full", layer_ids=(0, 2), page_size=PAGE, kv_heads=2, head_dim=8, value_dim=3, shard=WHOLE),
    "indexer": indexer_format("indexer", layer_ids=(0, 2), page_size=PAGE, key_dim=8, shard=WHOLE),
    "swa": mha_format("swa", layer_ids=(1, 3), page_size=PAGE, kv_heads=3, head_dim=7, dtype="float32", shard=WHOLE),
    "carry": mha_format("carry", layer_ids=(3,), page_size=PAGE, kv_heads=1, head_dim=2, shard=WHOLE),
    "mamba": state_format("mamba", layer_ids=(1, 2), conv_shape=(6, 3), state_shape=(2, 4, 4), shard=WHOLE),
}
KINDS = (
    Component(name="full", coverage=Path(), format=FORMATS["full"]),
    Component(name="indexer", coverage=Path(), shares="full", format=FORMATS["indexer"]),
    Component(name="swa", coverage=Trailing(WINDOW), format=FORMATS["swa"]),
    Component(name="carry", coverage=Trailing(3), shares="swa", format=FORMATS["carry"]),
    Component(name="mamba", coverage=Point(), format=FORMATS["mamba"]),
)
MODELS = {
    "all kinds": Composition(name="all kinds", page_size=PAGE, components=KINDS),
    "windows": Composition(name="windows", page_size=PAGE, components=(KINDS[0], KINDS[2], KINDS[3])),
    "states": Composition(name="states", page_size=PAGE, components=(KINDS[0], KINDS[1], KINDS[4])),
    "paths": Composition(name="paths", page_size=PAGE, components=(KINDS[0],)),
}
COUNTS = {"full": 14, "swa": 12, "mamba": 6}
DEVICE_BYTES = {"all kinds": 26_000, "windows": 26_000, "states": 10_000, "paths": 6_000}
HOST_BYTES = {"all kinds": 40_000, "windows": 40_000, "states": 15_000, "paths": 8_000}
"""Enough for a few prompts."""
LAYERS = range(4)
DIRT = 0xA5


def counts_of(model: Composition) -> dict[str, int]:
    return {c.name: COUNTS[c.name] for c in model.components if c.shares is None}


class World:
    """A cache, its memory on both tiers, and a model that computes what follows from the tokens."""

    def __init__(self, model: Composition, host: dict[str, Any], *, arena: bool, seed: int = 0, **settings: Any) -> None:
        self.model, self.rng = model, Random(seed)
        device: dict[str, Any] = {"device_page_counts": counts_of(model)}
        memory: dict[str, Any] = {"page_counts": counts_of(model)}
        if arena:
            layout = BlockLayout.of(model, DEVICE_BYTES[model.name])
            device, memory = {"device_arena": BlockArena(model, layout)}, {"budget": layout.budget}
        self.tiers: TensorTiers = tensor_tiers(model, **device, **host)
        self.cache = PrefixCache(
            model.components, PAGE, **memory, host=self.tiers.host_tier(**settings), policy="lru", rebuild=False
        )
        if self.tiers.device_arena is not None:
            self.tiers.device_arena.serve(self.cache)
        self.request = 0
        self.had: dict[int, set[str]] = {}

    def store(self, engine: str, **options: Any) -> None:
        """Attach a store."""
        prefetch = PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, min_tokens=1, max_host_share=1.0, grace_s=0.0)
        self.cache.attach_storage(self.tiers.storage_tier(engine, weights_version="v1", options=options, prefetch=prefetch))

    def serve(self, tokens: np.ndarray) -> int:
        """One request from prefetch to release; every cached byte is compared behind its gate. How many tokens were cached."""
        cache, self.request = self.cache, self.request + 1
        if cache.storage is not None and cache.prefetch(self.request, Key(tokens)):
            while not cache.prefetched(self.request):
                cache.poll()
        with cache.acquire(Key(tokens), request=self.request) as lease:
            cached = self.cached_pages(lease, tokens)
            for gate in LAYERS:
                cache.wait_layer(lease, gate)
                for name, page, prefix in cached:
                    for layer, block, wanted in blocks(self.tiers, FORMATS[name], page, prefix):
                        assert layer != gate or torch.equal(block, wanted), (name, page, layer, len(prefix))
            cache.allocate(lease, len(tokens))
            self.compute(lease, tokens)
            cache.commit(lease, tokens, dict(lease.save_pages))
            return lease.cached_tokens

    def cached_pages(self, lease: Lease, tokens: np.ndarray) -> list[tuple[str, int, np.ndarray]]:
        """What a request resumes from: component, page and the tokens that it ends."""
        found, end = [], lease.cached_tokens // PAGE
        for component in self.model.components:
            match component.coverage:
                case Point():
                    found += [(component.name, copy.source, tokens[: lease.cached_tokens]) for copy in lease.state_copies]
                    continue
                case Trailing(window_tokens=window):
                    first = max(0, lease.cached_tokens - window) // PAGE
                case Path() | _:
                    first = 0
            pages = lease.pages(component.name)
            found += [(component.name, int(pages[i]), tokens[: (i + 1) * PAGE]) for i in range(first, end)]
        return found

    def compute(self, lease: Lease, tokens: np.ndarray) -> None:
        """Write what the lease's pages must hold, from where it starts."""
        for component in self.model.components:
            if isinstance(component.coverage, Point):
                written = [(page, tokens[:length]) for length, page in lease.save_pages.items()]
            else:
                first = lease.compute_from // PAGE
                pages = lease.pages(component.name)[first:].tolist()
                written = [(page, tokens[: (first + i + 1) * PAGE]) for i, page in enumerate(pages)]
            for page, prefix in written:
                for _, block, wanted in blocks(self.tiers, FORMATS[component.name], page, prefix):
                    block.copy_(wanted)

    def live(self, steps: int) -> int:
        """Requests at random, that go on from older ones; how many tokens were cached in all."""
        texts, cached = [np.arange(0)], 0
        for _ in range(steps):
            old = self.rng.choice(texts)
            more = [self.rng.randrange(2) for _ in range(self.rng.randrange(1, 22))]
            tokens = np.append(old[: self.rng.randrange(len(old) + 1)], np.array(more, np.int64))[:44]
            try:
                cached += self.serve(tokens)
                texts = [*texts[-8:], tokens]
            except OutOfPagesError:
                pass
            self.cache.poll()
            if self.rng.random() < 0.5:
                self.cache.drain()
            self.check()
        return cached

    def check(self) -> None:
        """The tree is sound, no block has two owners, and those without one hold dirt from now on. Notes who had which."""
        assert self.cache.tree.check() == []
        assert self.cache.controller is not None
        sides: list[tuple[Any, Any, torch.Tensor]] = []
        if self.tiers.host_arena is not None:
            sides.append((self.tiers.host_arena.tables, self.cache.controller.host, self.tiers.host_arena.memory))
        if self.tiers.device_arena is not None:
            sides.append((self.tiers.device_arena.tables, self.cache.device, self.tiers.device_arena.memory))
        for tables, pages, memory in sides:
            taken: list[int] = []
            for name, table in tables.tables.items():
                ids = [page for page in range(len(table)) if pages.allocators[name].is_allocated(page)]
                taken += table[ids].ravel().tolist()
                if pages is not self.cache.device:
                    for block in table[ids].ravel().tolist():
                        self.had.setdefault(block, set()).add(name)
            assert len(taken) == len(set(taken)) == pages.blocks.used == tables.budget.block_count - tables.free_count
            free = np.setdiff1d(np.arange(tables.budget.block_count), taken)
            memory[torch.from_numpy(free)] = DIRT

    def end(self) -> None:
        self.cache.drain()
        self.check()
        self.cache.close()


LIVES = [
    *((name, arena, WritePolicy.WRITE_THROUGH) for name in MODELS for arena in (False, True)),
    *(("all kinds", policy is WritePolicy.WRITE_BACK, policy) for policy in list(WritePolicy)[1:]),
]


@pytest.mark.parametrize(("name", "arena", "policy"), LIVES)
def test_a_random_life(name: str, arena: bool, policy: WritePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_pages, "STAGING_BYTES", 2000)
    world = World(MODELS[name], {"host_bytes": HOST_BYTES[name]}, arena=arena, seed=len(name), write_policy=policy)
    cached = world.live(70)
    stats = world.cache.stats()
    assert cached > 100 and stats.backed_up.pages > 0
    if policy is WritePolicy.WRITE_THROUGH:
        assert stats.loaded.pages > 0 and stats.host_hit_tokens > 0
        assert name == "paths" or any(len(kinds) > 1 for kinds in world.had.values()), "blocks went from kind to kind"
    world.end()


@pytest.mark.parametrize("arena", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_host_of_hardly_a_page(name: str, arena: bool) -> None:
    """From less than one page of the largest kind, which is refused, up to a few."""
    model = MODELS[name]
    largest, refused = max(c.page_bytes for c in model.components), 0
    for host_bytes in (largest // 2, largest, largest + 64, 2 * largest, 3 * largest + 1):
        try:
            world = World(model, {"host_bytes": host_bytes}, arena=arena)
        except ConfigurationError:
            assert host_bytes < 2 * largest
            refused += 1
            continue
        world.live(12)
        world.end()
    assert 1 <= refused <= 3


@pytest.mark.parametrize(("engine", "copied_bytes"), [("memory", 1), ("file", 1 << 20)])
@pytest.mark.parametrize("arena", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_random_life_over_a_store(
    name: str, arena: bool, engine: str, copied_bytes: int, tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_composition, "COPIED_BYTES", copied_bytes)
    world = World(MODELS[name], {"host_bytes": HOST_BYTES[name] // 2}, arena=arena, seed=1)
    world.store(engine, **({"directory": tmp_path, "capacity_bytes": 1 << 24} if engine == "file" else {}))
    world.live(50)
    stats = world.cache.stats()
    assert stats.storage is not None and stats.storage_hit_tokens > 0, "host memory was short"
    assert not stats.storage.quarantined and stats.storage.errors == 0
    world.end()


PROMPT = np.arange(30)
HOSTS: dict[str, dict[str, Any]] = {
    "budget": {"host_bytes": 40_000},
    "counts": {"host_page_counts": dict.fromkeys(FORMATS, 20), "layout": HostLayout.PAGE_FIRST_DIRECT},
}


@pytest.mark.parametrize("reader", HOSTS)
@pytest.mark.parametrize("writer", HOSTS)
def test_after_a_restart_either_kind_of_host_finds_what_the_other_stored(writer: str, reader: str, tmp_path: FilePath) -> None:
    model = MODELS["all kinds"]
    for kind, cached in ((writer, 0), (reader, 28)):
        world = World(model, HOSTS[kind], arena=kind == "budget")
        world.store("file", directory=tmp_path, capacity_bytes=1 << 24)
        assert world.serve(PROMPT) == cached
        world.cache.flush()
        world.end()


def test_each_tier_takes_counts_or_a_budget() -> None:
    model = MODELS["states"]
    arena = BlockArena(model, BlockLayout.of(model, 12_000))
    counts, host = counts_of(model), dict.fromkeys(("full", "indexer", "mamba"), 4)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("device_page_counts or a device_arena", {"host_bytes": 9000}),
        ("device_page_counts or a device_arena", {"device_page_counts": counts, "device_arena": arena, "host_bytes": 9000}),
        ("host_page_counts or host_bytes", {"device_page_counts": counts}),
        ("host_page_counts or host_bytes", {"device_arena": arena, "host_page_counts": host, "host_bytes": 9000}),
        ("page_first_direct, not", {"device_arena": arena, "host_bytes": 9000, "layout": HostLayout.LAYER_FIRST}),
        ("missing for full, indexer", {"device_page_counts": {"mamba": 3}, "host_bytes": 9000}),
        ("missing for indexer", {"device_arena": arena, "host_page_counts": {"full": 3, "mamba": 3}}),
        ("size_bytes must be", {"device_arena": arena, "host_bytes": 0}),
    ]
    for message, given in wrong:
        with pytest.raises(ConfigurationError, match=message):
            tensor_tiers(model, **given)
    other = BlockArena(MODELS["paths"], BlockLayout.of(MODELS["paths"], 12_000))
    with pytest.raises(ConfigurationError, match="other formats"):
        tensor_tiers(model, device_arena=other, host_bytes=9000)


def test_blocks_serve_one_cache_and_their_own_budget() -> None:
    world = World(MODELS["states"], {"host_bytes": 9000}, arena=False)
    with pytest.raises(ConfigurationError, match="serves one cache"):
        PrefixCache(world.model.components, PAGE, counts_of(world.model), host=world.tiers.host_tier())
    tables = BlockTables(host_budget(world.model, 9000))
    for budget in (None, host_budget(world.model, 10_000)):
        with pytest.raises(ConfigurationError, match="tables must be those of the budget"):
            HostTier(engine=NullEngine(), budget=budget, tables=tables)
    world.end()


def test_a_page_count_of_none_takes_no_blocks() -> None:
    world = World(MODELS["states"], {"host_bytes": 9000}, arena=True)
    assert world.cache.controller is not None
    for pages in (world.cache.device, world.cache.controller.host):
        assert [ids.tolist() for ids in pages.allocate_all({"full": 0, "mamba": 0}).values()] == [[], []]
    world.end()
