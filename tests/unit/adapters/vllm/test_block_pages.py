"""Blocks of vLLM's layers, whatever their strides, in host pages and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from unified_tree import Path
from unified_tree.controllers.adapters.vllm.block_group import BlockGroup
from unified_tree.controllers.adapters.vllm.block_pages import BlockPages, block_words
from unified_tree.controllers.adapters.vllm.messages import PageCopies

BLOCKS = 9
LAYOUTS: dict[str, Callable[[str], torch.Tensor]] = {
    "whole": lambda device: torch.zeros(BLOCKS, 2, 4, 3, 8, dtype=torch.bfloat16, device=device),
    "keys before values": lambda device: torch.zeros(2, BLOCKS, 4, 3, 8, dtype=torch.bfloat16, device=device).movedim(1, 0),
    "heads before tokens": lambda device: torch.zeros(BLOCKS, 2, 3, 4, 8, device=device).movedim(2, 3),
    "padded": lambda device: torch.zeros(BLOCKS, 100, dtype=torch.float16, device=device)[:, :96].view(BLOCKS, 4, 24),
    "padded by half a word": lambda device: torch.zeros(BLOCKS, 98, dtype=torch.float16, device=device)[:, :96].view(-1, 4, 24),
    "behind an odd one": lambda device: torch.zeros(BLOCKS * 6 + 1, device=device)[1:].view(BLOCKS, 6),
    "odd": lambda device: torch.zeros(BLOCKS, 3, 5, dtype=torch.uint8, device=device),
}


def pages_over(layouts: list[str], device: str) -> tuple[BlockPages, list[torch.Tensor]]:
    caches = [LAYOUTS[layout](device) for layout in layouts]
    for number, cache in enumerate(caches):
        cache.copy_(torch.randint(0, 255, cache.shape, device=device) + number)
    names = tuple(f"layer {number}" for number in range(len(caches)))
    size = sum(cache[0].numel() * cache.element_size() for cache in caches)
    group = BlockGroup(index=0, coverage=Path(), layer_names=names, block_bytes=size)
    return BlockPages(group, dict(zip(names, caches, strict=True)), 12, verify=True), caches


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("layouts", [*([name] for name in LAYOUTS), ["whole", "padded", "odd"], list(LAYOUTS)], ids=", ".join)
def test_blocks_come_back(layouts: list[str], device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    pages, caches = pages_over(layouts, device)
    before = [cache.clone() for cache in caches]
    pages.save(PageCopies(group=0, pages=(7, 0, 11), blocks=(2, 8, 1)))
    assert not pages.corrupt([7, 0, 11])
    for cache in caches:
        cache.zero_()
    pages.load(PageCopies(group=0, pages=(11, 7, 0), blocks=(1, 0, 5)))
    for cache, kept in zip(caches, before, strict=True):
        assert torch.equal(cache[[1, 0, 5]], kept[[1, 2, 8]])
        assert not cache[[2, 3, 4, 6, 7, 8]].any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_words_are_a_view_of_the_block(layout: str) -> None:
    pages, (cache,) = pages_over([layout], "cpu")
    words = block_words(cache, pages.pool.format.parts[0])
    if layout in ("heads before tokens", "padded by half a word", "behind an odd one"):
        assert words is None
        return
    assert words is not None
    assert words.shape[:2] == (1, BLOCKS)
    held, shown = (rows.contiguous().view(torch.uint8).flatten() for rows in (cache[3], words[0, 3]))
    assert torch.equal(held, shown)
    words[0, 3] = 0
    assert not cache[3].any() and cache[2].any()
