"""Copying pages on a CPU: on a few cores that meet once a call, by the size of the pieces between breaks in the page ids.

- From PIECE_BYTES on, runs of pages are cut into `copy_pieces`, which torch copies without starting threads of its own, and
  each core takes its share in one `_foreach_copy_`: it loops in C++ and lets the interpreter lock go once.
- Below, each core gathers and scatters with numpy, a layer, part and staging buffer at a time.

Cost: O(bytes + n log n), and two views a piece, or two calls a layer, part and staging buffer.

Two things that are as fast on an idle machine were rejected because others work on it too. A call a page waits, beside a busy
Python thread such as a scheduler, up to a switch interval each time to get the interpreter lock back: twenty times slower.
Torch's own threads meet after every page, and each time wait for a core that another process has: fifty times slower.
Also rejected: numpy for large pieces (half as fast where rows are apart), and `np.take` into consecutive targets, which first
makes the whole pool contiguous if its pages are strided.
`python -m benches.transfers` measures what was kept.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import torch

from unified_tree.controllers.pools.copy_pieces import pieces
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_moves import PageMoves

PIECE_BYTES = 32 << 10
"""From here on a copy of its own costs less than a gather and a scatter."""
STAGING_BYTES = 8 << 20
"""Of the buffer between a gather and its scatter."""
SHARE_BYTES = 4 << 20
"""A core is worth waking for so much; it takes about a third of a millisecond to copy."""
MOST_CORES = 4
"""By default: a few cores take all the bandwidth of the memory."""


class RunCopy:
    """Copies pages of CPU tensors.

    Args:
        cores: threads that copy, the caller's among them; None for as many as torch uses, but at most MOST_CORES. They
            start when first needed and end with this object.

    Raises ConfigurationError for a number of cores that is not positive.
    """

    def __init__(self, cores: int | None = None) -> None:
        self._cores = min(MOST_CORES, torch.get_num_threads()) if cores is None else cores
        if type(self._cores) is not int or self._cores < 1:
            raise ConfigurationError(f"cores must be a positive integer, not {cores!r}")
        self._others = ThreadPoolExecutor(max_workers=max(1, self._cores - 1), thread_name_prefix="page-copy")

    def __call__(self, into: list[torch.Tensor], out_of: list[torch.Tensor], moves: PageMoves) -> None:
        """Copy pages of every part; tensors are [layer, page, slot, word], one a part. Returns when all are copied."""
        if not len(moves):
            return
        runs = moves.runs()
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        small: list[Callable[[], None]] = []
        copied_bytes = 0
        for written, read in zip(into, out_of, strict=True):
            part_bytes = written[:, 0].nbytes * len(moves)
            copied_bytes += part_bytes
            if part_bytes >= PIECE_BYTES * len(runs):
                written_pieces, read_pieces = pieces(written, read, runs)
                targets += written_pieces
                sources += read_pieces
            else:
                small += _gathers(written, read, moves)
        cores = max(1, min(self._cores, copied_bytes // SHARE_BYTES))

        def share(core: int) -> None:
            if targets[core::cores]:
                torch._foreach_copy_(targets[core::cores], sources[core::cores])  # pyright: ignore[reportPrivateImportUsage]
            for gather in small[core::cores]:
                gather()

        others = [self._others.submit(share, core) for core in range(1, cores)]
        try:
            share(0)
        finally:
            wait(others)  # nobody writes after this returns, however it does
        for other in others:
            other.result()


def _gathers(into: torch.Tensor, out_of: torch.Tensor, moves: PageMoves) -> list[Callable[[], None]]:
    """Copies of one part, a layer and staging buffer each, to be run on any core."""
    step = max(1, STAGING_BYTES // into[0, 0].nbytes)
    chunks = [slice(begin, min(begin + step, len(moves))) for begin in range(0, len(moves), step)]

    def gather(layer: int, some: slice) -> Callable[[], None]:
        written, read = into[layer].numpy(), out_of[layer].numpy()
        source, target = moves.source[some], moves.target[some]

        def run() -> None:
            written[target] = read[source]

        return run

    return [gather(layer, some) for layer in range(into.shape[0]) for some in chunks]
