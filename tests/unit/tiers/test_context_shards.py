"""Pages that context-parallel ranks divide come back from a store byte for byte, and to ranks of the same layout only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path as FilePath
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from unified_tree import WHOLE, Component, Key, PageFormat, Part, Path, Trailing
from unified_tree.components import Composition
from unified_tree.controllers import LoadCost, PrefixCache, tensor_tiers
from unified_tree.controllers.pools import HostLayout, format_header
from unified_tree.controllers.pools.format_header import FormatHeader
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy

PAGES = 4
EAGER = PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, min_tokens=1, max_host_share=1.0)
SIZE = {"full": 7, "packed": 3, "swa": 5}
"""Bytes of a slot."""


class Layout:
    """Drawn by a seed: ranks that divide pages of as many tokens, in runs; some components are whole on each of them."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.ranks = random.choice([1, 2, 3, 4])
        self.interleave = random.choice([1, 2, 3]) if self.ranks > 1 else 1
        self.page_size = 2 * self.ranks * self.interleave * random.choice([1, 2])
        self.host_layout = random.choice([HostLayout.PAGE_FIRST, HostLayout.PAGE_FIRST_DIRECT])
        self.names = ("full", "packed") if random.random() < 0.5 else ("full",)

    def model(self, rank: int) -> Composition:
        """What a rank keeps; entries of `packed` stand for two tokens."""
        components = (
            Component(name="full", coverage=Path()),
            Component(name="packed", coverage=Path(), tokens_per_slot=2),
            Component(name="swa", coverage=Trailing(self.page_size)),
        )
        formats = {
            c.name: PageFormat(
                component=c.name,
                layer_ids=(0, 3),
                parts=(Part("k", "uint8", (SIZE[c.name],)),),
                slots_per_page=self.page_size // c.tokens_per_slot,
                shard=WHOLE,
            )
            for c in components
        }
        model = Composition(
            name="m", page_size=self.page_size, components=components, tensor_parallel=self.ranks, rank=rank
        ).with_formats(formats)
        return model.with_context_parallel(self.ranks, interleave=self.interleave, names=self.names)


class Rank:
    """A rank of a server over a store: which of its slots hold what, by what all ranks together should hold."""

    def __init__(self, layout: Layout, rank: int, directory: FilePath) -> None:
        self.model = layout.model(rank)
        counts = {c.name: PAGES + 2 for c in self.model.components}
        self.tiers = tensor_tiers(self.model, device_page_counts=counts, host_page_counts=counts, layout=layout.host_layout)
        options = {"directory": directory, "capacity_bytes": 1 << 26, "shares": 16}
        storage = self.tiers.storage_tier("file", weights_version="w", options=options, prefetch=EAGER)
        host = self.tiers.host_tier(load_cost=LoadCost(flops_per_s=1.0))
        self.cache = PrefixCache(self.model.components, layout.page_size, counts, host=host, storage=storage)
        self.prompt = np.arange(PAGES * layout.page_size)

    def slots(self, name: str, layer_id: int, lease: Any, truth: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For each page that a lease holds: the bytes in the pool (a view), and those that should be there."""
        pool = self.tiers.device[name]
        own = list(pool.format.context.slots(truth.shape[1]))
        pages = lease.pages(name)[:PAGES]
        held = [(i, int(page)) for i, page in enumerate(pages) if page >= 0]
        return [(pool.tensor(layer_id, "k")[page], truth[i][own]) for i, page in held]

    def serve(self, truth: dict[tuple[str, int], torch.Tensor]) -> tuple[int, int]:
        """How many tokens the store has, and how many of their pages are other bytes; if none, all are written."""
        self.cache.prefetch("request", Key([*self.prompt, 7]))
        self.cache.drain()
        wrong = 0
        with self.cache.acquire(Key([*self.prompt, 7]), request="request") as lease:
            self.cache.drain()
            found = lease.cached_tokens
            if not found:
                self.cache.allocate(lease, self.prompt.size)
            pairs = [pair for (name, layer_id), of in truth.items() for pair in self.slots(name, layer_id, lease, of)]
            assert len(pairs) >= 2 * (2 * PAGES + 1)
            for kept, given in pairs:
                if found:
                    wrong += not torch.equal(kept, given)
                else:
                    kept.copy_(given)
            if not found:
                self.cache.commit(lease, self.prompt)
        self.cache.flush()
        self.cache.close()
        return found, wrong


def truth_of(layout: Layout) -> dict[tuple[str, int], torch.Tensor]:
    """Bytes of all slots, [page, slot, byte], by component and layer."""
    torch.manual_seed(layout.page_size)
    slots = {"full": layout.page_size, "packed": layout.page_size // 2, "swa": layout.page_size}
    return {
        (name, layer_id): torch.randint(0, 256, (PAGES, count, SIZE[name]), dtype=torch.uint8)
        for name, count in slots.items()
        for layer_id in (0, 3)
    }


def served(layout: Layout, directory: FilePath) -> list[tuple[int, int]]:
    truth = truth_of(layout)
    return [Rank(layout, rank, directory).serve(truth) for rank in range(layout.ranks)]


@pytest.mark.parametrize("seed", range(12))
def test_every_byte_comes_back_to_the_rank_that_kept_it(seed: int, tmp_path: FilePath) -> None:
    layout = Layout(seed)
    assert served(layout, tmp_path) == [(0, 0)] * layout.ranks
    assert served(layout, tmp_path) == [(layout.page_size * PAGES, 0)] * layout.ranks


def test_of_layouts_over_one_store_each_finds_its_own(tmp_path: FilePath) -> None:
    layouts = []
    for ranks, interleave in ((1, 1), (2, 1), (2, 2), (2, 6), (3, 1), (3, 2), (4, 3), (4, 1), (6, 2)):
        layout = Layout(0)
        layout.ranks, layout.interleave, layout.page_size, layout.names = ranks, interleave, 12, ("full",)
        layouts.append(layout)
    for found in (0, 12 * PAGES):
        for layout in layouts:
            assert served(layout, tmp_path) == [(found, 0)] * layout.ranks, vars(layout)


def test_keys_without_the_length_of_runs_would_bring_bytes_of_other_tokens(tmp_path: FilePath, monkeypatch: Any) -> None:
    encode = FormatHeader.encode

    def forgetful(self: FormatHeader) -> bytes:
        return encode(replace(self, format=replace(self.format, context=replace(self.format.context, interleave=1))))

    monkeypatch.setattr(FormatHeader, "encode", forgetful)
    monkeypatch.setattr(format_header, "_division", lambda _: [])
    layout = Layout(0)
    layout.ranks, layout.page_size, layout.names = 2, 12, ("full",)
    for interleave in (1, 2):
        layout.interleave = interleave
        found = served(layout, tmp_path)
    assert [tokens for tokens, _ in found] == [12 * PAGES] * 2
    assert all(wrong for _, wrong in found)
