"""The device and the host pool of one component, and the copies between them.

Both pools show their rows as [layer, page, slot, word], whatever their layout. So what moves pages is a function of two such
views, one for a CPU and one for a GPU, and all that is left to do here is to check ids and to pick layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.pools.copier import PartCopier, page_copier
from unified_tree.controllers.pools.cpu_memory import device_view
from unified_tree.controllers.pools.page_moves import Ids, PageMoves
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.pools.copier import CopyPages, PageCopier
    from unified_tree.controllers.pools.device_pool import DevicePool
    from unified_tree.controllers.pools.host_pool import HostPool
    from unified_tree.controllers.pools.staged_pages import StagedPages


class PagePair:
    """Moves pages of one component between its device and its host pool; a PageMover.

    Page ids are int64 [n]; page `source[i]` goes to page `target[i]`, in any order. The methods raise PageError for arrays
    that are not such a pair, pages that a pool does not have and targets named twice; then no byte has been written. With a
    device pool on a GPU they return once the copies are on the current stream, and the caller keeps the pages of both
    sides untouched until the stream has passed them.

    Args:
        device: on a CPU or a GPU.
        host: of the same format; pinned if the device pool is on a GPU.
        copy_pages: what copies; None for what `page_copier` finds.

    Raises ConfigurationError for pools of different formats, and for host memory that the device cannot address.
    """

    def __init__(self, device: DevicePool, host: HostPool | StagedPages, copy_pages: CopyPages | None = None) -> None:
        if device.format != host.format:
            raise ConfigurationError(f"pools of different formats: the device's is {device.format}, the host's {host.format}")
        self.device = device
        self.host = host
        host_memory = device_view(host.memory, device.device)
        device_words = [device.words(part.name) for part in device.format.parts]
        host_words = [host.words(part.name, host_memory) for part in host.format.parts]
        self._copier: PageCopier
        if copy_pages is None:
            self._copier = page_copier(device_words, host_words, host.memory)
        else:
            self._copier = PartCopier(copy_pages, device_words, host_words)

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model layers whose state these pages hold, ascending."""
        return self.device.format.layer_ids

    def backup(self, source: Ids, target: Ids) -> None:
        """Copy device pages `source` to host pages `target`, all layers. Cost: O(bytes), and O(n log n) for the ids."""
        moves = self._moves(source, target, source_pages=self.device.page_count, target_pages=self.host.page_count)
        self._copier.back_up(moves)

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        """Copy some model layers of host pages `source` to device pages `target`. Cost: O(bytes), and O(n log n) for the ids.

        Raises ConfigurationError for layers that are not kept, or not neighbours among those that are.
        """
        some = self.device.format.layer_slice(layer_ids)
        moves = self._moves(source, target, source_pages=self.host.page_count, target_pages=self.device.page_count)
        self._copier.load(moves, some)

    def _moves(self, source: Ids, target: Ids, *, source_pages: int, target_pages: int) -> PageMoves:
        name = self.device.format.component
        return PageMoves(name, source, target, source_pages=source_pages, target_pages=target_pages)
