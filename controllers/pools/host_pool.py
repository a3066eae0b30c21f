"""The pages of one component in host memory: one allocation, in one of three layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from unified_tree.controllers.pools.cpu_memory import check_can_pin, cpu_memory, pin_while_used
from unified_tree.controllers.pools.host_layout import TRAILER_BYTES, HostLayout, place
from unified_tree.controllers.pools.host_memory import RESERVE_BYTES, check_host_memory
from unified_tree.controllers.pools.words import torch_dtype, word_dtype
from unified_tree.declare.page_format import PageFormat
from unified_tree.inputs.arguments import integer
from unified_tree.terms.errors import ConfigurationError, PageError

if TYPE_CHECKING:
    import torch

    from unified_tree.controllers.pools.host_layout import PartPlace
    from unified_tree.declare.page_format import Part


class HostPool:
    """Host pages of one component. Memory that is not pinned is not touched before it is written; it is never cleared.

    Args:
        page_format: what a page holds.
        page_count: pages in the pool.
        layout: the order of the dimensions.
        pin: pin the memory, so that a GPU reads and writes it directly; needs CUDA.
        trailer_bytes: room after each page of a page-contiguous layout; none in a layer-first one.
        reserve_bytes: host memory that must remain when the pool is full.

    Raises ConfigurationError, before anything is allocated, if there is too little memory or `pin` is not possible. Use
    `host_pools` to create several pools: memory that another pool has not touched yet looks free.
    """

    def __init__(
        self,
        page_format: PageFormat,
        page_count: int,
        layout: HostLayout,
        pin: bool = False,
        trailer_bytes: int = TRAILER_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self.format = page_format
        self.page_count = integer(page_count, f"{page_format.component}: page_count", ConfigurationError, minimum=1)
        self.layout = HostLayout(layout)
        self.trailer_bytes = trailer_bytes
        self._placement = place(page_format, self.page_count, self.layout, trailer_bytes)
        check_host_memory(self._placement.size_bytes, reserve_bytes, component=page_format.component)
        if pin:
            check_can_pin(page_format.component)
        self.memory = cpu_memory(self._placement.size_bytes)
        self._bytes = self.memory.numpy().data
        if pin:
            pin_while_used(self, self.memory)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole pool, trailers included."""
        return self._placement.size_bytes

    @property
    def page_stride_bytes(self) -> int:
        """From one page's memory to the next. Raises ConfigurationError for a layer-first pool."""
        self._check_page_contiguous()
        return self._placement.page_stride_bytes

    def tensor(self, part: str) -> torch.Tensor:
        """All rows of a part, a strided view in the order of the layout.

        [layer, page, slot, *shape] layer first, [page, slot, layer, *shape] page first, [page, layer, slot, *shape] page
        first direct. Raises ConfigurationError for a part that is not kept.
        """
        kept = self.format.part(part)
        rows = part_rows(self.memory.view(torch_dtype(kept)), self.format, self.page_count, kept, self._placement.parts[part])
        shaped = rows.view(*rows.shape[:-1], *kept.shape)
        match self.layout:
            case HostLayout.LAYER_FIRST:
                return shaped
            case HostLayout.PAGE_FIRST:
                return shaped.movedim(0, 2)
            case HostLayout.PAGE_FIRST_DIRECT:
                return shaped.movedim(0, 1)

    def words(self, part: str, memory: torch.Tensor | None = None) -> torch.Tensor:
        """[layer, page, slot, word], whatever the layout: all rows of a part as integers of `Part.word_bytes`.

        Args:
            part: its name.
            memory: other uint8 tensor over the pool's bytes, such as a GPU's view of them; None for the pool's own.
        """
        kept = self.format.part(part)
        own = self.memory if memory is None else memory
        return part_rows(own.view(word_dtype(kept)), self.format, self.page_count, kept, self._placement.parts[part])

    @property
    def buffer(self) -> memoryview:
        """All of the pool's bytes, writable: what a storage engine registers for zero copy."""
        return self._bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of a page without its trailer."""
        return self.format.page_bytes

    def page_memory(self, page: int) -> memoryview:
        """The bytes of one page and, behind them, its trailer: writable, `format.page_bytes + trailer_bytes` long.

        Raises ConfigurationError for a layer-first pool, PageError for a page it does not have. Cost: O(1), no copy.
        """
        self._check_page_contiguous()
        if not 0 <= page < self.page_count:
            raise PageError(f"{self.format.component}: host page {page!r} is not one of 0 … {self.page_count - 1}")
        start = page * self._placement.page_stride_bytes
        return self._bytes[start : start + self.format.page_bytes + self.trailer_bytes]

    def _check_page_contiguous(self) -> None:
        if not self.layout.is_page_contiguous:
            raise ConfigurationError(
                f"{self.format.component}: this layout has no contiguous pages; use page_first or page_first_direct"
            )


def part_rows(items: torch.Tensor, page_format: PageFormat, page_count: int, part: Part, where: PartPlace) -> torch.Tensor:
    """[layer, page, slot, item] of one part, `items` being all memory of some pages as items of some size. A view."""
    size = items.element_size()
    strides = (where.layer_stride_bytes, where.page_stride_bytes, where.slot_stride_bytes)
    return items.as_strided(
        (len(page_format.layer_ids), page_count, page_format.slots_per_page, part.row_bytes // size),
        (*(stride // size for stride in strides), 1),
        where.offset_bytes // size,
    )


def host_pools(
    formats: Mapping[str, PageFormat],
    page_counts: Mapping[str, int],
    *,
    layout: HostLayout,
    pin: bool = False,
    trailer_bytes: int = TRAILER_BYTES,
    reserve_bytes: int = RESERVE_BYTES,
    remedy: str = "take fewer pages",
) -> dict[str, HostPool]:
    """A host pool a component; the memory for all of them together is checked before any is allocated.

    `remedy` says in the message what to do if there is too little.

    Raises ConfigurationError as HostPool does, and for a format without a page count or the other way round.
    """
    if formats.keys() != page_counts.keys():
        raise ConfigurationError(f"host_pools: formats of {sorted(formats)} but page counts of {sorted(page_counts)}")
    for name, page_count in page_counts.items():
        integer(page_count, f"{name}: page_count", ConfigurationError, minimum=1)
    total = sum(place(formats[name], page_counts[name], layout, trailer_bytes).size_bytes for name in formats)
    check_host_memory(total, reserve_bytes, component=", ".join(formats), remedy=remedy)
    return {
        name: HostPool(page_format, page_counts[name], layout, pin, trailer_bytes, reserve_bytes)
        for name, page_format in formats.items()
    }
