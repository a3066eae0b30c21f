"""Between LMCache's buffers and device pages: what an engine in this process copies with.

A buffer holds a chunk: pool by pool and tensor by tensor, the pages of the chunk one after another, as bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.tensors import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
    from unified_tree.controllers.prefix_linker.prefix_linker import Span


class PageConnector:
    """What an engine calls of LMCache's `GPUConnectorInterface`. All chunks of a call have been copied when it returns.

    Args:
        pools: the device pools, of one page size.
        chunk_tokens: of every chunk.
    """

    def __init__(self, pools: Sequence[LinkedPool], chunk_tokens: int) -> None:
        self._pools = pools
        self._page_tokens = pools[0].page_tokens
        self._chunk_tokens = chunk_tokens
        self._page_bytes = sum(tensor[0].numel() for pool in pools for tensor in pool.tensors)

    @property
    def half_token_bytes(self) -> int:
        """Half of what a buffer has for a token, rounded up: LMCache's buffers have two halves, for keys and values."""
        return -(-self._page_bytes // (2 * self._page_tokens))

    def batched_to_gpu(
        self, memory_objs: Sequence[Any], starts: Sequence[int], ends: Sequence[int], *, span: Span, **_: Any
    ) -> None:
        """Chunks that begin at these tokens, from buffers to their pages; those before the span's beginning are left alone."""
        del ends
        for memory, begin in zip(memory_objs, starts, strict=True):
            skipped = max(0, (span.begin - begin) // self._page_tokens)
            for piece, tensor, ids in self._pieces(memory.tensor, begin, span):
                tensor[torch.from_numpy(ids[skipped:])] = piece[skipped:].to(tensor.device)
        self._synchronize()

    def batched_from_gpu(
        self, memory_objs: Sequence[Any], starts: Sequence[int], ends: Sequence[int], *, span: Span, **_: Any
    ) -> None:
        """The opposite, all pages of the chunks."""
        del ends
        for memory, begin in zip(memory_objs, starts, strict=True):
            for piece, tensor, ids in self._pieces(memory.tensor, begin, span):
                piece.copy_(tensor[torch.from_numpy(ids)])
        self._synchronize()

    def _pieces(
        self, buffer: torch.Tensor, begin: int, span: Span
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, NDArray[np.int64]]]:
        """The pages of one chunk in each tensor: their place in the buffer, the tensor, and their ids."""
        count = self._chunk_tokens // self._page_tokens
        first = (begin - span.first_token(self._chunk_tokens)) // self._page_tokens
        flat, offset = buffer.view(torch.uint8).flatten(), 0
        for pool in self._pools:
            ids = np.array(span.pages[pool.name][first : first + count])
            for tensor in pool.tensors:
                size = count * tensor[0].numel()
                yield flat[offset : offset + size].view(count, *tensor.shape[1:]), tensor, ids
                offset += size

    def _synchronize(self) -> None:
        device = self._pools[0].tensors[0].device
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
