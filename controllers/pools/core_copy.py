"""Copies pages on a few CPU cores, with one barrier per call.

The C module `row_copy` copies if it was compiled. Otherwise numpy copies, a layer and part at a time, at half to three quarters
of its speed (`python -m benches.transfers`).

Rejected, because the machine is shared: one call per page, which beside a busy Python thread such as a scheduler waits up to a
switch interval each time for the interpreter lock; and torch's own threads, which synchronise after every page and wait for a
core that another process uses. Rejected too: views of all pieces for torch, which cost as much time as they save; and `np.take`
into consecutive targets, which first copies the whole pool if its pages are strided.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.tensors import torch
from unified_tree.inputs.arguments import integer
from unified_tree.terms.errors import ConfigurationError

try:
    from unified_tree.controllers.pools.row_copy import copy_rows
except ImportError:
    copy_rows = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_moves import PageMoves

    ShareOut = Callable[[list[torch.Tensor], list[torch.Tensor], PageMoves, int], Callable[[int], None]]

SHARE_BYTES = 4 << 20
"""A core is worth waking for so much; it takes about a third of a millisecond to copy."""
MAX_CORES = 4
"""By default: a few cores take all the bandwidth of the memory."""
STAGING_BYTES = 8 << 20
"""Of numpy's buffer between a gather and its scatter."""


class CoreCopy:
    """Copies pages of CPU tensors.

    Args:
        cores: threads that copy, the caller's among them; None for as many as torch uses, but at most MAX_CORES. They
            start when first needed and end with this object.
        share_out: divides a copy into shares, `row_shares` or `numpy_shares`; None for the faster one available.

    Raises ConfigurationError for a number of cores that is not positive.
    """

    def __init__(self, cores: int | None = None, share_out: ShareOut | None = None) -> None:
        default = min(MAX_CORES, torch.get_num_threads())
        self._cores = default if cores is None else integer(cores, "cores", ConfigurationError, minimum=1)
        self._share_out = share_out or (numpy_shares if copy_rows is None else row_shares)
        self._others = ThreadPoolExecutor(max_workers=max(1, self._cores - 1), thread_name_prefix="page-copy")

    def __call__(self, into: list[torch.Tensor], out_of: list[torch.Tensor], moves: PageMoves) -> None:
        """Copy pages of every part. Returns when all are copied. Cost: O(bytes).

        Args:
            into, out_of: [layer, page, slot, word] of CPU memory, one a part, of equal layers, slots and words; the words of
                a row lie side by side.
            moves: pages to copy.
        """
        if not len(moves):
            return
        copied_bytes = sum(written[:, 0].nbytes for written in into) * len(moves)
        shares = max(1, min(self._cores, copied_bytes // SHARE_BYTES))
        copy = self._share_out(into, out_of, moves, shares)
        others = [self._others.submit(copy, share) for share in range(1, shares)]
        try:
            copy(0)
        finally:
            wait(others)  # nobody writes after this returns, however it does
        for other in others:
            other.result()


def row_shares(into: list[torch.Tensor], out_of: list[torch.Tensor], moves: PageMoves, shares: int) -> Callable[[int], None]:
    """A function that copies one of `shares` equal shares, by its number, in C; it releases the interpreter lock once.

    The caller keeps the moves and the tensors until all shares are copied. Cost: O(parts); a share O(bytes of it).
    """
    parts = []
    for written, read in zip(into, out_of, strict=True):
        layers, _, slots, words = written.shape
        word_bytes = written.element_size()
        strides = [word_bytes * stride for stride in (*written.stride()[:3], *read.stride()[:3])]
        parts.append((written.data_ptr(), read.data_ptr(), layers, slots, words * word_bytes, *strides))
    table = np.array(parts, np.int64)
    assert copy_rows is not None, "row_copy is not compiled here"
    rows = copy_rows

    def copy(share: int) -> None:
        rows(table, moves.target, moves.source, share, shares)

    return copy


def numpy_shares(into: list[torch.Tensor], out_of: list[torch.Tensor], moves: PageMoves, shares: int) -> Callable[[int], None]:
    """The same by gathers and scatters of numpy. Cost: two views a layer, part and staging buffer; a share O(bytes of it)."""
    gathers = []
    for written, read in zip(into, out_of, strict=True):
        step = max(1, STAGING_BYTES // written[0, 0].nbytes)
        chunks = [slice(begin, begin + step) for begin in range(0, len(moves), step)]
        gathers += [(one.numpy(), other.numpy(), some) for one, other in zip(written, read, strict=True) for some in chunks]

    def copy(share: int) -> None:
        for one, other, some in gathers[share::shares]:
            one[moves.target[some]] = other[moves.source[some]]

    return copy
