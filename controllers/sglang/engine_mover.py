"""Copies pages between SGLang's tensors and a host pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.pools.core_copy import CoreCopy
from unified_tree.controllers.pools.page_moves import Ids, PageMoves
from unified_tree.controllers.pools.words import word_dtype

if TYPE_CHECKING:
    import torch

    from unified_tree.controllers.pools.host_pool import HostPool
    from unified_tree.controllers.sglang.device_pools import Names
    from unified_tree.controllers.sglang.engine_tensors import EngineTensors


class EngineMover:
    """A PageMover whose device pages are names. SGLang's tensors are one a layer; the host pool is one for all.

    Args:
        tensors: of the component, in CPU memory.
        names: what the names stand for.
        host: of the same format.
    """

    def __init__(self, tensors: EngineTensors, names: Names, host: HostPool) -> None:
        self._format = tensors.format
        self._names = names
        self._page_count, self._host_page_count = tensors.page_count, host.page_count
        self._device_words: list[list[torch.Tensor]] = []  # by layer, then by part: [1, page, slot, word]
        self._host_words: list[list[torch.Tensor]] = []
        parts = [(part, host.words(part.name)) for part in self._format.parts]
        for layer in range(len(self._format.layer_ids)):
            device, host_rows = [], []
            for part, words in parts:
                tensor = tensors.by_part[part.name][layer]
                rows = tensor.reshape(*tensor.shape[:2], -1).view(word_dtype(part))
                device.append(rows.unsqueeze(0))
                host_rows.append(words[layer : layer + 1])
            self._device_words.append(device)
            self._host_words.append(host_rows)
        self._copy = CoreCopy()

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model layers whose state these pages hold, ascending."""
        return self._format.layer_ids

    def backup(self, source: Ids, target: Ids) -> None:
        """Copy device pages, by name, to host pages, all layers. Cost: O(bytes)."""
        moves = self._moves(self._pages(source), target, self._page_count, self._host_page_count)
        self._copy(_flat(self._host_words), _flat(self._device_words), moves)

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        """Copy some layers of host pages to device pages, by name. Cost: O(bytes of those layers)."""
        some = self._format.layer_slice(layer_ids)
        moves = self._moves(source, self._pages(target), self._host_page_count, self._page_count)
        self._copy(_flat(self._device_words[some]), _flat(self._host_words[some]), moves)

    def _pages(self, names: Ids) -> Ids:
        pages = self._names.pages(names)
        return pages if isinstance(pages, np.ndarray) else pages.cpu().numpy()

    def _moves(self, source: Ids, target: Ids, source_pages: int, target_pages: int) -> PageMoves:
        return PageMoves(self._format.component, source, target, source_pages=source_pages, target_pages=target_pages)


def _flat(by_layer: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [words for parts in by_layer for words in parts]
