"""Copies pages on a GPU: a gather and a scatter per part instead of a call per page.

Torch's kernels gather the source pages and scatter them to the targets, where Triton is missing, at the cost of the model
beside them (`bus_copy`). So thousands of scattered pages cost two launches per part and staging buffer, whatever the layout.
The index logic is that of ordinary tensors, so it runs on a CPU too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.pools.page_moves import device_index
from unified_tree.controllers.pools.parts import ALL, chosen

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from unified_tree.controllers.pools.page_moves import PageMoves
    from unified_tree.controllers.pools.parts import Parts

STAGING_BYTES = 64 << 20
"""Device memory between a gather and its scatter."""


class KernelCopy:
    """An IndexCopier on the current stream, which waits for nothing. Cost: O(bytes), two launches a part and staging buffer."""

    def __init__(self, device: Parts, host: Parts) -> None:
        self._device = device
        self._host = host

    def back_up(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See IndexCopier."""
        device, host = chosen(self._device, self._host, ALL)
        _copy_indexed(host, device, target, source)

    def load(self, source: torch.Tensor, target: torch.Tensor, layers: slice = ALL) -> None:
        """See IndexCopier."""
        device, host = chosen(self._device, self._host, layers)
        _copy_indexed(device, host, target, source)


def copy_by_kernels(into: list[torch.Tensor], out_of: list[torch.Tensor], moves: PageMoves) -> None:
    """The same for page ids in host memory, and for lists of tensors, [layer, page, slot, word]."""
    device = into[0].device
    _copy_indexed(into, out_of, device_index(moves.target, device), device_index(moves.source, device))


def _copy_indexed(
    into: Sequence[torch.Tensor], out_of: Sequence[torch.Tensor], target: torch.Tensor, source: torch.Tensor
) -> None:
    count = target.numel()
    for written, read in zip(into, out_of, strict=True):
        step = max(1, STAGING_BYTES // (written[:, 0].numel() * written.element_size()))
        for begin in range(0, count, step):
            some = slice(begin, begin + step)
            written.index_copy_(1, target[some], read.index_select(1, source[some]))
