"""A list of page copies, checked and sorted by target.

Copies may be made in any order, so they are sorted by target. That detects duplicate targets, makes writes ascend, and groups
pages that were allocated together, whatever the order of the free list.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.tensors import torch
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import PageError

Ids = NDArray[np.int64]


class PageMoves:
    """Copies `source[i] -> target[i]`, targets ascending.

    Args:
        component: for messages.
        source: int64 [n] page ids; may repeat.
        target: int64 [n] page ids; must not repeat.
        source_pages: pages in the pool that is read.
        target_pages: pages in the pool that is written.

    Raises PageError for arrays that are not such, or ids out of range. Cost: O(n log n), O(n) if targets ascend already.
    """

    __slots__ = ("source", "target")

    def __init__(self, component: str, source: Ids, target: Ids, *, source_pages: int, target_pages: int) -> None:
        for name, ids, pages in (("source", source, source_pages), ("target", target, target_pages)):
            if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
                raise PageError(f"{component}: {name} must be a one-dimensional int64 array of page ids, not {repr_of(ids)}")
            if ids.size and (ids.min() < 0 or ids.max() >= pages):
                raise PageError(f"{component}: {name} names a page outside 0 … {pages - 1} among {ids[:8].tolist()}")
        if source.size != target.size:
            raise PageError(f"{component}: {source.size} source pages for {target.size} targets")
        order = np.argsort(target, kind="stable")
        self.source: Ids = source[order]
        self.target: Ids = target[order]
        if (np.diff(self.target) == 0).any():
            raise PageError(f"{component}: a target page is named twice among {target[:8].tolist()}")

    def __len__(self) -> int:
        """Pages to copy."""
        return self.target.size


def device_index(ids: Ids, device: torch.device) -> torch.Tensor:
    """Page ids as a tensor of a device, int64 [n], without waiting for it: they are pinned on the way to a GPU.

    On a CPU the tensor shares the array's memory, or has a copy of a read-only one.
    """
    tensor = torch.from_numpy(ids if ids.flags.writeable else ids.copy())
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
