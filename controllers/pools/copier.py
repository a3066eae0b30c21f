"""What copies pages between device and host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from unified_tree.controllers.pools import bus_copy
from unified_tree.controllers.pools.core_copy import CoreCopy
from unified_tree.controllers.pools.kernel_copy import copy_by_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from unified_tree.controllers.pools.page_moves import PageMoves

CopyPages: TypeAlias = "Callable[[list[torch.Tensor], list[torch.Tensor], PageMoves], None]"


class Copiers(NamedTuple):
    """What copies pages to host, and from there."""

    back_up: CopyPages
    load: CopyPages


def copiers(device_words: Sequence[torch.Tensor], host_words: Sequence[torch.Tensor], host_memory: torch.Tensor) -> Copiers:
    """What copies pages between these words, [layer, page, slot, word], one a part; the kernel for them is built now.

    Args:
        device_words: of the device's memory.
        host_words: of host memory, or of pages staged on the device.
        host_memory: what those are a view of; memory of the host, though a GPU's view of it is the GPU's.
    """
    if device_words[0].device.type == "cpu":
        by_cores = CoreCopy()
        return Copiers(by_cores, by_cores)
    if host_memory.device.type != "cpu":
        return Copiers(copy_by_kernels, copy_by_kernels)
    bus_copy.warm_up(device_words, host_words)
    return Copiers(bus_copy.back_up, bus_copy.load)
