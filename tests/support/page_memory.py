"""A fake memory on both tiers: every layer of every page holds the very prefix that was computed into it, or nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableMapping, Sequence

import numpy as np
from host_cells import HostCells, HostPages
from numpy.typing import NDArray

from unified_tree import Component, Tier

Ids = NDArray[np.int64]
Content = tuple[str, int, bytes]
"""Namespace, weights version, and the tokens up to the page's last computed one, as a key's bytes."""
LAYERS = ((0, 2), (1,), (0, 1), (2, 3), (3,), (1, 3))
"""Which model layers the first component keeps, the second, …"""
Place = tuple[str, Tier, int]
"""Component, tier, page."""


class PageMemory:
    """The pages of all components on device and host; a sharer has bytes of its own at its owner's device page ids.

    Attributes:
        layers: of the model, ascending.
        host_pages: by component, as bytes for a store.
        busy: pages that a transfer reads or writes, so that nobody else may write them.
        known: the content that a digest on host stands for; hand it to the next memory, and it understands a store's pages.
    """

    def __init__(self, components: Sequence[Component], known: dict[bytes, Content] | None = None) -> None:
        self.layers_of = {c.name: LAYERS[i % len(LAYERS)] for i, c in enumerate(components)}
        self.layers = sorted({layer for layers in self.layers_of.values() for layer in layers})
        self.busy: dict[Place, int] = {}
        self.host_pages = {name: HostPages(len(layers)) for name, layers in self.layers_of.items()}
        self.known: dict[bytes, Content] = {} if known is None else known
        self._cells: dict[tuple[str, Tier, int], MutableMapping[int, Content]] = {}
        for name, layers in self.layers_of.items():
            for index, layer in enumerate(layers):
                self._cells[name, Tier.DEVICE, layer] = {}
                self._cells[name, Tier.HOST, layer] = HostCells(self.host_pages[name], index, self.known)

    def write(self, component: str, page: int, content: Content | None) -> None:
        """The model computes a device page, all layers; None leaves garbage."""
        assert (component, Tier.DEVICE, page) not in self.busy, f"{component}: page {page} is written during a transfer"
        self._put(component, Tier.DEVICE, page, content)

    def spoil(self, component: str, tier: Tier, pages: Iterable[int]) -> None:
        """What these pages hold is undefined from now on."""
        for page in pages:
            self._put(component, tier, page, None)

    def keep_only(self, component: str, tier: Tier, pages: Collection[int]) -> None:
        """All other pages are nobody's: whoever reads them finds garbage."""
        for layer in self.layers_of[component]:
            cells = self._cells[component, tier, layer]
            for page in [page for page in cells if page not in pages]:
                del cells[page]

    def _put(self, component: str, tier: Tier, page: int, content: Content | None) -> None:
        for layer in self.layers_of[component]:
            cells = self._cells[component, tier, layer]
            if content is None:
                cells.pop(page, None)
            else:
                cells[page] = content

    def read(self, component: str, page: int, layer: int, tier: Tier = Tier.DEVICE) -> Content | None:
        """What a layer of a page holds; None for garbage."""
        return self._cells[component, tier, layer].get(page)

    def copy_page(self, component: str, source: int, target: int, layer: int) -> None:
        """One layer of a device page to another, as for a running state."""
        self._copy(self._cells[component, Tier.DEVICE, layer], self._cells[component, Tier.DEVICE, layer], [source], [target])

    def move(self, component: str, layer: int, origin: Tier, source: Ids, target: Ids) -> None:
        """One layer of some pages to the other tier."""
        goal = Tier.HOST if origin is Tier.DEVICE else Tier.DEVICE
        self._copy(self._cells[component, origin, layer], self._cells[component, goal, layer], source.tolist(), target.tolist())

    def _copy(
        self, origin: MutableMapping[int, Content], goal: MutableMapping[int, Content], source: list[int], target: list[int]
    ) -> None:
        for at, to in zip(source, target, strict=True):
            content = origin.get(at)
            if content is None:
                goal.pop(to, None)
            else:
                goal[to] = content

    def movers(self) -> dict[str, MemoryMover]:
        """What a transfer engine moves these pages with."""
        return {name: MemoryMover(self, name) for name in self.layers_of}


class MemoryMover:
    """The PageMover of one component."""

    def __init__(self, memory: PageMemory, component: str) -> None:
        self.layer_ids = memory.layers_of[component]
        self._memory = memory
        self._component = component

    def backup(self, source: Ids, target: Ids) -> None:
        """See PageMover.backup."""
        for layer in self.layer_ids:
            self._memory.move(self._component, layer, Tier.DEVICE, source, target)

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        """See PageMover.load_layers."""
        for layer_id in layer_ids:
            self._memory.move(self._component, layer_id, Tier.HOST, source, target)
