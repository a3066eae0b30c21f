"""Copies pages on a GPU: a gather and a scatter per part instead of a call per page.

Torch's kernels gather the source pages and scatter them to the targets, within the device; and to and from pinned host memory
where Triton is missing, at the model's cost (`bus_copy`). So thousands of scattered pages cost two launches per part and
staging buffer, whatever the layout. The index logic is that of ordinary tensors, so it runs on a CPU too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.pools.device_index import device_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from unified_tree.controllers.pools.page_moves import PageMoves

STAGING_BYTES = 64 << 20
"""Device memory between a gather and its scatter."""


def copy_by_kernels(into: list[torch.Tensor], out_of: list[torch.Tensor], moves: PageMoves) -> None:
    """Copy pages of every part on the current stream, as `copy_indexed_pages`."""
    device = into[0].device
    copy_indexed_pages(into, out_of, device_index(moves.target, device), device_index(moves.source, device))


def copy_indexed_pages(
    into: Sequence[torch.Tensor], out_of: Sequence[torch.Tensor], target: torch.Tensor, source: torch.Tensor
) -> None:
    """Copy pages of every part on the current stream.

    Waits for nothing. Cost: O(bytes), two launches a part and staging buffer.

    Args:
        into, out_of: [layer, page, slot, word], one a part, all on one device.
        target, source: page ids of each, int64 [n], there too; no target is named twice.
    """
    count = target.numel()
    for written, read in zip(into, out_of, strict=True):
        step = max(1, STAGING_BYTES // (written[:, 0].numel() * written.element_size()))
        for begin in range(0, count, step):
            some = slice(begin, begin + step)
            written.index_copy_(1, target[some], read.index_select(1, source[some]))
