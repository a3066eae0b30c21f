"""Copies between the device and a host arena."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.pools.block_arena import ArenaPair, BlockArena
from unified_tree.controllers.pools.page_moves import PageMoves
from unified_tree.controllers.pools.page_pair import PagePair
from unified_tree.controllers.pools.staged_pages import StagedPages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree.controllers.pools.device_pool import DevicePool
    from unified_tree.controllers.pools.host_arena import HostArena
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.pools.page_moves import Ids


class StagedPair:
    """Moves pages of one component between device memory and a host arena; a PageMover.

    Exact, and each byte is copied twice (`StagedPages`).

    Args:
        device: the component's pool, or the arena of all.
        component: its name.
        host: pinned if the device is a GPU.

    Raises ConfigurationError for a device of another format, and for host memory that it cannot address.

    Memory: `STAGING_BYTES` or a page for each direction, on the device.
    """

    def __init__(self, device: DevicePool | BlockArena, component: str, host: HostArena) -> None:
        self._component = component
        self._host = host
        if isinstance(device, BlockArena):
            place, self._device_pages = device.memory.device, len(device.table(component))
        else:
            place, self._device_pages = device.device, device.page_count
        self._backups, self._loads = StagedPages(host, component, place), StagedPages(host, component, place)  # two streams
        self._backup, self._load = (_mover(device, component, staged) for staged in (self._backups, self._loads))

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model layers whose state these pages hold, ascending."""
        return self._host.formats[self._component].layer_ids

    def backup(self, source: Ids, target: Ids) -> None:
        """Copy device pages `source` to host pages `target`, all layers. Raises PageError as `PagePair`."""
        moves = PageMoves(self._component, source, target, source_pages=self._device_pages, target_pages=self._host_pages)
        for some, staged in _batches(moves, self._backups):
            self._backup.backup(moves.source[some], staged)
            self._backups.write(moves.target[some])

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        """Copy some model layers of host pages `source` to device pages `target`. Raises as `PagePair`."""
        layers = self._host.formats[self._component].layer_slice(layer_ids)
        moves = PageMoves(self._component, source, target, source_pages=self._host_pages, target_pages=self._device_pages)
        for some, staged in _batches(moves, self._loads):
            self._loads.read(moves.source[some], layers)
            self._load.load_layers(layer_ids, staged, moves.target[some])

    @property
    def _host_pages(self) -> int:
        return self._host.budget.page_count(self._component)


def _mover(device: DevicePool | BlockArena, component: str, staged: StagedPages) -> PageMover:
    return ArenaPair(device, component, staged) if isinstance(device, BlockArena) else PagePair(device, staged)


def _batches(moves: PageMoves, staged: StagedPages) -> Iterator[tuple[slice, Ids]]:
    """Copies that fit into the staged pages at once, and the numbers of these."""
    for begin in range(0, len(moves), staged.page_count):
        some = slice(begin, min(begin + staged.page_count, len(moves)))
        yield some, np.arange(some.stop - some.start)
