"""Host memory in equal blocks, for a host tier whose pools share a budget.

A page's bytes lie one behind the other, in the order of `HostLayout.PAGE_FIRST_DIRECT`, cut into blocks that lie anywhere. No
kernel reads them there, so a block may end within a layer, and its size can suit pages of any sizes. Rejected: the device's
`BlockLayout`, which divides no layer and part; where a layer's state is larger than a page of keys, most of that page's block
would be padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.pages.block_tables import BlockTables
from unified_tree.controllers.pools.cpu_memory import check_can_pin, cpu_memory, pin_while_used
from unified_tree.controllers.pools.formats import formats_of
from unified_tree.controllers.pools.host_layout import ALIGNMENT_BYTES, TRAILER_BYTES, HostLayout, round_up
from unified_tree.controllers.pools.host_memory import RESERVE_BYTES, check_host_memory
from unified_tree.declare.block_budget import BlockBudget
from unified_tree.terms.errors import ConfigurationError, PageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from unified_tree.components import Composition

PADDING = 1 / 64
"""The share of a page's blocks that may hold nothing, if a block of any size does with that."""
MOST_BLOCKS = 64
"""Into how many blocks a page is divided at most, to find a size that suits the others as well."""


class HostArena:
    """The host memory of a composition whose pools share a budget; components that share device pages have pages of their own.

    Memory that is not pinned is not touched before it is written; it is never cleared.

    Args:
        composition: whose state it holds.
        size_bytes: of the memory, less what is left over of a block.
        block_bytes: of a block, a multiple of 64; None for the largest of which no page wastes more than a 64th.
        pin: pin the memory, so that a GPU reads and writes it directly; needs CUDA.
        reserve_bytes: host memory that must remain when the arena is full.

    Attributes:
        budget: the memory, for `HostTier(budget=...)`.
        formats: by component.
        tables: which blocks each page has, for `HostTier(tables=...)`.
        memory: uint8 [block, byte].

    Raises ConfigurationError, before anything is allocated, if there is too little memory, if no page of some component fits,
    and for a block that is not aligned.
    """

    def __init__(
        self,
        composition: Composition,
        size_bytes: int,
        *,
        block_bytes: int | None = None,
        pin: bool = False,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self.formats = formats_of(composition)
        sizes = {name: page_format.page_bytes for name, page_format in self.formats.items()}
        block_bytes = suitable_block_bytes(sizes.values()) if block_bytes is None else block_bytes
        self.budget = BlockBudget.of(sizes, size_bytes, block_bytes=block_bytes)
        if self.budget.block_bytes % ALIGNMENT_BYTES:
            raise ConfigurationError(
                f"a block of host memory must be a multiple of {ALIGNMENT_BYTES} bytes, not {self.budget.block_bytes}"
            )
        name = f"the host blocks of {composition.name}"
        check_host_memory(self.budget.size_bytes, reserve_bytes, component=name, remedy="take fewer bytes")
        if pin:
            check_can_pin(name)
        self.tables = BlockTables(self.budget)
        memory = cpu_memory(self.budget.size_bytes)
        self.memory = memory.view(self.budget.block_count, self.budget.block_bytes)
        if pin:
            pin_while_used(self, memory)

    def blocks(self, component: str, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The blocks of some pages, [page, block of the page]; those of free pages mean nothing. A copy.

        Raises ConfigurationError for an arena that serves no cache.
        """
        self.tables.check_assigned()
        return self.tables.tables[component][pages].astype(np.int64)

    def pages(self) -> dict[str, ArenaPages]:
        """The pages of each component for a store: the `memory` of `StorageTier.open`."""
        return {name: ArenaPages(self, name) for name in self.formats}


class ArenaPages:
    """The host pages of one component, for a store, which takes and gives pages in one piece: copies of them.

    A store finds here what host pools of `HostLayout.PAGE_FIRST_DIRECT` put there, and the other way round. Threads may call
    this for pages that are allocated, each for others.

    Args:
        arena: where the pages lie.
        component: whose they are.
    """

    def __init__(self, arena: HostArena, component: str) -> None:
        self._table = arena.tables.tables[component]
        self._memory = arena.memory.numpy()
        self._component = component
        self.payload_bytes = arena.formats[component].page_bytes

    @property
    def layout(self) -> HostLayout:
        """Of the pages."""
        return HostLayout.PAGE_FIRST_DIRECT

    def page_memory(self, page: int) -> memoryview:
        """A copy of the bytes of one page, with room for its trailer: writable. Raises PageError for a page that it does not
        have. Cost: O(bytes).
        """
        copied = np.empty(self.payload_bytes + TRAILER_BYTES, np.uint8)
        copied[: self.payload_bytes] = self._memory[self._row(page)].reshape(-1)[: self.payload_bytes]
        return copied.data

    def write_page(self, page: int, memory: memoryview) -> None:
        """Make these the bytes of one page; its trailer is left out. Raises as `page_memory`. Cost: O(bytes)."""
        row, block_bytes = self._row(page), self._memory.shape[1]
        content = np.frombuffer(memory, np.uint8)[: self.payload_bytes]
        whole = self.payload_bytes // block_bytes
        self._memory[row[:whole]] = content[: whole * block_bytes].reshape(whole, block_bytes)
        rest = content[whole * block_bytes :]
        self._memory[row[whole:], : rest.size] = rest

    def _row(self, page: int) -> NDArray[np.int32]:
        if not 0 <= page < len(self._table):
            raise PageError(f"{self._component}: host page {page!r} is not one of 0 … {len(self._table) - 1}")
        row: NDArray[np.int32] = self._table[page]
        return row


def suitable_block_bytes(page_bytes: Collection[int]) -> int:
    """The largest block of which no page wastes more than PADDING; where there is none, the block that wastes least in the
    page that wastes most.

    >>> suitable_block_bytes([5 << 20, 26 << 20])
    1310720
    >>> suitable_block_bytes([3 << 20, 26 << 20])
    1048576
    """
    sizes = {round_up(-(-size // count)) for size in page_bytes for count in range(1, MOST_BLOCKS + 1)}

    def waste(block_bytes: int) -> float:
        return max(1 - size / (-(-size // block_bytes) * block_bytes) for size in page_bytes)

    return min(sizes, key=lambda size: (max(waste(size), PADDING), -size))
