"""Layouts of host pages: three orders of the same rows, as offsets and strides. Nothing here needs torch.

`LAYER_FIRST` is the device's own order and copies fastest per layer. The two page-contiguous layouts keep a page in one piece
of memory, which a storage engine reads and writes without copying. Within such a page the parts stand by descending word size,
those of equal word size as declared: so every part is aligned to its words without a byte of padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.declare.page_format import PageFormat

ALIGNMENT_BYTES = 64
"""Of every page of a page-contiguous layout, and of every part of a layer-first pool."""
TRAILER_BYTES = 64
"""Room after each page of a page-contiguous layout, for a checksum and a key tag."""


class HostLayout(Enum):
    """The order of a host pool's dimensions, outermost first."""

    LAYER_FIRST = "layer_first"
    """part, layer, page, slot"""
    PAGE_FIRST = "page_first"
    """page, part, slot, layer"""
    PAGE_FIRST_DIRECT = "page_first_direct"
    """page, part, layer, slot"""

    @property
    def is_page_contiguous(self) -> bool:
        """Whether one page is one piece of memory."""
        return self is not HostLayout.LAYER_FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlace:
    """Where the rows of one part lie: row (layer, page, slot) starts at the offset plus each index times its stride."""

    offset_bytes: int
    layer_stride_bytes: int
    page_stride_bytes: int
    slot_stride_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlacement:
    """The placement of all parts of one host pool.

    Attributes:
        parts: places by part name.
        page_stride_bytes: from one page to the next in a page-contiguous layout, a page and its trailer rounded up;
            bytes a page on average in a layer-first one.
        size_bytes: of the pool's memory.
    """

    parts: dict[str, PartPlace]
    page_stride_bytes: int
    size_bytes: int


def place(page_format: PageFormat, page_count: int, layout: HostLayout, trailer_bytes: int) -> HostPlacement:
    """Lay out a pool. Raises ConfigurationError for a trailer that is no integer of zero or more. Cost: O(parts)."""
    if type(trailer_bytes) is not int or trailer_bytes < 0:
        raise ConfigurationError(f"{page_format.component}: trailer_bytes must be zero or more, not {repr_of(trailer_bytes)}")
    layers, slots = len(page_format.layer_ids), page_format.slots_per_page
    parts: dict[str, PartPlace] = {}
    offset = 0
    if layout is HostLayout.LAYER_FIRST:
        for part in page_format.parts:
            block = page_format.block_bytes(part)
            parts[part.name] = PartPlace(
                offset_bytes=offset,
                layer_stride_bytes=page_count * block,
                page_stride_bytes=block,
                slot_stride_bytes=part.row_bytes,
            )
            offset += round_up(layers * page_count * block)
        return HostPlacement(parts=parts, page_stride_bytes=page_format.page_bytes, size_bytes=offset)
    page_stride = host_page_bytes(page_format.page_bytes, trailer_bytes)
    for part in sorted(page_format.parts, key=lambda part: -part.word_bytes):
        row = part.row_bytes
        slot_inside = layout is HostLayout.PAGE_FIRST_DIRECT
        parts[part.name] = PartPlace(
            offset_bytes=offset,
            layer_stride_bytes=slots * row if slot_inside else row,
            page_stride_bytes=page_stride,
            slot_stride_bytes=row if slot_inside else layers * row,
        )
        offset += layers * page_format.block_bytes(part)
    return HostPlacement(parts=parts, page_stride_bytes=page_stride, size_bytes=page_count * page_stride)


def host_page_bytes(page_bytes: int, trailer_bytes: int = TRAILER_BYTES) -> int:
    """Bytes that one page takes in a page-contiguous layout.

    >>> host_page_bytes(1000)
    1088
    """
    return round_up(page_bytes + trailer_bytes)


def round_up(size_bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
