"""Copies pages between SGLang's tensors and a host pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.adapters.sglang.page_numbers import PageNumbers
from unified_tree.controllers.pools.copier import index_copier, page_copier
from unified_tree.controllers.pools.cpu_memory import device_view
from unified_tree.controllers.pools.page_moves import Ids, PageMoves, device_index
from unified_tree.controllers.pools.words import word_dtype

if TYPE_CHECKING:
    import torch

    from unified_tree.controllers.adapters.sglang.device_pools import Names
    from unified_tree.controllers.adapters.sglang.engine_tensors import EngineTensors
    from unified_tree.controllers.pools.host_pool import HostPool
    from unified_tree.declare.page_format import Part


class EngineMover:
    """A PageMover whose device pages are names. SGLang's tensors are one a layer; the host pool is one for all.

    Where names are page numbers the processor copies. Otherwise kernels do, on the current stream: only the device knows which
    pages the names stand for.

    Args:
        tensors: of the component.
        names: what the names stand for.
        host: of the same format; pinned if the tensors are on a GPU.
    """

    def __init__(self, tensors: EngineTensors, names: Names, host: HostPool) -> None:
        self._format = tensors.format
        self._names = names
        self._host_page_count = host.page_count
        memory = device_view(host.memory, tensors.device)
        on_host = [host.words(part.name, memory) for part in self._format.parts]
        on_device = [[_words(tensor, part) for tensor in tensors.by_part[part.name]] for part in self._format.parts]
        if isinstance(names, PageNumbers):
            self._by_number = page_copier(on_device, on_host, host.memory)
        else:
            self._by_name = index_copier(on_device, on_host, host.memory)

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model layers whose state these pages hold, ascending."""
        return self._format.layer_ids

    def backup(self, source: Ids, target: Ids) -> None:
        """Copy device pages, by name, to host pages, all layers. Cost: O(bytes)."""
        names, component = self._names, self._format.component
        moves = PageMoves(component, source, target, source_pages=names.capacity, target_pages=self._host_page_count)
        if isinstance(names, PageNumbers):
            self._by_number.back_up(moves)
        else:
            pages = names.pages(moves.source)
            self._by_name.back_up(pages, device_index(moves.target, pages.device))

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        """Copy some layers of host pages to device pages, by name. Cost: O(bytes of those layers)."""
        names, component = self._names, self._format.component
        some = self._format.layer_slice(layer_ids)
        moves = PageMoves(component, source, target, source_pages=self._host_page_count, target_pages=names.capacity)
        if isinstance(names, PageNumbers):
            self._by_number.load(moves, some)
        else:
            pages = names.pages(moves.target)
            self._by_name.load(device_index(moves.source, pages.device), pages, some)


def _words(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    """A layer's pages as [1, page, slot, word]."""
    return tensor.reshape(*tensor.shape[:2], -1).view(word_dtype(part)).unsqueeze(0)
