"""Copying pages with the C module `row_copy`, where it was compiled: importing this raises ImportError where it was not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.pools.row_copy import copy_rows

if TYPE_CHECKING:
    import torch

    from unified_tree.controllers.pools.page_moves import PageMoves


def row_shares(into: list[torch.Tensor], out_of: list[torch.Tensor], moves: PageMoves, shares: int) -> Callable[[int], None]:
    """What copies one of `shares` equal shares, by its number; it lets the interpreter lock go once.

    Args:
        into, out_of: [layer, page, slot, word] of CPU memory, one a part, of equal layers, slots and words; the words of
            a row lie side by side.
        moves: pages to copy; what holds their ids and the tensors must outlive the copies.

    Cost: O(parts); a share O(bytes of it).
    """
    parts = []
    for written, read in zip(into, out_of, strict=True):
        layers, _, slots, words = written.shape
        word_bytes = written.element_size()
        strides = [word_bytes * stride for stride in (*written.stride()[:3], *read.stride()[:3])]
        parts.append((written.data_ptr(), read.data_ptr(), layers, slots, words * word_bytes, *strides))
    table = np.array(parts, np.int64)

    def copy(share: int) -> None:
        copy_rows(table, moves.target, moves.source, share, shares)

    return copy
