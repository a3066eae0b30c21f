"""Pages in blocks of host memory: exact copies to and from the device, whatever the sizes, the order and the neighbours."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from unified_tree import Component, ConfigurationError, PageError, Path, Point, Trailing
from unified_tree.components import Composition, composition_for, model_names
from unified_tree.controllers.pools import (
    BlockArena,
    BlockLayout,
    DevicePool,
    HostArena,
    HostLayout,
    HostPool,
    PagePair,
    StagedPair,
    formats_of,
    indexer_format,
    mha_format,
    staged_pages,
    state_format,
)
from unified_tree.controllers.pools.copier import PartCopier, copy_by_kernels
from unified_tree.controllers.pools.host_arena import suitable_block_bytes
from unified_tree.declare.block_budget import BlockBudget

PAGE_SIZE = 4
DEVICE_PAGES = 9
Bytes = dict[tuple[int, str], torch.Tensor]
"""What a page holds, by layer and part: uint8."""


def hybrid() -> Composition:
    """Kinds whose layers interleave and whose pages, layers and rows have sizes that do not divide each other."""
    formats = {
        "full": mha_format("full", layer_ids=(1, 4, 5), page_size=PAGE_SIZE, kv_heads=2, head_dim=6, value_dim=5),
        "indexer": indexer_format("indexer", layer_ids=(1, 4), page_size=PAGE_SIZE, key_dim=5),
        "swa": mha_format("swa", layer_ids=(0, 2, 3, 7), page_size=PAGE_SIZE, kv_heads=3, head_dim=7, dtype="float32"),
        "mamba": state_format("mamba", layer_ids=(2, 6), conv_shape=(5, 3), state_shape=(2, 3, 4)),
    }
    kinds = (
        Component(name="full", coverage=Path()),
        Component(name="indexer", coverage=Path(), shares="full"),
        Component(name="swa", coverage=Trailing(7)),
        Component(name="mamba", coverage=Point()),
    )
    return Composition(name="hybrid", page_size=PAGE_SIZE, components=kinds).with_formats(formats)


class Device:
    """Device memory of either kind, written and read by hand."""

    def __init__(self, model: Composition, *, arena: bool, place: str = "cpu") -> None:
        self.formats = formats_of(model)
        self.owners = {c.name: c.shares or c.name for c in model.components}
        self.arena = BlockArena(model, BlockLayout.of(model, 40_000), place) if arena else None
        self.pools = {} if arena else {name: DevicePool(kept, DEVICE_PAGES, place) for name, kept in self.formats.items()}
        if self.arena is not None:
            for name in self.arena.tables.tables:
                self.arena.tables.assign(name, np.arange(DEVICE_PAGES))

    def memory(self, component: str) -> Any:
        return self.arena or self.pools[component]

    def piece(self, component: str, page: int, layer: int, part: str) -> torch.Tensor:
        """A view of a layer and part of a page, as bytes."""
        if self.arena is None:
            found = self.pools[component].tensor(layer, part)[page]
        else:
            block = int(self.arena.table(component)[page, self.arena.part_group(component, layer, part)])
            found = self.arena.view(component, layer, part)[block]
        return found.reshape(-1).view(torch.uint8)

    def fill(self, component: str, page: int, rng: Random) -> Bytes:
        """Write random bytes, NaNs among them."""
        held: Bytes = {}
        for layer in self.formats[component].layer_ids:
            for part in self.formats[component].parts:
                piece = self.piece(component, page, layer, part.name)
                piece.copy_(torch.frombuffer(bytearray(rng.randbytes(piece.numel())), dtype=torch.uint8))
                held[layer, part.name] = piece.clone()
        return held

    def holds(self, component: str, page: int, layers: tuple[int, ...], wanted: Bytes) -> bool:
        kept = self.formats[component].parts
        return all(torch.equal(self.piece(component, page, i, p.name), wanted[i, p.name]) for i in layers for p in kept)


def groups(layer_ids: tuple[int, ...], rng: Random) -> list[tuple[int, ...]]:
    """All layers, in groups of neighbours."""
    found, begin = [], 0
    while begin < len(layer_ids):
        end = begin + rng.randrange(1, 4)
        found.append(layer_ids[begin:end])
        begin = end
    return found


@pytest.mark.parametrize("copy", ["by cores", "by kernels", "on a GPU"])
@pytest.mark.parametrize("staging_bytes", [1, 3000, 1 << 20])
@pytest.mark.parametrize("block_bytes", [64, 192, 1024, 8192, None])
@pytest.mark.parametrize("arena", [False, True])
def test_pages_come_back_through_blocks_that_others_had(
    arena: bool, block_bytes: int | None, staging_bytes: int, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are backed up, freed and loaded in any order, layer by layer; their blocks pass from one kind to another."""
    monkeypatch.setattr(staged_pages, "STAGING_BYTES", staging_bytes)
    if copy == "by kernels":
        monkeypatch.setattr(staged_pages, "page_copier", lambda one, other, *_: PartCopier(copy_by_kernels, one, other))
    place = "cuda" if copy == "on a GPU" else "cpu"
    if place == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    rng, model = Random(f"{arena} {block_bytes} {staging_bytes}"), hybrid()
    device = Device(model, arena=arena, place=place)
    host = HostArena(model, max(20_000, 8 * (block_bytes or 0)), block_bytes=block_bytes, pin=place == "cuda")
    pairs = {name: StagedPair(device.memory(name), name, host) for name in device.formats}
    kept: dict[tuple[str, int], Bytes] = {}
    unused = {name: list(range(count)) for name, count in host.budget.page_counts.items()}
    used_by: dict[int, set[str]] = {}
    for _ in range(60):
        name = rng.choice(list(device.formats))
        count = rng.randrange(1, DEVICE_PAGES)
        if rng.random() < 0.5:
            count = min(count, host.tables.free_count // host.budget.page_blocks[name])
            source = np.array(rng.sample(range(DEVICE_PAGES), count), np.int64)
            target = np.array([unused[name].pop(rng.randrange(len(unused[name]))) for _ in range(count)], np.int64)
            host.tables.assign(name, target)
            for page in target.tolist():
                for block in host.blocks(name, np.array([page])).ravel().tolist():
                    used_by.setdefault(block, set()).add(name)
            contents = [device.fill(name, page, rng) for page in source.tolist()]
            pairs[name].backup(source, target)
            kept |= {(name, page): content for page, content in zip(target.tolist(), contents, strict=True)}
        mine = [page for component, page in kept if component == name]
        if mine:
            source = np.array(rng.choices(mine, k=count), np.int64)
            target = np.array(rng.sample(range(DEVICE_PAGES), count), np.int64)
            for page in range(DEVICE_PAGES):
                device.fill(name, page, rng)
            for layers in groups(pairs[name].layer_ids, rng):
                pairs[name].load_layers(layers, source, target)
                for at, to in zip(source.tolist(), target.tolist(), strict=True):
                    assert device.holds(name, to, layers, kept[name, at])
            for page in rng.sample(mine, rng.randrange(len(mine) + 1)):
                del kept[name, page]
                unused[name].append(page)
                host.tables.release(name, np.array([page]))
    assert any(len(names) > 1 for names in used_by.values()), "blocks were had by several kinds"


def test_a_load_touches_no_other_layer_and_no_other_page() -> None:
    model, rng = hybrid(), Random(0)
    device, host = Device(model, arena=False), HostArena(model, 20_000, block_bytes=128)
    pair = StagedPair(device.memory("swa"), "swa", host)
    host.tables.assign("swa", np.arange(2))
    held = [device.fill("swa", page, rng) for page in range(DEVICE_PAGES)]
    pair.backup(np.array([0, 1]), np.array([0, 1]))
    pair.load_layers((2, 3), np.array([0, 1]), np.array([5, 4]))
    for page in range(DEVICE_PAGES):
        moved = {4: held[1], 5: held[0]}.get(page, held[page])
        assert device.holds("swa", page, (2, 3), moved) and device.holds("swa", page, (0, 7), held[page])


@pytest.mark.parametrize("arena", [False, True])
def test_what_is_no_copy_is_refused_before_a_byte_is_written(arena: bool) -> None:
    model = hybrid()
    device, host = Device(model, arena=arena), HostArena(model, 20_000)
    host.tables.assign("full", np.arange(2))
    pair, most = StagedPair(device.memory("full"), "full", host), host.budget.page_count("full")
    host.memory.fill_(7)
    for on_device, on_host in (([9999], [0]), ([0], [most]), ([0], [1, 2]), ([-1], [0]), ([0], [-1])):
        with pytest.raises(PageError):
            pair.backup(np.array(on_device), np.array(on_host))
        with pytest.raises(PageError):
            pair.load_layers((1,), np.array(on_host), np.array(on_device))
    for move in (pair.backup, partial(pair.load_layers, (1,))):
        with pytest.raises(PageError, match="named twice"):
            move(np.array([0, 1]), np.array([3, 3]))
    assert (host.memory == 7).all()
    with pytest.raises(ConfigurationError, match="no neighbours"):
        pair.load_layers((1, 5), np.array([0]), np.array([0]))
    other = BlockArena(other_model(), BlockLayout.of(other_model(), 9000)) if arena else device.memory("swa")
    with pytest.raises(ConfigurationError, match="formats"):
        StagedPair(other, "full", host)


def other_model() -> Composition:
    """A model with other keys under the same name."""
    keys = mha_format("full", layer_ids=(1,), page_size=PAGE_SIZE, kv_heads=2, head_dim=6)
    kinds = (Component(name="full", coverage=Path()),)
    return Composition(name="other", page_size=PAGE_SIZE, components=kinds).with_formats({"full": keys})


@pytest.mark.parametrize("block_bytes", [64, 192, 1024, None])
def test_a_store_is_given_what_a_host_pool_would_give_it(block_bytes: int | None) -> None:
    model, rng = hybrid(), Random(3)
    device, host = Device(model, arena=False), HostArena(model, 40_000, block_bytes=block_bytes)
    for name, kept in device.formats.items():
        pool = HostPool(kept, 4, HostLayout.PAGE_FIRST_DIRECT)
        pages = host.pages()[name]
        assert pages.payload_bytes == pool.payload_bytes and pages.layout is pool.layout
        for page in range(DEVICE_PAGES):
            device.fill(name, page, rng)
        target = np.array([3, 0, 2])
        host.tables.assign(name, target)
        StagedPair(device.memory(name), name, host).backup(np.array([0, 4, 7]), target)
        PagePair(device.memory(name), pool).backup(np.array([0, 4, 7]), target)
        for page in target.tolist():
            given = pages.page_memory(page)
            assert given.nbytes == pool.page_memory(page).nbytes
            assert given[: pages.payload_bytes] == pool.page_memory(page)[: pages.payload_bytes]
        host.tables.assign(name, np.array([1]))
        before = [bytes(pages.page_memory(page)[: pages.payload_bytes]) for page in target.tolist()]
        pages.write_page(1, pool.page_memory(2))
        assert bytes(pages.page_memory(1)[: pages.payload_bytes]) == before[2]
        assert [bytes(pages.page_memory(page)[: pages.payload_bytes]) for page in target.tolist()] == before
        with pytest.raises(PageError, match="not one of"):
            pages.page_memory(host.budget.page_count(name))


@pytest.mark.parametrize("name", model_names())
def test_blocks_suit_every_model(name: str) -> None:
    """Whatever the page size, and where a state is far larger than a page of keys."""
    for page_size in (16, 64, 256):
        try:
            model = composition_for(name, page_size=page_size)
        except ConfigurationError:
            continue  # not a multiple of its compression
        sizes = {c.name: c.page_bytes for c in model.components}
        block_bytes = suitable_block_bytes(sizes.values())
        budget = BlockBudget.of(sizes, 64 << 30, block_bytes=block_bytes)
        waste = {pool: 1 - size / (budget.page_blocks[pool] * block_bytes) for pool, size in sizes.items()}
        assert max(waste.values()) <= 1 / 64 and block_bytes >= 4096, (page_size, block_bytes, waste)


def test_an_arena_without_a_cache_moves_nothing() -> None:
    model = hybrid()
    for arena in (False, True):
        pair = StagedPair(Device(model, arena=arena).memory("full"), "full", HostArena(model, 20_000))
        with pytest.raises(ConfigurationError, match="no page has blocks"):
            pair.backup(np.array([0]), np.array([0]))
        with pytest.raises(ConfigurationError, match="no page has blocks"):
            pair.load_layers((1,), np.array([0]), np.array([0]))


def test_memory_that_cannot_be_is_refused() -> None:
    model = hybrid()
    with pytest.raises(ConfigurationError, match="multiple of 64"):
        HostArena(model, 20_000, block_bytes=100)
    with pytest.raises(ConfigurationError, match="block_bytes"):
        HostArena(model, 20_000, block_bytes=0)
    with pytest.raises(ConfigurationError, match="a page takes"):
        HostArena(model, 1000)
    with pytest.raises(ConfigurationError, match="size_bytes"):
        HostArena(model, 0)
    with pytest.raises(ConfigurationError, match=r"the host blocks of hybrid: .* take fewer bytes"):
        HostArena(model, 1 << 50)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigurationError, match="needs CUDA"):
            HostArena(model, 20_000, pin=True)
