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


class PageCopier:
    """Copies chunks; all of a call's have been copied when it returns.

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

    def write_pages(self, buffers: Sequence[torch.Tensor], begins: Sequence[int], span: Span) -> None:
        """Chunks that begin at these tokens, from buffers to their pages; those before the span's beginning are left alone."""
        for buffer, begin in zip(buffers, begins, strict=True):
            skipped = max(0, (span.begin - begin) // self._page_tokens)
            for piece, tensor, ids in self._pieces(buffer, begin, span):
                tensor[torch.from_numpy(ids[skipped:])] = piece[skipped:].to(tensor.device)
        self._synchronize()

    def read_pages(self, buffers: Sequence[torch.Tensor], begins: Sequence[int], span: Span) -> None:
        """The opposite, all pages of the chunks."""
        for buffer, begin in zip(buffers, begins, strict=True):
            for piece, tensor, ids in self._pieces(buffer, begin, span):
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


def connector(copier: PageCopier) -> Any:
    """LMCache's connector that copies with this one. Its base class is LMCache's, so it is made when it is needed."""
    from importlib import import_module

    base: Any = import_module("lmcache.v1.gpu_connector.gpu_connectors").GPUConnectorInterface

    def batched_to_gpu(
        _: Any, memory_objs: Any = None, starts: Any = None, ends: Any = None, *, span: Span, **other: Any
    ) -> None:
        del ends, other
        copier.write_pages([each.tensor for each in memory_objs], starts, span)

    def batched_from_gpu(_: Any, memory_objs: Any, starts: Any, ends: Any, *, span: Span, **other: Any) -> None:
        del ends, other
        copier.read_pages([each.tensor for each in memory_objs], starts, span)

    def to_gpu(self: Any, memory_obj: Any, start: int, end: int, **given: Any) -> None:
        batched_to_gpu(self, [memory_obj], [start], [end], **given)

    def from_gpu(self: Any, memory_obj: Any, start: int, end: int, **given: Any) -> None:
        batched_from_gpu(self, [memory_obj], [start], [end], **given)

    def get_shape(_: Any, num_tokens: int) -> torch.Size:
        return torch.Size([2, 1, num_tokens, copier.half_token_bytes])

    calls = (batched_to_gpu, batched_from_gpu, to_gpu, from_gpu, get_shape)
    return type("PageConnector", (base,), {call.__name__: call for call in calls})()
