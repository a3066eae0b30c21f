"""Where the tensors of a page lie in its blocks, for one size of block that suits all pools of a budget.

A *piece* is what one layer and part of a page holds, the keys of a layer say. No piece is divided: a kernel that runs a layer
reads one block a page of it, wherever the page's other blocks are. The layers of a page whose pieces lie in the same of its
blocks form a *layer group*, and each group has a block table of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from unified_tree.controllers.pools.formats import formats_of
from unified_tree.declare.block_budget import BlockBudget
from unified_tree.declare.page_format import ITEM_BYTES
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unified_tree.components import Composition

ALIGNMENT_BYTES = 16
"""Of a block and of each piece in it; a block is a multiple of every element's size."""


class Piece(NamedTuple):
    """A layer and part of a component's pages.

    Attributes:
        size_bytes: with padding up to the alignment.
    """

    component: str
    layer_id: int
    part: str
    size_bytes: int


class Place(NamedTuple):
    """Where a piece lies: in which of its page's blocks, and from which byte of that on."""

    group: int
    offset_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """The places of all pieces, for blocks of one size.

    Attributes:
        places: by component, layer and part.
        budget: the memory.
        padding: by component with pages of its own, the share of its blocks that holds nothing.
    """

    places: Mapping[tuple[str, int, str], Place]
    budget: BlockBudget
    padding: Mapping[str, float]

    @classmethod
    def of(cls, composition: Composition, device_bytes: int, *, block_bytes: int | None = None) -> BlockLayout:
        """The layout of a model's device pages in `device_bytes`.

        Args:
            block_bytes: of a block; by default what wastes least in the pool that wastes most, and of such sizes the largest.

        Raises ConfigurationError for a block that is smaller than a piece or not aligned, and where no page of some pool fits.

        >>> from unified_tree.components import composition_for
        >>> layout = BlockLayout.of(composition_for("gemma-3-27b"), 1 << 30)
        >>> layout.budget.block_bytes, dict(layout.budget.page_blocks), max(layout.padding.values())
        (1048576, {'full': 5, 'swa': 26}, 0.0)
        """
        pieces = _pieces(composition)
        if block_bytes is None:
            block_bytes = _best_block_bytes(list(pieces.values()))
        least = max(piece.size_bytes for of_pool in pieces.values() for piece in of_pool)
        if block_bytes < least or block_bytes % ALIGNMENT_BYTES:
            raise ConfigurationError(
                f"a block must be a multiple of {ALIGNMENT_BYTES} bytes, and at least the {least} of the largest layer and "
                f"part of a page, not {block_bytes}"
            )
        places: dict[tuple[str, int, str], Place] = {}
        blocks = {}
        for name, of_pool in pieces.items():
            placed = _placed(of_pool, block_bytes)
            blocks[name] = placed[-1].group + 1
            places |= {(p.component, p.layer_id, p.part): place for p, place in zip(of_pool, placed, strict=True)}
        budget = BlockBudget(block_count=device_bytes // block_bytes, page_blocks=blocks, block_bytes=block_bytes)
        page_bytes = composition.pool_page_bytes()
        padding = {name: 1 - page_bytes[name] / (count * block_bytes) for name, count in blocks.items()}
        return cls(places=places, budget=budget, padding=padding)


def _pieces(composition: Composition) -> dict[str, list[Piece]]:
    """The pieces of each pool's pages, sharers included, by layer."""
    every = formats_of(composition)
    found: dict[str, list[Piece]] = {c.name: [] for c in composition.components if c.shares is None}
    for component in composition.components:
        page_format = every[component.name]
        for layer_id in page_format.layer_ids:
            for part in page_format.parts:
                assert ALIGNMENT_BYTES % ITEM_BYTES[part.dtype] == 0
                size_bytes = -(-page_format.block_bytes(part) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                found[component.shares or component.name].append(Piece(component.name, layer_id, part.name, size_bytes))
    return {name: sorted(pieces, key=lambda piece: piece.layer_id) for name, pieces in found.items()}


def _placed(pieces: Sequence[Piece], block_bytes: int) -> list[Place]:
    """One piece behind the other, each in the next block where it no longer fits. Cost: O(pieces)."""
    places, group, offset = [], 0, 0
    for piece in pieces:
        if offset + piece.size_bytes > block_bytes:
            group, offset = group + 1, 0
        places.append(Place(group, offset))
        offset += piece.size_bytes
    return places


def _best_block_bytes(pools: Sequence[Sequence[Piece]]) -> int:
    """Of the sizes that hold the first pieces of some pool the one that wastes least. Cost: O(pieces squared)."""
    least = max(piece.size_bytes for pieces in pools for piece in pieces)
    sizes = set()
    for pieces in pools:
        together = 0
        for piece in pieces:
            together += piece.size_bytes
            sizes.add(together)

    def waste(block_bytes: int) -> float:
        worst = 0.0
        for pieces in pools:
            taken = (_placed(pieces, block_bytes)[-1].group + 1) * block_bytes
            worst = max(worst, taken / sum(piece.size_bytes for piece in pieces))
        return worst

    return min((size for size in sizes if size >= least), key=lambda size: (waste(size), -size))
