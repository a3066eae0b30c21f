"""The host memory of one worker: a pool a group, in which a page holds one block of every layer.

A layer's blocks keep their shape and their dtype, so that any layout of vLLM's is copied by indices, whatever its strides are.
A page is one piece of memory, as a store takes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from unified_tree.controllers.pools import HostLayout
from unified_tree.controllers.pools.copier import IndexCopier, index_copier
from unified_tree.controllers.pools.cpu_memory import device_view
from unified_tree.controllers.pools.host_pool import HostPool
from unified_tree.controllers.pools.page_moves import device_index
from unified_tree.controllers.pools.words import word_dtype
from unified_tree.declare.page_format import WHOLE, PageFormat, Part, Shard
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.vllm.block_group import BlockGroup
    from unified_tree.controllers.adapters.vllm.messages import PageCopies


def grouped_blocks(cache: torch.Tensor, block_count: int) -> torch.Tensor:
    """A layer's cache with vLLM's blocks as the first dimension, where a kernel may use smaller ones. A view.

    Raises ConfigurationError if its blocks are not those.
    """
    if cache.shape[0] % block_count:
        raise ConfigurationError(f"a layer's cache has {cache.shape[0]} blocks, which {block_count} does not divide")
    return cache if cache.shape[0] == block_count else cache.view(block_count, -1, *cache.shape[1:])


def block_format(group: BlockGroup, caches: Sequence[torch.Tensor], shard: Shard) -> PageFormat:
    """What a page of a group holds: of every layer a block as vLLM lays it out, which the part's name says."""
    parts = tuple(
        Part(f"{name} in blocks of vLLM", str(cache.dtype).removeprefix("torch."), tuple(cache.shape[1:]))
        for name, cache in zip(group.layer_names, caches, strict=True)
    )
    return PageFormat(component=group.name, layer_ids=(0,), parts=parts, slots_per_page=1, shard=shard)


def block_words(cache: torch.Tensor, part: Part) -> torch.Tensor | None:
    """[1, block, slot, word]: a layer's blocks as integers of `Part.word_bytes`, a view; None if a block lies in more pieces
    than its first dimension has, or where no such integer begins.
    """
    items = part.word_bytes // cache.element_size()
    for dimension in (1, 2):
        if cache.ndim > dimension and cache[(0,) * dimension].is_contiguous():
            rows = cache.flatten(dimension)
            if any(number % items for number in (*rows.stride()[:-1], rows.shape[-1], rows.storage_offset())):
                return None
            words = rows.view(word_dtype(part))
            return words.view(1, len(cache), 1, -1) if dimension == 1 else words[None]
    return None


class BlockPages:
    """Host pages of one group, and the copies between them and vLLM's blocks.

    On a GPU a kernel copies, on the current stream; where a layer's blocks are strewn, and on a CPU, the processor does.

    Args:
        group: the layers.
        caches: vLLM's cache of each, blocks first.
        page_count: host pages.
        verify: keep a checksum of every page.
        shard: which part of the state the layers hold.

    Raises ConfigurationError if a block is smaller than the group says: then vLLM keeps something beside it.
    """

    def __init__(
        self, group: BlockGroup, caches: Mapping[str, torch.Tensor], page_count: int, *, verify: bool, shard: Shard = WHOLE
    ) -> None:
        self._group, self._shard = group, shard
        self._caches = [caches[name] for name in group.layer_names]
        held = sum(cache[0].numel() * cache.element_size() for cache in self._caches)
        if held != group.block_bytes:
            raise ConfigurationError(
                f"{group.name}: a block of its layers has {held} bytes, vLLM says {group.block_bytes}; "
                "this cache format is not supported"
            )
        self.pool = HostPool(
            block_format(group, self._caches, shard),
            page_count,
            HostLayout.PAGE_FIRST_DIRECT,
            pin=self._caches[0].device.type == "cuda",
        )
        self._hosts = [
            self.pool.tensor(part.name)[:, 0, 0]  # of one layer and slot, as each of vLLM's layers is a part
            for part in self.pool.format.parts
        ]
        self._bus = self._over_bus()
        self._sums: dict[int, int] | None = {} if verify else None
        self.block_bytes = group.block_bytes

    def give_back(self) -> None:
        """vLLM's cache is about to lose its memory: keep no view of it. A copy raises RuntimeError until `take`."""
        self._caches, self._bus = [], None

    def take(self, caches: Mapping[str, torch.Tensor]) -> None:
        """Copy between the same pages and vLLM's cache as it is now.

        Raises ConfigurationError if its blocks have another format.
        """
        taken = [caches[name] for name in self._group.layer_names]
        if block_format(self._group, taken, self._shard) != self.pool.format:
            raise ConfigurationError(f"{self._group.name}: vLLM's cache came back in another format")
        self._caches = taken
        self._bus = self._over_bus()

    @property
    def hosts(self) -> list[torch.Tensor]:
        """The pages of each layer, shape [pages, …]."""
        return self._hosts

    def save(self, copies: PageCopies) -> None:
        """Copy blocks to host pages; done when this returns."""
        self._require_caches()
        if self._bus is not None:
            self._bus.back_up(self._on_device(copies.blocks), self._on_device(copies.pages))
            torch.cuda.current_stream(self._caches[0].device).synchronize()
        else:
            numbers = torch.tensor(copies.pages)
            for cache, host in zip(self._caches, self._hosts, strict=True):
                host.index_copy_(0, numbers, cache.index_select(0, torch.tensor(copies.blocks, device=cache.device)).cpu())
        self.written(copies.pages)

    def load(self, copies: PageCopies) -> None:
        """Copy host pages to blocks; done, or in order on the current stream, when this returns."""
        self._require_caches()
        if self._bus is not None:
            self._bus.load(self._on_device(copies.pages), self._on_device(copies.blocks))
            return
        numbers = torch.tensor(copies.pages)
        for cache, host in zip(self._caches, self._hosts, strict=True):
            target = torch.tensor(copies.blocks, device=cache.device)
            cache.index_copy_(0, target, host.index_select(0, numbers).to(cache.device))

    def written(self, pages: Sequence[int]) -> None:
        """Remember the checksums of pages that were just written."""
        if self._sums is not None:
            self._sums.update((page, self._sum(page)) for page in pages)

    def corrupt(self, pages: Sequence[int]) -> list[int]:
        """Which of these pages are not what was saved; none without `verify`."""
        if self._sums is None:
            return []
        return [page for page in pages if self._sums.get(page) != self._sum(page)]

    def _require_caches(self) -> None:
        if not self._caches:
            raise RuntimeError(f"{self._group.name}: vLLM sleeps, and its cache has no memory")

    def _over_bus(self) -> IndexCopier | None:
        """What copies between blocks and pages on a GPU; None where the processor does."""
        parts, device = self.pool.format.parts, self._caches[0].device
        if device.type != "cuda":
            return None
        blocks = [block_words(cache, part) for cache, part in zip(self._caches, parts, strict=True)]
        found = [words for words in blocks if words is not None]
        if len(found) < len(blocks):
            return None
        memory = device_view(self.pool.memory, device)
        pages = [self.pool.words(part.name, memory) for part in parts]
        pages = [rows.view(*rows.shape[:2], *words.shape[2:]) for rows, words in zip(pages, found, strict=True)]
        return index_copier(found, pages, self.pool.memory)

    def _on_device(self, numbers: Sequence[int]) -> torch.Tensor:
        return device_index(np.array(numbers, np.int64), self._caches[0].device)

    def _sum(self, page: int) -> int:
        return zlib.crc32(self.pool.page_memory(page)[: self.pool.payload_bytes])
