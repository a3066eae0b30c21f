"""The host memory of one worker: for every layer a tensor of pages, shaped as that layer's blocks.

A layer's blocks keep their shape and their dtype, so that any layout of vLLM's is copied by indices, whatever its strides are.
One tensor for all layers would make a page one piece of memory, but would need every layer's bytes to be contiguous.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.vllm.block_group import BlockGroup
    from unified_tree.controllers.vllm.step_plan import PageCopies


def grouped_blocks(cache: torch.Tensor, block_count: int) -> torch.Tensor:
    """A layer's cache with vLLM's blocks as the first dimension, where a kernel may use smaller ones. A view.

    Raises ConfigurationError if its blocks are not those.
    """
    if cache.shape[0] % block_count:
        raise ConfigurationError(f"a layer's cache has {cache.shape[0]} blocks, which {block_count} does not divide")
    return cache if cache.shape[0] == block_count else cache.view(block_count, -1, *cache.shape[1:])


class BlockPages:
    """Host pages of one group, and the copies between them and vLLM's blocks.

    Args:
        group: the layers.
        caches: vLLM's cache of each, blocks first.
        page_count: host pages.
        verify: keep a checksum of every page.

    Raises ConfigurationError if a block is smaller than the group says: then vLLM keeps something beside it.
    """

    def __init__(self, group: BlockGroup, caches: Mapping[str, torch.Tensor], page_count: int, *, verify: bool) -> None:
        self._caches = [caches[name] for name in group.layer_names]
        held = sum(cache[0].numel() * cache.element_size() for cache in self._caches)
        if held != group.block_bytes:
            raise ConfigurationError(
                f"{group.name}: a block of its layers has {held} bytes, vLLM says {group.block_bytes}; "
                "this cache format is not supported"
            )
        is_pinned = self._caches[0].device.type == "cuda"
        self._hosts = [
            torch.empty((page_count, *cache.shape[1:]), dtype=cache.dtype, pin_memory=is_pinned) for cache in self._caches
        ]
        self._sums: dict[int, int] | None = {} if verify else None
        self.block_bytes = group.block_bytes

    @property
    def hosts(self) -> list[torch.Tensor]:
        """The pages of each layer, shape [pages, …]."""
        return self._hosts

    def save(self, copies: PageCopies) -> None:
        """Copy blocks to host pages; done when this returns."""
        pages = torch.tensor(copies.pages)
        for cache, host in zip(self._caches, self._hosts, strict=True):
            host.index_copy_(0, pages, cache.index_select(0, torch.tensor(copies.blocks, device=cache.device)).cpu())
        if self._sums is not None:
            self._sums.update((page, self._sum(page)) for page in copies.pages)

    def load(self, copies: PageCopies) -> None:
        """Copy host pages to blocks; done, or in order on the current stream, when this returns."""
        pages = torch.tensor(copies.pages)
        for cache, host in zip(self._caches, self._hosts, strict=True):
            blocks = torch.tensor(copies.blocks, device=cache.device)
            cache.index_copy_(0, blocks, host.index_select(0, pages).to(cache.device))

    def corrupt(self, pages: Sequence[int]) -> list[int]:
        """Which of these pages are not what was saved; none without `verify`."""
        if self._sums is None:
            return []
        return [page for page in pages if self._sums.get(page) != self._sum(page)]

    def _sum(self, page: int) -> int:
        found = 0
        for host in self._hosts:
            found = zlib.crc32(host[page].reshape(-1).view(torch.uint8).numpy().tobytes(), found)
        return found
