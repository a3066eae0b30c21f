"""Pairs of views to copy between, each small enough that torch copies it without threads of its own.

Making a view costs about a microsecond, as much as copying 10 KiB, so there should be few: they are made of the widest words
there are, 16 bytes where rows allow it, since torch counts words. Where the slots of a page lie side by side in both pools, a
piece is a stack of blocks. Where they do not (a page-first pool has a slot's layers side by side instead), it takes about as
many layers as slots, so that both pools are walked in stretches of some ten kilobytes; one layer of all slots would read
or write a row here and a row a whole token further on.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import torch

GRAIN_WORDS = 32768
"""Elements from which on torch copies on several threads (`at::internal::GRAIN_SIZE`)."""
WIDEST = torch.complex128
"""The widest that torch has; a copy of it keeps all bits."""

Runs = Sequence[tuple[int, int, int]]
Pieces = list[torch.Tensor]


def pieces(into: torch.Tensor, out_of: torch.Tensor, runs: Runs) -> tuple[Pieces, Pieces]:
    """Targets and sources, in the same order; together they are all words of the runs, once each.

    Args:
        into, out_of: [layer, page, slot, word], of equal layers, slots and words.
        runs: (first source, first target, page count), at least one.

    Cost: a view a piece on both sides, and two a run.
    """
    if _can_widen(into) and _can_widen(out_of):
        into, out_of = into.view(WIDEST), out_of.view(WIDEST)
    sources, targets, counts = zip(*runs, strict=True)
    tile = _tile(into, out_of, sum(counts) // len(counts))
    return _cut(_views(into, targets, counts), tile), _cut(_views(out_of, sources, counts), tile)


def _can_widen(words: torch.Tensor) -> bool:
    if words.dtype is not torch.int64:
        return False
    return not (words.shape[-1] % 2 or words.storage_offset() % 2 or any(stride % 2 for stride in words.stride()[:-1]))


def _tile(into: torch.Tensor, out_of: torch.Tensor, run_pages: int) -> tuple[int, int, int, int]:
    """The most layers, pages, slots and words of a piece, for runs of `run_pages` on average."""
    layers, _, slots, words = into.shape
    word_count = min(words, GRAIN_WORDS - 1)
    rows = (GRAIN_WORDS - 1) // word_count
    if slots == 1 or into.stride(2) == out_of.stride(2) == words:
        slot_count = min(slots, rows)
        page_count = min(run_pages, rows // slot_count)
        return min(layers, rows // (slot_count * page_count)), page_count, slot_count, word_count
    layer_count = min(layers, max(isqrt(rows), rows // slots))
    slot_count = min(slots, rows // layer_count)
    return layer_count, min(run_pages, rows // (layer_count * slot_count)), slot_count, word_count


def _views(pages: torch.Tensor, firsts: Sequence[int], counts: Sequence[int]) -> Pieces:
    """Views of some stretches of dimension 1, in the order given.

    One call splits the tensor at all their ends, which takes a tenth of a call a stretch; stretches that overlap need that.
    """
    order = sorted(range(len(firsts)), key=firsts.__getitem__)
    sizes: list[int] = []
    end = 0
    for i in order:
        if firsts[i] < end:
            return [pages[:, first : first + count] for first, count in zip(firsts, counts, strict=True)]
        sizes += (firsts[i] - end, counts[i])
        end = firsts[i] + counts[i]
    parts = pages.split_with_sizes([*sizes, pages.shape[1] - end], 1)
    views: Pieces = [pages] * len(order)
    for place, i in enumerate(order):
        views[i] = parts[2 * place + 1]
    return views


def _cut(views: Pieces, tile: Sequence[int]) -> Pieces:
    """All views in pieces of at most `tile`, the same for any two lists of the same shapes."""
    for dimension in (1, 2, 0, 3):
        if any(view.shape[dimension] > tile[dimension] for view in views):
            views = [piece for view in views for piece in view.unsafe_split(tile[dimension], dimension)]
    return views
