"""Copying pages on a few cores of a CPU, which meet once a call: compiled rows where there are, torch's pieces elsewhere.

`python -m benches.transfers` measures both.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import torch

from unified_tree.errors import ConfigurationError

try:
    from unified_tree.controllers.pools.row_shares import row_shares as default_shares
except ImportError:
    from unified_tree.controllers.pools.piece_shares import piece_shares as default_shares

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_moves import PageMoves

    ShareOut = Callable[[list[torch.Tensor], list[torch.Tensor], PageMoves, int], Callable[[int], None]]

SHARE_BYTES = 4 << 20
"""A core is worth waking for so much; it takes about a third of a millisecond to copy."""
MAX_CORES = 4
"""By default: a few cores take all the bandwidth of the memory."""


class CoreCopy:
    """Copies pages of CPU tensors.

    Args:
        cores: threads that copy, the caller's among them; None for as many as torch uses, but at most MAX_CORES. They
            start when first needed and end with this object.
        share_out: what makes shares of a copy, `row_shares` or `piece_shares`; None for the faster one that is there.

    Raises ConfigurationError for a number of cores that is not positive.
    """

    def __init__(self, cores: int | None = None, share_out: ShareOut | None = None) -> None:
        self._cores = min(MAX_CORES, torch.get_num_threads()) if cores is None else cores
        if type(self._cores) is not int or self._cores < 1:
            raise ConfigurationError(f"cores must be a positive integer, not {cores!r}")
        self._share_out = share_out or default_shares
        self._others = ThreadPoolExecutor(max_workers=max(1, self._cores - 1), thread_name_prefix="page-copy")

    def __call__(self, into: list[torch.Tensor], out_of: list[torch.Tensor], moves: PageMoves) -> None:
        """Copy pages of every part; tensors are [layer, page, slot, word], one a part. Returns when all are copied.

        Cost: O(bytes + n log n), and what `share_out` adds.
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
