"""Movers whose pages are one number per layer, so that tests can see where every byte came from. They need no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_tree.terms.errors import PageError

Ids = NDArray[np.int64]
"""Page ids, or numbers of pages."""


class Cells:
    """A PageMover over two arrays [layer, page]. `watch(layer_id, source, target)` is called before each copy and may
    raise or block; layer_id is None for a backup. `calls` has those layer by layer, `groups` the layers of each load."""

    def __init__(self, layer_ids: tuple[int, ...], pages: int, watch: Callable[[int | None, Ids, Ids], Any] | None = None):
        self.layer_ids = layer_ids
        self.device = np.arange(len(layer_ids) * pages).reshape(len(layer_ids), pages)
        self.host = -1 - self.device
        self.watch = watch
        self.groups: list[tuple[int, ...]] = []
        self.calls: list[tuple[int | None, list[int], list[int]]] = []

    def backup(self, source: Ids, target: Ids) -> None:
        """See PageMover.backup."""
        self._check(None, source, target)
        self.host[:, target] = self.device[:, source]

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        """See PageMover.load_layers."""
        self.groups.append(layer_ids)
        for layer_id in layer_ids:
            self._check(layer_id, source, target)
            index = self.layer_ids.index(layer_id)
            self.device[index, target] = self.host[index, source]

    def put(self, *, device: bool, pages: Ids, values: Ids) -> None:
        """Write pages, [layer, page], as their owner would."""
        (self.device if device else self.host)[:, pages] = values

    def _check(self, layer_id: int | None, source: Ids, target: Ids) -> None:
        pages = self.device.shape[1]
        if min(source.min(), target.min()) < 0 or max(source.max(), target.max()) >= pages:
            raise PageError(f"a page outside 0 … {pages - 1}")
        self.calls.append((layer_id, source.tolist(), target.tolist()))
        if self.watch is not None:
            self.watch(layer_id, source, target)
