"""The transfers of one submission and direction, merged, as the steps that move them.

Copies of one component are in one list, whichever transfers they belong to, and are divided into chunks. The chunk size bounds
how long a cancel or an overtaking load waits. Steps are generated on demand, so that the cost of submitting does not grow with
the pages.

A load's layers come in groups of 1, 1, 2, 4, 8, … as far as a chunk holds that many of all its pages. So the first layer lands
as early as possible, and a short load does not cost a call per layer, which would take longer than the copies: a layer waits
for at most as many later layers as have landed before it. Large loads go layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from unified_tree.controllers.transfer_engines.step import Piece, Step
from unified_tree.controllers.transfer_engines.transfer import Transfer
from unified_tree.nodes.effect import EffectKind

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.transfer_engines.progress import Progress


class Batch:
    """Merged copies.

    Args:
        kind: of all transfers in it.
        movers: by component.
        chunk_blocks: blocks a step by component, a block being one layer of one page; a step is one page at least.
        after: passed on in every step.
    """

    __slots__ = ("_after", "_chunk_blocks", "_copies", "_kind", "_movers")

    def __init__(
        self, kind: EffectKind, movers: Mapping[str, PageMover], chunk_blocks: Mapping[str, int], after: object
    ) -> None:
        self._kind = kind
        self._movers = movers
        self._chunk_blocks = chunk_blocks
        self._after = after
        self._copies: dict[str, list[Piece]] = {}

    def add(self, progress: Progress, transfer: Transfer) -> None:
        """Merge a transfer in."""
        for copy in transfer.copies:
            if copy.source.size:
                self._copies.setdefault(copy.component, []).append(Piece(progress, copy.source, copy.target, True))

    def steps(self) -> Iterator[Step]:
        """All steps, in order. Cost: O(transfers) a layer, O(transfers in it) a step."""
        if self._kind is EffectKind.BACKUP:
            yield from self._stage(dict.fromkeys(self._copies), None)
            return
        layer_ids = sorted({layer_id for component in self._copies for layer_id in self._movers[component].layer_ids})
        pages = {name: sum(piece.source.size for piece in pieces) for name, pieces in self._copies.items()}
        max_layers = min((self._chunk_blocks[name] // count for name, count in pages.items()), default=1)
        for group in _groups(layer_ids, max(1, max_layers)):
            kept = {name: tuple(i for i in self._movers[name].layer_ids if group[0] <= i <= group[-1]) for name in self._copies}
            yield from self._stage({name: layers for name, layers in kept.items() if layers}, group[-1])

    def _stage(self, components: Mapping[str, tuple[int, ...] | None], through: int | None) -> Iterator[Step]:
        """Some layers of a load, or all of a backup. A transfer's stages land with the last piece of its last component."""
        living = {name: [piece for piece in self._copies[name] if piece.progress.error is None] for name in components}
        last = {piece.progress: name for name, pieces in living.items() for piece in pieces}
        for component, layer_ids in components.items():
            mover = self._movers[component]
            layer_count = len(mover.layer_ids if layer_ids is None else layer_ids)
            for pieces in _cut(living[component], max(1, self._chunk_blocks[component] // layer_count)):
                lands = [piece.progress for piece in pieces if piece.is_last and last[piece.progress] == component]
                yield Step(component, mover, layer_ids, through, pieces, lands, self._after)


def _groups(layer_ids: list[int], max_layers: int) -> Iterator[list[int]]:
    """All layers, in groups of at most `most`, none larger than all before it together."""
    begin = 0
    while begin < len(layer_ids):
        end = begin + min(max(1, begin), max_layers)
        yield layer_ids[begin:end]
        begin = end


def _cut(pieces: Iterable[Piece], page_count: int) -> Iterator[list[Piece]]:
    """Lists of pieces of at most `page_count` pages together."""
    chunk: list[Piece] = []
    room = page_count
    for piece in pieces:
        size, begin = piece.source.size, 0
        while begin < size:
            end = min(begin + room, size)
            chunk.append(Piece(piece.progress, piece.source[begin:end], piece.target[begin:end], end == size))
            room -= end - begin
            begin = end
            if room == 0:
                yield chunk
                chunk, room = [], page_count
    if chunk:
        yield chunk
