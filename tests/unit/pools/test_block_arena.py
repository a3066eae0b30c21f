"""Pages of all pools in one memory of blocks: places that do not overlap, and bytes that stay what they were."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
import torch

from unified_tree import Component, ConfigurationError, Key, OutOfPagesError, PageError, Path, Point, Trailing
from unified_tree.components import Composition, composition_for, model_names
from unified_tree.controllers import HostTier, Lease, PrefixCache
from unified_tree.controllers.pools import (
    ArenaPair,
    BlockArena,
    BlockLayout,
    HostLayout,
    formats_of,
    host_pools,
    mha_format,
    state_format,
)
from unified_tree.controllers.transfer_engines import CpuEngine

PAGE_SIZE = 4


def hybrid() -> Composition:
    """Paths of three layers, a window of two and a state of two, of sizes that do not divide each other."""
    kinds = (
        Component(name="full", coverage=Path()),
        Component(name="swa", coverage=Trailing(7)),
        Component(name="mamba", coverage=Point()),
    )
    formats = {
        "full": mha_format("full", layer_ids=(1, 4, 5), page_size=PAGE_SIZE, kv_heads=2, head_dim=6, value_dim=5),
        "swa": mha_format("swa", layer_ids=(0, 3), page_size=PAGE_SIZE, kv_heads=3, head_dim=7),
        "mamba": state_format("mamba", layer_ids=(2, 6), conv_shape=(5, 3), state_shape=(2, 3, 4)),
    }
    return Composition(name="hybrid", page_size=PAGE_SIZE, components=kinds).with_formats(formats)


@pytest.mark.parametrize("name", model_names())
def test_no_pieces_overlap_and_little_is_wasted(name: str) -> None:
    model = composition_for(name)
    if any(c.coverage.is_exact for c in model.components):  # a layer's state is larger than a layer's keys of 64 tokens
        model = composition_for(name, page_size=256)
    layout = BlockLayout.of(model, 8 << 30)
    every = formats_of(model)
    owners = {c.name: c.shares or c.name for c in model.components}
    spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for (component, _, part), place in layout.places.items():
        size = every[component].block_bytes(every[component].part(part))
        spans.setdefault((owners[component], place.group), []).append((place.offset_bytes, place.offset_bytes + size))
    for of_block in spans.values():
        of_block.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(of_block))
        assert of_block[-1][1] <= layout.budget.block_bytes
    assert len(layout.places) == sum(len(f.layer_ids) * len(f.parts) for f in every.values())
    assert {owner for owner, _ in spans} == set(layout.budget.page_blocks)
    assert max(layout.padding.values()) < 0.1, (layout.budget, layout.padding)


def test_a_layer_has_a_group_where_its_parts_share_a_block() -> None:
    model = hybrid()
    wide = BlockArena(model, BlockLayout.of(model, 64 << 10, block_bytes=8 << 10))
    assert wide.group("full", 4) == wide.part_group("full", 4, "k") == wide.part_group("full", 4, "v")
    narrow = BlockArena(model, BlockLayout.of(model, 64 << 10, block_bytes=336))  # no more than the keys
    assert narrow.part_group("swa", 3, "k") != narrow.part_group("swa", 3, "v")
    with pytest.raises(ConfigurationError, match=r"take part_group\('swa', 3, 'k'\), part_group\('swa', 3, 'v'\)"):
        narrow.group("swa", 3)


def test_blocks_must_hold_a_piece_and_be_aligned() -> None:
    model = hybrid()
    least = -(-max(f.block_bytes(part) for f in formats_of(model).values() for part in f.parts) // 16) * 16
    for block_bytes in (least - 16, least + 8):
        with pytest.raises(ConfigurationError, match="a block must be"):
            BlockLayout.of(model, 1 << 20, block_bytes=block_bytes)


class Content:
    """What each page of a cache was given, by hand, beside an arena that holds it."""

    def __init__(self, seed: int, block_bytes: int | None = None) -> None:
        self.model = hybrid()
        self.layout = BlockLayout.of(self.model, 30_000, block_bytes=block_bytes)
        self.arena = BlockArena(self.model, self.layout)
        self.formats = formats_of(self.model)
        self.host = host_pools(self.formats, dict.fromkeys(self.formats, 40), layout=HostLayout.PAGE_FIRST_DIRECT)
        movers = {name: ArenaPair(self.arena, name, self.host[name]) for name in self.formats}
        tier = HostTier(page_counts=dict.fromkeys(self.formats, 40), engine=CpuEngine(movers))
        self.cache = PrefixCache(self.model.components, PAGE_SIZE, budget=self.layout.budget, host=tier)
        self.arena.serve(self.cache)
        self.rng = Random(seed)
        self.known: dict[tuple[str, int, str, bytes], torch.Tensor] = {}

    def of(self, component: str, layer: int, part: str, prefix: bytes) -> torch.Tensor:
        """The one right content of the page that ends a prefix."""
        key = (component, layer, part, prefix)
        if key not in self.known:
            page_format = self.formats[component]
            kept = page_format.part(part)
            shape = (page_format.slots_per_page, *kept.shape)
            self.known[key] = torch.randn(shape, generator=torch.Generator().manual_seed(len(self.known))).to(torch.bfloat16)
        return self.known[key]

    def each(self, lease: Lease, tokens: list[int], component: str, first: int, last: int) -> None:
        """Write the pages [first, last) of a lease."""
        for page in range(first, last):
            held = lease.pages(component)[page]
            prefix = np.array(tokens[: (page + 1) * PAGE_SIZE]).tobytes()
            self.put(component, int(held), prefix)

    def put(self, component: str, page: int, prefix: bytes) -> None:
        for layer in self.formats[component].layer_ids:
            for part in self.formats[component].parts:
                values = self.of(component, layer, part.name, prefix).to(getattr(torch, part.dtype))[None]
                self.arena.write(component, layer, part.name, np.array([page]), values)

    def expect(self, component: str, page: int, prefix: bytes) -> None:
        for layer in self.formats[component].layer_ids:
            for part in self.formats[component].parts:
                found = self.arena.read(component, layer, part.name, np.array([page]))[0]
                wanted = self.of(component, layer, part.name, prefix).to(getattr(torch, part.dtype))
                assert torch.equal(found, wanted), (component, page, layer, part.name)

    def serve(self, tokens: list[int]) -> int:
        """A request: what is cached is right, the rest is written and published. Returns how many tokens were cached."""
        cache = self.cache
        with cache.acquire(Key(tokens)) as lease:
            if lease.is_loading:
                for layer in range(7):
                    cache.wait_layer(lease, layer)
            cached = lease.cached_tokens
            for page in range(cached // PAGE_SIZE):
                self.expect("full", int(lease.pages("full")[page]), np.array(tokens[: (page + 1) * PAGE_SIZE]).tobytes())
            for copy in lease.state_copies:
                self.expect("mamba", copy.source, np.array(tokens[:cached]).tobytes())
            cache.allocate(lease, len(tokens))
            last = len(tokens) // PAGE_SIZE
            for component in ("full", "swa"):
                self.each(lease, tokens, component, lease.compute_from // PAGE_SIZE, last)
            states = dict(lease.save_pages)
            for length, page in states.items():
                self.put("mamba", page, np.array(tokens[:length]).tobytes())
            cache.commit(lease, tokens, states=states)
        return cached


@pytest.mark.parametrize("block_bytes", [None, 512, 1024])
@pytest.mark.parametrize("seed", range(3))
def test_every_byte_is_what_was_put_in(seed: int, block_bytes: int | None) -> None:
    world = Content(seed, block_bytes)
    cache, rng = world.cache, world.rng
    texts: list[list[int]] = [[]]
    cached = 0
    for _ in range(120):
        old = rng.choice(texts)
        tokens = old[: rng.randrange(len(old) + 1)] + [rng.randrange(3) for _ in range(rng.randrange(1, 20))]
        try:
            cached += world.serve(tokens)
            texts = [*texts[-8:], tokens]
        except OutOfPagesError:
            pass
        cache.poll()
        if rng.random() < 0.3:
            cache.drain()
        assert cache.tree.check() == []
        check_blocks(world)
    stats = cache.stats()
    assert cached > 200
    assert stats.loaded.pages > 0 and stats.pools["full"].evicted_pages > 0
    cache.close()


def check_blocks(world: Content) -> None:
    """Every block belongs to one page or to nobody."""
    tables, allocators = world.arena.tables, world.cache.device.allocators
    taken: list[int] = []
    for name, table in tables.tables.items():
        for page in range(len(table)):
            if allocators[name].is_allocated(page):
                taken += table[page].tolist()
    assert len(taken) == len(set(taken)) == world.layout.budget.block_count - tables.free_count


def test_a_view_is_what_a_paged_kernel_indexes() -> None:
    world = Content(0)
    arena = world.arena
    view = arena.view("full", 4, "k")
    assert view.shape == (world.layout.budget.block_count, PAGE_SIZE, 2, 6)
    assert view.stride()[0] * view.element_size() == world.layout.budget.block_bytes
    pages = world.cache.device.allocators["full"].allocate(3)
    values = torch.randn(3, PAGE_SIZE, 2, 6).to(view.dtype)
    arena.write("full", 4, "k", pages, values)
    block_table = arena.table("full")[pages, arena.part_group("full", 4, "k")]
    assert torch.equal(view[torch.from_numpy(block_table).long()], values)


def test_an_arena_serves_one_cache_of_its_budget() -> None:
    world = Content(0)
    with pytest.raises(ConfigurationError, match="serves one cache"):
        world.arena.serve(world.cache)
    second = PrefixCache(world.model.components, PAGE_SIZE, budget=world.layout.budget)
    with pytest.raises(ConfigurationError, match="serves one cache"):
        world.arena.serve(second)
    other = PrefixCache(world.model.components, PAGE_SIZE, {"full": 8, "swa": 8, "mamba": 8})
    with pytest.raises(ConfigurationError, match="budget"):
        world.arena.serve(other)


def test_a_mover_refuses_pages_that_are_not_there() -> None:
    world = Content(0)
    pair = ArenaPair(world.arena, "full", world.host["full"])
    for source, target in (([9999], [0]), ([0], [40]), ([0, 1], [3, 3])):
        with pytest.raises(PageError):
            pair.backup(np.array(source), np.array(target))
    with pytest.raises(ConfigurationError, match="different formats"):
        ArenaPair(world.arena, "full", world.host["swa"])
