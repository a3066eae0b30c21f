"""Copies pages between a GPU and pinned host memory, by a kernel of a few programs.

The GPU addresses host memory directly, so thousands of scattered pages cost a launch a part, whatever the layout. Two programs
have enough under way for most of a PCIe 5 bus, and a model beside them pays little more than beside the GPU's copy engine.
Beside torch's gathers, which fill all multiprocessors with threads that wait, a prefill takes 1.8 times as long and a decode
waits for their end (docs/measured/transfers.md). A bus that is full of writes blocks the GPU's own memory. So backups, which
nobody waits for, have less under way than loads.

Rejected: the copy engine. It needs pieces of a quarter of a MiB, so staging, and a call for each; a page's layer has some KiB.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.pools.device_index import device_index
from unified_tree.controllers.pools.kernel_copy import copy_indexed_pages
from unified_tree.controllers.tensors import torch
from unified_tree.errors import words_of

copy_rows: Any
try:
    from unified_tree.controllers.pools.bus_kernel import copy_rows
except ImportError:  # torch without Triton
    copy_rows = None

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.controllers.pools.page_moves import PageMoves

logger = logging.getLogger(__name__)

PROGRAMS = 2
"""On a multiprocessor each."""
WARPS = 16
"""Of a program."""
BACKUP_TILE_BYTES = 32 << 10
"""That a program has under way to host."""
LOAD_TILE_BYTES = 64 << 10
"""And from there."""
WASTE = 1 / 8
"""The share of a tile's columns that may hold nothing, if narrower tiles do with that."""
MIN_EXPONENT = 4
"""Of the narrowest tile: 16 columns."""
MAX_ROWS = 1 << 30
"""Of one launch: rows are counted in 32 bits."""


class BusCopy:
    """Copies pages in one direction, on the current stream.

    Args:
        tile_bytes: `BACKUP_TILE_BYTES` or `LOAD_TILE_BYTES`.
    """

    def __init__(self, tile_bytes: int) -> None:
        self._tile_bytes = tile_bytes
        self._kernel: Any = copy_rows

    def do_without_kernel(self) -> None:
        """From now on torch gathers and scatters."""
        self._kernel = None

    def __call__(self, into: list[torch.Tensor], out_of: list[torch.Tensor], moves: PageMoves) -> None:
        """Copy pages of every part, as `copy`."""
        device = into[0].device
        self.copy(into, out_of, device_index(moves.target, device), device_index(moves.source, device))

    def copy(
        self, into: Sequence[torch.Tensor], out_of: Sequence[torch.Tensor], target: torch.Tensor, source: torch.Tensor
    ) -> None:
        """Copy pages of every part.

        Waits for nothing. Cost: O(bytes) over the bus, a launch a part. Without Triton torch gathers and scatters.

        Args:
            into, out_of: [layer, page, slot, word] of one device, one a part, of equal layers, slots and words; the words of a
                row lie side by side. One side may be a GPU's view of pinned host memory.
            target, source: page ids of each, int64 [n], there too; no target is named twice.
        """
        if self._kernel is None or not target.is_cuda:
            copy_indexed_pages(into, out_of, target, source)
            return
        with torch.cuda.device(target.device):
            for written, read in zip(into, out_of, strict=True):
                self._launch(written, read, target, source)

    def _launch(self, written: torch.Tensor, read: torch.Tensor, target: torch.Tensor, source: torch.Tensor) -> None:
        written, read = in_order(written, read)
        layers, _, slots, words = written.shape
        tile_words = self._tile_bytes // written.element_size()
        columns = tile_columns(words, tile_words)
        step = max(1, MAX_ROWS // (layers * slots))
        for begin in range(0, max(1, target.numel()), step):
            some = slice(begin, begin + step)
            self._kernel[(PROGRAMS,)](
                written,
                read,
                target[some],
                source[some],
                target[some].numel() * layers * slots,
                layers,
                slots,
                words,
                *written.stride()[:3],
                *read.stride()[:3],
                ROWS=tile_words // columns,
                COLUMNS=columns,
                num_warps=WARPS,
            )


def warm_up(device_words: Sequence[torch.Tensor], host_words: Sequence[torch.Tensor]) -> None:
    """Copy nothing in both directions: the kernel is compiled now, not under the first request. Cost: about a second, once.

    Triton builds with a C compiler and Python's headers. Where it cannot, a warning says so, and torch gathers and scatters.
    """
    nothing = torch.empty(0, dtype=torch.int64, device=device_words[0].device)
    try:
        back_up.copy(host_words, device_words, nothing, nothing)
        load.copy(device_words, host_words, nothing, nothing)
    except Exception as error:  # what it raises depends on what is missing
        logger.warning("Triton cannot build here, so copies will slow down the model beside them: %s", words_of(error))
        back_up.do_without_kernel()
        load.do_without_kernel()


def in_order(written: torch.Tensor, read: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same rows as [layer, page, slot, word], in whose order those of a page lie in host memory; one long row a layer where
    its slots lie side by side on both sides. Views.
    """
    if written.stride(2) == read.stride(2) == written.shape[3]:
        return _joined(written), _joined(read)
    if any(rows.stride(0) < rows.stride(2) for rows in (written, read)):
        return written.transpose(0, 2), read.transpose(0, 2)
    return written, read


def _joined(rows: torch.Tensor) -> torch.Tensor:
    layers, pages, slots, words = rows.shape
    return rows.as_strided((layers, pages, 1, slots * words), (*rows.stride()[:2], slots * words, 1))


def tile_columns(words: int, tile_words: int) -> int:
    """Columns of a tile for rows of so many words, a power of two: as many as waste little, or those that waste least.

    >>> [tile_columns(words, 8192) for words in (16384, 9216, 256, 144, 3)]
    [8192, 2048, 256, 32, 16]
    """
    widths = [1 << exponent for exponent in range(MIN_EXPONENT, tile_words.bit_length())]
    return min(widths, key=lambda columns: (max(WASTE, 1 - words / (-(-words // columns) * columns)), -columns))


back_up, load = BusCopy(BACKUP_TILE_BYTES), BusCopy(LOAD_TILE_BYTES)
