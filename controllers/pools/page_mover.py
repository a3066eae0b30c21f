"""The interface between a transfer engine and a pair of pools: it moves pages of one component between device and host.

A mover has no queue and no thread, and serves one component. Backups move whole pages; loads move some layers at a time, so
that layer 0 can run while the others are still being copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class PageMover(Protocol):
    """Moves pages of one component. Ids are int64 [n], `source[i]` going to `target[i]`; none may be out of range, and
    no target may be named twice. All calls of one mover come from one thread at a time.

    Raises PageError, before a byte is written, for any other pair of arrays.
    """

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model layers whose state these pages hold, ascending."""
        ...

    def backup(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Copy device pages `source` to host pages `target`, all layers. Cost: O(bytes moved)."""
        ...

    def load_layers(self, layer_ids: tuple[int, ...], source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Copy some layers of host pages `source` to device pages `target`: at least one, and neighbours in `layer_ids`.
        Raises ConfigurationError for layers that are not kept here so. Cost: O(bytes of those layers)."""
        ...
