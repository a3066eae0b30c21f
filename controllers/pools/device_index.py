"""Page ids where kernels read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.tensors import torch

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_moves import Ids


def device_index(ids: Ids, device: torch.device) -> torch.Tensor:
    """Page ids as a tensor of a device, int64 [n], without waiting for it: they are pinned on the way to a GPU.

    On a CPU the tensor shares the array's memory, or has a copy of a read-only one.
    """
    tensor = torch.from_numpy(ids if ids.flags.writeable else ids.copy())
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
