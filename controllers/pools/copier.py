"""Copiers of pages between device and host: each is chosen once for a pair of memories, and bound to their views of a page.

On a GPU without Triton, torch's kernels gather the source pages and scatter them to the targets, at the cost of the model
beside them (`bus_copy`). So thousands of scattered pages cost two launches per part and staging buffer, whatever the layout,
and not a call per page. The index logic is that of ordinary tensors, so it runs on a CPU too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from unified_tree.controllers.pools.bus_copy import bus_copy
from unified_tree.controllers.pools.core_copy import CoreCopy
from unified_tree.controllers.pools.page_moves import device_index
from unified_tree.controllers.pools.parts import ALL, chosen, device_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from unified_tree.controllers.pools.page_moves import PageMoves
    from unified_tree.controllers.pools.parts import Parts

CopyPages: TypeAlias = "Callable[[list[torch.Tensor], list[torch.Tensor], PageMoves], None]"


class PageCopier(Protocol):
    """Copies pages between two memories; see PagePair for when a call returns."""

    def back_up(self, moves: PageMoves) -> None:
        """Copy device pages to host pages, all layers."""

    def load(self, moves: PageMoves, layers: slice = ALL) -> None:
        """Copy host pages to device pages, some layers, by their indices."""


class IndexCopier(Protocol):
    """The same for page ids in device memory, int64 [n]. No target may be named twice; this is not checked."""

    def back_up(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy device pages to host pages, all layers."""

    def load(self, source: torch.Tensor, target: torch.Tensor, layers: slice = ALL) -> None:
        """Copy host pages to device pages, some layers, by their indices."""


class PartCopier:
    """A PageCopier by a function that copies lists of tensors, [layer, page, slot, word]."""

    def __init__(self, copy: CopyPages, device: Parts, host: Parts) -> None:
        self._copy = copy
        self._device = device
        self._host = host

    def back_up(self, moves: PageMoves) -> None:
        """See PageCopier."""
        device, host = chosen(self._device, self._host, ALL)
        self._copy(host, device, moves)

    def load(self, moves: PageMoves, layers: slice = ALL) -> None:
        """See PageCopier."""
        device, host = chosen(self._device, self._host, layers)
        self._copy(device, host, moves)


class SendingCopier:
    """A PageCopier that sends the page ids to the device, in one piece, where an IndexCopier copies."""

    def __init__(self, copier: IndexCopier, device: torch.device) -> None:
        self._copier = copier
        self._place = device

    def back_up(self, moves: PageMoves) -> None:
        """See PageCopier."""
        self._copier.back_up(*self._send(moves))

    def load(self, moves: PageMoves, layers: slice = ALL) -> None:
        """See PageCopier."""
        self._copier.load(*self._send(moves), layers)

    def _send(self, moves: PageMoves) -> tuple[torch.Tensor, torch.Tensor]:
        ids = device_index(np.concatenate((moves.source, moves.target)), self._place)
        return ids[: len(moves)], ids[len(moves) :]


def page_copier(device: Parts, host: Parts, host_memory: torch.Tensor, by_cores: CoreCopy | None = None) -> PageCopier:
    """What copies between these; a kernel for them is built now.

    Args:
        device: in the device's memory.
        host: in host memory, or in pages staged on the device.
        host_memory: what those are a view of; memory of the host, though a GPU's view of it is the GPU's.
        by_cores: what copies on a CPU; None for one of its own.
    """
    place = device_of(device)
    if place.type == "cpu":
        return PartCopier(by_cores or CoreCopy(), device, host)
    return SendingCopier(index_copier(device, host, host_memory), place)


def index_copier(device: Parts, host: Parts, host_memory: torch.Tensor) -> IndexCopier:
    """The same, for page ids in device memory. Without Triton, and on a CPU, torch gathers and scatters."""
    by_bus = None
    if device_of(device).type != "cpu":
        by_bus = bus_copy(device, host, crosses_bus=host_memory.device.type == "cpu")
    return by_bus or KernelCopy(device, host)


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
