"""Copying pages with torch and numpy alone, where nothing is compiled, by the size of the pieces between breaks in the ids.

- From PIECE_BYTES on, runs of pages are cut into `copy_pieces`, which torch copies without starting threads of its own, and
  each core takes its share in one `_foreach_copy_`: it loops in C++ and lets the interpreter lock go once.
- Below, each core gathers and scatters with numpy, a layer, part and staging buffer at a time.

Two things that are as fast on an idle machine were rejected because others work on it too. A call a page waits, beside a busy
Python thread such as a scheduler, up to a switch interval each time to get the interpreter lock back: twenty times slower.
Torch's own threads meet after every page, and each time wait for a core that another process has: fifty times slower.
Also rejected: numpy for large pieces (half as fast where rows are apart), and `np.take` into consecutive targets, which first
makes the whole pool contiguous if its pages are strided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from unified_tree.controllers.pools.copy_pieces import pieces

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_moves import PageMoves

PIECE_BYTES = 32 << 10
"""From here on a copy of its own costs less than a gather and a scatter."""
STAGING_BYTES = 8 << 20
"""Of the buffer between a gather and its scatter."""


def piece_shares(into: list[torch.Tensor], out_of: list[torch.Tensor], moves: PageMoves, shares: int) -> Callable[[int], None]:
    """What copies one of `shares` shares, by its number. Arguments as for `row_shares`.

    Cost: two views a piece; a share O(bytes of it), and a call a layer, part and staging buffer of small pieces.
    """
    runs = moves.runs()
    targets: list[torch.Tensor] = []
    sources: list[torch.Tensor] = []
    small: list[Callable[[], None]] = []
    for written, read in zip(into, out_of, strict=True):
        if written[:, 0].nbytes * len(moves) >= PIECE_BYTES * len(runs):
            written_pieces, read_pieces = pieces(written, read, runs)
            targets += written_pieces
            sources += read_pieces
        else:
            small += _gathers(written, read, moves)

    def copy(share: int) -> None:
        if targets[share::shares]:
            torch._foreach_copy_(targets[share::shares], sources[share::shares])  # pyright: ignore[reportPrivateImportUsage]
        for gather in small[share::shares]:
            gather()

    return copy


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
