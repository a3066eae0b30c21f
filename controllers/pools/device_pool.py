"""The tensors of one component on a device, in the order that attention kernels read."""

from __future__ import annotations

from unified_tree.controllers.pools.cpu_memory import cpu_memory
from unified_tree.controllers.pools.host_memory import check_host_memory
from unified_tree.controllers.pools.words import torch_dtype, word_dtype
from unified_tree.controllers.tensors import torch
from unified_tree.declare.page_format import PageFormat
from unified_tree.inputs.arguments import integer
from unified_tree.terms.errors import ConfigurationError


class DevicePool:
    """One tensor a part, [layer, page, slot, *shape]; what a page holds before it is written is undefined.

    A component that shares another's device pages has a pool of its own, with its owner's number of pages: the page ids
    are the owner's.

    Args:
        page_format: what a page holds.
        page_count: pages in the pool.
        device: torch device; the memory of a CPU pool is not touched before it is written.

    Raises ConfigurationError for a page count that is not positive, or that exceeds the host's memory.
    """

    def __init__(self, page_format: PageFormat, page_count: int, device: torch.device | str = "cpu") -> None:
        self.format = page_format
        self.page_count = integer(page_count, f"{page_format.component}: page_count", ConfigurationError, minimum=1)
        self.device = torch.device(device)
        if self.device.type == "cpu":
            check_host_memory(self.size_bytes, component=page_format.component)
        self._memory = {
            part.name: self._allocate(len(page_format.layer_ids) * self.page_count * page_format.block_bytes(part))
            for part in page_format.parts
        }

    def _allocate(self, size_bytes: int) -> torch.Tensor:
        if self.device.type == "cpu":
            return cpu_memory(size_bytes)
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors together."""
        return self.page_count * self.format.page_bytes

    def tensor(self, layer_id: int, part: str) -> torch.Tensor:
        """[page, slot, *shape] of one model layer: a contiguous view. Raises ConfigurationError for unknown layers or parts."""
        kept = self.format.part(part)
        shape = (len(self.format.layer_ids), self.page_count, self.format.slots_per_page, *kept.shape)
        return self._memory[part].view(torch_dtype(kept)).view(shape)[self.format.layer_index(layer_id)]

    def slots(self, layer_id: int, part: str) -> torch.Tensor:
        """[page * slot, *shape] of one model layer: a view, as paged attention kernels index it."""
        return self.tensor(layer_id, part).flatten(0, 1)

    def memory(self, part: str) -> torch.Tensor:
        """All bytes of a part, uint8 of one dimension: the tensor that all views are made of."""
        return self._memory[part]

    def words(self, part: str) -> torch.Tensor:
        """[layer, page, slot, word]: all rows of a part as integers of `Part.word_bytes`, a view to copy by."""
        kept = self.format.part(part)
        shape = (len(self.format.layer_ids), self.page_count, self.format.slots_per_page, -1)
        return self._memory[part].view(word_dtype(kept)).view(shape)
