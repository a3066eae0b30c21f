"""A few pages of a host arena in one piece each, on their way between the arena and device memory.

Blocks end anywhere within a layer, and device memory has its layers one by one. So a page is copied twice: between its blocks
and a page here, and between that and the device by the mover that serves a host pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.pools.copier import PageCopier, page_copier
from unified_tree.controllers.pools.core_copy import CoreCopy
from unified_tree.controllers.pools.cpu_memory import cpu_memory, device_view
from unified_tree.controllers.pools.host_layout import HostLayout, place
from unified_tree.controllers.pools.host_pool import part_rows
from unified_tree.controllers.pools.page_moves import PageMoves
from unified_tree.controllers.pools.words import word_dtype
from unified_tree.controllers.tensors import torch

if TYPE_CHECKING:
    from unified_tree.controllers.pools.host_arena import HostArena
    from unified_tree.controllers.pools.page_moves import Ids

STAGING_BYTES = 64 << 20
"""Of the pages that are staged together, but at least a page."""
WORD_BYTES = 8
"""Blocks are copied by such words."""


class StagedPages:
    """Page `i` here is page `pages[i]` of what was read, or is to be written. Not thread-safe.

    Args:
        arena: the pages' memory; pinned if `device` is a GPU.
        component: whose pages.
        device: where these are, and what copies them: a CPU, or a GPU on its current stream.

    Attributes:
        format: what a page holds.
        page_count: how many there are at a time.
        memory: uint8 of one dimension.

    Raises ConfigurationError for an arena that the device cannot address.
    """

    def __init__(self, arena: HostArena, component: str, device: torch.device) -> None:
        self.format = arena.formats[component]
        block_bytes, self._page_blocks = arena.budget.block_bytes, arena.budget.page_blocks[component]
        stride_bytes = self._page_blocks * block_bytes
        self.page_count = max(1, STAGING_BYTES // stride_bytes)
        self._arena = arena
        padding = stride_bytes - self.format.page_bytes
        self._placement = place(self.format, self.page_count, HostLayout.PAGE_FIRST_DIRECT, padding)
        assert self._placement.page_stride_bytes == stride_bytes, "blocks are aligned as pages are"
        size_bytes = self._placement.size_bytes
        on_cpu = device.type == "cpu"
        self.memory = cpu_memory(size_bytes) if on_cpu else torch.empty(size_bytes, dtype=torch.uint8, device=device)
        self._here = _blocks(self.memory, block_bytes)
        self._there = _blocks(device_view(arena.memory.view(-1), device), block_bytes)
        self._by_cores = CoreCopy() if on_cpu else None
        self._copiers: dict[tuple[int, int], PageCopier] = {}
        self._whole = self._copier(0, block_bytes // WORD_BYTES)

    def words(self, part: str, memory: torch.Tensor | None = None) -> torch.Tensor:
        """See HostPool.words."""
        kept = self.format.part(part)
        own = self.memory if memory is None else memory
        return part_rows(own.view(word_dtype(kept)), self.format, self.page_count, kept, self._placement.parts[part])

    def read(self, pages: Ids, layers: slice) -> None:
        """Copy these pages of the arena here, at least some layers of them, given by their indices in the format.

        Cost: O(bytes of these layers), and O(blocks of a page).
        """
        there, here = self._arena.blocks(self.format.component, pages), self._numbers(pages.size)
        for words, columns in self._spans(layers).items():
            of_page = sorted(columns)
            self._copier(*words).load(self._moves(there[:, of_page], here[:, of_page], self._there, self._here))

    def write(self, pages: Ids) -> None:
        """Copy the first pages here to these of the arena, all layers. Cost: O(bytes)."""
        there, here = self._arena.blocks(self.format.component, pages), self._numbers(pages.size)
        self._whole.back_up(self._moves(here, there, self._here, self._there))

    def _copier(self, begin: int, end: int) -> PageCopier:
        """What copies these words of blocks; there are as many as there are groups of layers that are loaded together.

        Cost: O(1). Where a group is loaded for the first time on a GPU, its kernel may have to be built, which takes a second.
        """
        found = self._copiers.get((begin, end))
        if found is None:
            here, there = (memory[..., begin:end] for memory in (self._here, self._there))
            found = self._copiers[begin, end] = page_copier([here], [there], self._arena.memory, self._by_cores)
        return found

    def _numbers(self, page_count: int) -> Ids:
        """The blocks of the first pages here, [page, block of the page]."""
        return np.arange(page_count * self._page_blocks).reshape(page_count, self._page_blocks)

    def _spans(self, layers: slice) -> dict[tuple[int, int], set[int]]:
        """Where some layers lie in the blocks of a page: from which word up to which, and the blocks in which they lie so."""
        block_bytes = self._arena.budget.block_bytes
        spans: dict[tuple[int, int], set[int]] = {}
        for placed in self._placement.parts.values():
            begin, end = (placed.offset_bytes + index * placed.layer_stride_bytes for index in (layers.start, layers.stop))
            for column in range(begin // block_bytes, -(-end // block_bytes)):
                first, last = max(0, begin - column * block_bytes), min(block_bytes, end - column * block_bytes)
                spans.setdefault((first // WORD_BYTES, -(-last // WORD_BYTES)), set()).add(column)
        return spans

    def _moves(self, source: Ids, target: Ids, read: torch.Tensor, written: torch.Tensor) -> PageMoves:
        return PageMoves(
            self.format.component, source.ravel(), target.ravel(), source_pages=read.shape[1], target_pages=written.shape[1]
        )


def _blocks(memory: torch.Tensor, block_bytes: int) -> torch.Tensor:
    """[1, block, 1, word] of all bytes."""
    return memory.view(torch.int64).view(1, -1, 1, block_bytes // WORD_BYTES)
