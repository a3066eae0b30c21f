"""The tensors of all device pools in one memory of equal blocks, for a cache whose pools share a budget.

A page's blocks lie anywhere, so kernels take a block table, as paged attention does anyway: one for each layer group of a
component (`BlockLayout`). The view of a layer and part has all blocks of the arena as its first dimension, so a table's entries
index it as they are; its stride there is that of a block, not of a page.
"""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from unified_tree.controllers.pages.block_tables import BlockTables
from unified_tree.controllers.pages.shared_tier_pages import SharedTierPages
from unified_tree.controllers.pools.copier import PageCopier, page_copier
from unified_tree.controllers.pools.core_copy import CoreCopy
from unified_tree.controllers.pools.cpu_memory import cpu_memory, device_view
from unified_tree.controllers.pools.formats import formats_of
from unified_tree.controllers.pools.host_memory import check_host_memory
from unified_tree.controllers.pools.page_moves import PageMoves
from unified_tree.controllers.pools.words import torch_dtype, word_dtype
from unified_tree.controllers.tensors import torch
from unified_tree.declare.page_format import ITEM_BYTES
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from unified_tree.components import Composition
    from unified_tree.controllers.pools.block_layout import BlockLayout
    from unified_tree.controllers.pools.host_pool import HostPool
    from unified_tree.controllers.pools.staged_pages import StagedPages
    from unified_tree.declare.page_format import Part


class HasDevicePages(Protocol):
    """A cache, such as PrefixCache."""

    @property
    def device(self) -> object:
        """The pages of its device pools."""


class BlockArena:
    """The device memory of a composition whose pools share a budget.

    Args:
        composition: whose state it holds.
        layout: where in a page's blocks each layer and part lies.
        device: torch device; the memory of a CPU arena is not touched before it is written.

    Attributes:
        memory: uint8 [block, byte].
        tables: which blocks each page has.

    Raises ConfigurationError if a CPU arena exceeds the memory there is.
    """

    def __init__(self, composition: Composition, layout: BlockLayout, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.formats = formats_of(composition)
        self.tables = BlockTables(layout.budget)
        self._owners = {c.name: c.shares or c.name for c in composition.components}
        size_bytes = layout.budget.size_bytes
        if torch.device(device).type == "cpu":
            check_host_memory(size_bytes, component=f"the blocks of {composition.name}")
            memory = cpu_memory(size_bytes)
        else:
            memory = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        self.memory = memory.view(layout.budget.block_count, layout.budget.block_bytes)

    def serve(self, cache: HasDevicePages) -> None:
        """Have the pages of a cache take their blocks here from now on.

        Raises ConfigurationError for a cache of another budget, for one that has pages already, and for a second cache.
        """
        pages = cache.device
        if not isinstance(pages, SharedTierPages) or pages.blocks.budget != self.layout.budget:
            raise ConfigurationError("the cache must have the arena's budget: PrefixCache(..., budget=layout.budget)")
        pages.use(self.tables)

    def group(self, component: str, layer_id: int) -> int:
        """The layer group of a model layer: the column of the component's table that says where it is.

        Raises ConfigurationError where the layer's parts lie in several blocks; take `part_group` of each part then.
        """
        parts = self.formats[component].parts
        groups = {self.layout.places[component, layer_id, part.name].group for part in parts}
        if len(groups) > 1:
            raise ConfigurationError(
                f"{component}: the parts of layer {layer_id} lie in several blocks; take "
                + ", ".join(f"part_group({component!r}, {layer_id}, {part.name!r})" for part in parts)
            )
        return groups.pop()

    def part_group(self, component: str, layer_id: int, part: str) -> int:
        """Likewise of one part, where a layer's parts may lie in several blocks."""
        return self.layout.places[component, layer_id, part].group

    def table(self, component: str) -> NDArray[np.int32]:
        """The block numbers of a component's pages, [page, layer group]; a sharer's are its owner's. A view."""
        return self.tables.tables[self._owners[component]]

    def view(self, component: str, layer_id: int, part: str) -> torch.Tensor:
        """[block, slot, *shape] of a model layer and part: element `b` is the page whose group lies in block `b`.

        Elements of blocks that other pages or groups have are theirs. Raises ConfigurationError for an unknown part or layer.
        """
        kept = self.formats[component].part(part)
        return self._strided(component, layer_id, kept, torch_dtype(kept), kept.shape, ITEM_BYTES[kept.dtype])

    def words(self, component: str, layer_id: int, part: str) -> torch.Tensor:
        """The same as [block, slot, word], integers of `Part.word_bytes` up to the items of a block's alignment."""
        kept = self.formats[component].part(part)
        return self._strided(component, layer_id, kept, word_dtype(kept), (kept.row_bytes // kept.word_bytes,), kept.word_bytes)

    def _strided(
        self, component: str, layer_id: int, part: Part, dtype: torch.dtype, shape: tuple[int, ...], item_bytes: int
    ) -> torch.Tensor:
        page_format, budget = self.formats[component], self.layout.budget
        page_format.layer_index(layer_id)  # raises for one that is not kept
        place = self.layout.places[component, layer_id, part.name]
        flat = self.memory.view(-1).view(dtype)
        sizes = (budget.block_count, page_format.slots_per_page, *shape)
        inner = [prod(shape[i + 1 :]) for i in range(len(shape))]
        strides = (budget.block_bytes // item_bytes, prod(shape), *inner)
        return flat.as_strided(sizes, strides, place.offset_bytes // item_bytes)

    def blocks(self, component: str, layer_id: int, part: str, pages: NDArray[np.int64]) -> torch.Tensor:
        """The blocks of some pages that hold a layer and part, int64 [page]: what a kernel's table holds for them.

        Raises ConfigurationError for an arena that serves no cache.
        """
        column = self.part_group(component, layer_id, part)
        return torch.from_numpy(self.group_blocks(component, column, pages)).to(self.memory.device)

    def group_blocks(self, component: str, group: int, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same of a layer group, as an array of its own."""
        self.tables.check_assigned()
        blocks: NDArray[np.int64] = self.table(component)[pages, group].astype(np.int64)
        return blocks

    def read(self, component: str, layer_id: int, part: str, pages: NDArray[np.int64]) -> torch.Tensor:
        """A copy of what some pages hold of a layer and part, [page, slot, *shape]."""
        return self.view(component, layer_id, part)[self.blocks(component, layer_id, part, pages)]

    def write(self, component: str, layer_id: int, part: str, pages: NDArray[np.int64], values: torch.Tensor) -> None:
        """Write a layer and part of some pages, each named once; `values` are [page, slot, *shape]."""
        self.view(component, layer_id, part)[self.blocks(component, layer_id, part, pages)] = values


class _Run(NamedTuple):
    """Layers of one group, and what copies the parts that have just these there.

    Attributes:
        layers: their indices in the format.
    """

    group: int
    layers: range
    copier: PageCopier


class ArenaPair:
    """Moves pages of one component between an arena and its host pool; a PageMover.

    One copy for each layer group and the parts that have the same layers of it, by what copies between pools.

    Args:
        host: of the component's format; pinned if the arena is on a GPU.

    Raises ConfigurationError for pools of different formats, and for host memory that the arena's device cannot address.
    """

    def __init__(self, arena: BlockArena, component: str, host: HostPool | StagedPages) -> None:
        if arena.formats[component] != host.format:
            raise ConfigurationError(f"{component}: the arena and the host pool have different formats")
        self._arena = arena
        self._component = component
        self._host = host
        self._page_count = len(arena.table(component))
        host_memory = device_view(host.memory, arena.memory.device)
        by_cores = CoreCopy() if host_memory.device.type == "cpu" else None
        parts: dict[tuple[int, range], list[Part]] = {}
        for part in host.format.parts:
            for group, layers in self._groups(part):
                parts.setdefault((group, layers), []).append(part)
        self._runs: list[_Run] = []
        for (group, layers), together in parts.items():
            kept = self.layer_ids[layers.start : layers.stop]
            in_arena = [[arena.words(component, layer_id, part.name)[None] for layer_id in kept] for part in together]
            on_host = [host.words(part.name, host_memory)[layers.start : layers.stop] for part in together]
            self._runs.append(_Run(group, layers, page_copier(in_arena, on_host, host.memory, by_cores)))

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model layers whose state these pages hold, ascending."""
        return self._host.format.layer_ids

    def backup(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Copy device pages `source` to host pages `target`, all layers. Raises PageError as `PagePair`."""
        host_pages = self._host.page_count
        PageMoves(self._component, source, target, source_pages=self._page_count, target_pages=host_pages)
        for run in self._runs:
            blocks = self._arena.group_blocks(self._component, run.group, source)
            run.copier.back_up(
                PageMoves(self._component, blocks, target, source_pages=self._block_count, target_pages=host_pages)
            )

    def load_layers(self, layer_ids: tuple[int, ...], source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Copy some model layers of host pages `source` to device pages `target`. Raises as `PagePair`."""
        some = self._host.format.layer_slice(layer_ids)
        host_pages = self._host.page_count
        PageMoves(self._component, source, target, source_pages=host_pages, target_pages=self._page_count)
        for run in self._runs:
            begin, end = max(some.start, run.layers.start), min(some.stop, run.layers.stop)
            if begin < end:
                blocks = self._arena.group_blocks(self._component, run.group, target)
                moves = PageMoves(self._component, source, blocks, source_pages=host_pages, target_pages=self._block_count)
                run.copier.load(moves, slice(begin - run.layers.start, end - run.layers.start))

    def _groups(self, part: Part) -> Iterator[tuple[int, range]]:
        """The layer groups of a part, and the layers in each, by their indices in the format: neighbours."""
        by_group = groupby(
            range(len(self.layer_ids)),
            lambda index: self._arena.part_group(self._component, self.layer_ids[index], part.name),
        )
        for group, indices in by_group:
            found = list(indices)
            yield group, range(found[0], found[-1] + 1)

    @property
    def _block_count(self) -> int:
        return self._arena.layout.budget.block_count
