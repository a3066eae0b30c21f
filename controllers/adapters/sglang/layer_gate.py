"""Where the layers of a model wait for pages that are being loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.host.open_transfers import Load


class LayerGate:
    """Where the layers of a model wait for their pages.

    SGLang calls it a layer transfer counter. Each batch that loads something has a number, and its layers wait for the loads of
    that batch.

    Attributes:
        num_layers: of the model; where a whole model is one graph of kernels, SGLang waits for the last.
        consumer_index: the batch that runs now.
    """

    REMEMBERED = 8

    def __init__(self, wait_layer: Callable[[Load, int], None], num_layers: int) -> None:
        self._wait_layer = wait_layer
        self.num_layers = num_layers
        self._batches: dict[int, list[Load]] = {}
        self._last = -1
        self.consumer_index = -1

    def open(self, loads: list[Load]) -> int:
        """The number of a batch with these loads; -1 without any."""
        if not loads:
            return -1
        self._last += 1
        self._batches[self._last] = loads
        self._batches.pop(self._last - self.REMEMBERED, None)
        return self._last

    def set_consumer(self, index: int) -> None:
        """The batch that runs now; -1 for one without loads."""
        self.consumer_index = index

    def wait_until(self, layer: int) -> None:
        """Return when the pages of one layer of the running batch are there. Raises TransferError if they will not come."""
        for load in self._batches.get(self.consumer_index, ()):
            self._wait_layer(load, layer)
