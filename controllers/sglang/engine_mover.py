"""Copies pages between SGLang's tensors and a host pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.pools import bus_copy
from unified_tree.controllers.pools.copier import copiers
from unified_tree.controllers.pools.device_index import device_index
from unified_tree.controllers.pools.page_moves import Ids, PageMoves
from unified_tree.controllers.pools.pinning import device_view
from unified_tree.controllers.pools.words import word_dtype
from unified_tree.controllers.sglang.page_numbers import PageNumbers

if TYPE_CHECKING:
    import torch

    from unified_tree.controllers.pools.host_pool import HostPool
    from unified_tree.controllers.sglang.device_pools import Names
    from unified_tree.controllers.sglang.engine_tensors import EngineTensors


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
        self._device_words: list[list[torch.Tensor]] = []  # by layer, then by part: [1, page, slot, word]
        self._host_words: list[list[torch.Tensor]] = []
        memory = device_view(host.memory, tensors.device)
        parts = [(part, host.words(part.name, memory)) for part in self._format.parts]
        for layer in range(len(self._format.layer_ids)):
            device, host_rows = [], []
            for part, words in parts:
                tensor = tensors.by_part[part.name][layer]
                rows = tensor.reshape(*tensor.shape[:2], -1).view(word_dtype(part))
                device.append(rows.unsqueeze(0))
                host_rows.append(words[layer : layer + 1])
            self._device_words.append(device)
            self._host_words.append(host_rows)
        self._copiers = copiers(_flat(self._device_words), _flat(self._host_words), host.memory)

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model layers whose state these pages hold, ascending."""
        return self._format.layer_ids

    def backup(self, source: Ids, target: Ids) -> None:
        """Copy device pages, by name, to host pages, all layers. Cost: O(bytes)."""
        names, component = self._names, self._format.component
        moves = PageMoves(component, source, target, source_pages=names.capacity, target_pages=self._host_page_count)
        into, out_of = _flat(self._host_words), _flat(self._device_words)
        if isinstance(names, PageNumbers):
            self._copiers.back_up(into, out_of, moves)
        else:
            pages = names.pages(moves.source)
            bus_copy.back_up.copy(into, out_of, device_index(moves.target, pages.device), pages)

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        """Copy some layers of host pages to device pages, by name. Cost: O(bytes of those layers)."""
        names, component = self._names, self._format.component
        some = self._format.layer_slice(layer_ids)
        moves = PageMoves(component, source, target, source_pages=self._host_page_count, target_pages=names.capacity)
        into, out_of = _flat(self._device_words[some]), _flat(self._host_words[some])
        if isinstance(names, PageNumbers):
            self._copiers.load(into, out_of, moves)
        else:
            pages = names.pages(moves.target)
            bus_copy.load.copy(into, out_of, pages, device_index(moves.source, pages.device))


def _flat(by_layer: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [words for parts in by_layer for words in parts]
