"""Copies pages on a GPU: a gather and a scatter per part instead of a call per page.

Kernels gather the source pages and scatter them to the targets, over the bus to pinned host memory that the GPU addresses
directly. So thousands of scattered pages cost two launches per part and staging buffer, whatever the layout. The index logic is
that of ordinary tensors, so it runs on a CPU too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.tensors import torch

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_moves import Ids, PageMoves

STAGING_BYTES = 64 << 20
"""Device memory between a gather and its scatter."""


def copy_by_kernels(into: list[torch.Tensor], out_of: list[torch.Tensor], moves: PageMoves) -> None:
    """Copy pages of every part on the current stream; tensors are [layer, page, slot, word], one a part, all on one device.

    Waits for nothing. Cost: O(bytes) over the bus, two launches a part and staging buffer.
    """
    device = into[0].device
    source, target = _on_device(moves.source, device), _on_device(moves.target, device)
    for written, read in zip(into, out_of, strict=True):
        step = max(1, STAGING_BYTES // (written[:, 0].numel() * written.element_size()))
        for begin in range(0, len(moves), step):
            some = slice(begin, begin + step)
            written.index_copy_(1, target[some], read.index_select(1, source[some]))


def _on_device(ids: Ids, device: torch.device) -> torch.Tensor:
    """Page ids where the kernels are; pinned on the way, so that sending them waits for nothing."""
    tensor = torch.from_numpy(ids)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
