"""The page tables of one component for many leases, a row each, as two arrays; every operation takes all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unified_tree.controllers.cache.page_tables import FIRST_HELD, PRIVATE_FROM, SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.pages.tier_pages import TierPages


class NewPages(NamedTuple):
    """Pages that were added to tables, int64 arrays of one length; rows ascending, in a row indices ascending.

    Attributes:
        rows: which table's row.
        indices: at which page index of it.
        ids: the page ids.
    """

    rows: NDArray[np.int64]
    indices: NDArray[np.int64]
    ids: NDArray[np.int64]


class Cells(NamedTuple):
    """Places in the rows of a table, a row and a page index each, in the order of `NewPages`."""

    rows: NDArray[np.int64]
    pages: NDArray[np.int64]


class TableRows:
    """Rows of page ids, each with the three numbers of a `PageTable`, which reads and writes its row through views.

    Args:
        row_count: how many rows there are.
        page_count: pages a row. Memory is used as far as rows have been written.

    Attributes:
        ids: page ids, int64 [row, page]; of a row only those below its size mean anything.
    """

    def __init__(self, row_count: int, page_count: int) -> None:
        self.ids: NDArray[np.int64] = np.zeros((row_count, page_count), np.int64)
        self._flat = self.ids.reshape(-1)
        self._offsets = np.arange(row_count, dtype=np.int64) * page_count
        self._numbers = np.zeros((3, row_count), np.int64)
        self._first_held, self._private_from, self._sizes = (self._numbers[i] for i in (FIRST_HELD, PRIVATE_FROM, SIZE))

    def row(self, index: int) -> tuple[NDArray[np.int64], memoryview]:
        """What `PageTable.move_to` takes."""
        return self.ids[index], self._numbers[:, index].data

    def clear(self, index: int) -> None:
        """A row holds nothing any more."""
        self._numbers[:, index] = 0

    def at(self, rows: NDArray[np.int64], pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids at some places. The arrays are broadcast."""
        return self._flat.take(self._offsets[rows] + pages)

    def missing(self, sizes: NDArray[np.int64]) -> Cells:
        """The places that rows lack to have at least these sizes."""
        rows = (sizes > self._sizes).nonzero()[0]
        return _cells(rows, self._sizes.take(rows), sizes.take(rows))

    def missing_count(self, sizes: NDArray[np.int64]) -> int:
        """How many places `missing` finds. Cost: does not depend on how many."""
        return int(np.maximum(sizes - self._sizes, 0).sum())

    def append(self, cells: Cells, ids: NDArray[np.int64]) -> NewPages:
        """Fill missing places."""
        self._flat[self._offsets.take(cells.rows) + cells.pages] = ids
        self._sizes[cells.rows] = cells.pages + 1  # of a row's places the last comes last
        return NewPages(cells.rows, cells.pages, ids)

    def take_back(self, cells: Cells) -> None:
        """Undo an `append`, whether it was made or not."""
        self._sizes[cells.rows[::-1]] = cells.pages[::-1]  # of a row's places the first comes last

    def free_fronts(self, first_kept: NDArray[np.int64], name: str, device: TierPages) -> None:
        """Release the indices of each row below one, and free the private pages among them."""
        first_kept = np.minimum(first_kept, self._sizes)
        rows = (first_kept > self._first_held).nonzero()[0]
        if not rows.size:
            return
        last = first_kept.take(rows)
        cells = _cells(rows, self._first_held.take(rows), last)
        at = self._offsets.take(cells.rows) + cells.pages
        private: NDArray[np.int64] = self._flat.take(at[cells.pages >= self._private_from.take(cells.rows)])
        private_from = np.maximum(self._private_from.take(rows), last)
        try:
            device.free(name, private)
            self._drop_fronts(at, rows, last, private_from)
        except BaseException:
            if not private.size or not device.has_allocated(name, int(private[0])):
                self._drop_fronts(at, rows, last, private_from)
            raise

    def _drop_fronts(
        self, at: NDArray[np.int64], rows: NDArray[np.int64], last: NDArray[np.int64], private_from: NDArray[np.int64]
    ) -> None:
        """Idempotent."""
        self._flat[at] = -1
        self._first_held[rows] = last
        self._private_from[rows] = private_from

    def free_backs(self, sizes: NDArray[np.int64], name: str, device: TierPages) -> None:
        """Release the indices of each row from one on, all private, and free their pages."""
        sizes = np.maximum(sizes, self._first_held)
        rows = (sizes < self._sizes).nonzero()[0]
        if not rows.size:
            return
        cells = _cells(rows, sizes.take(rows), self._sizes.take(rows))
        at = self._offsets.take(cells.rows) + cells.pages
        dropped: NDArray[np.int64] = self._flat.take(at)
        try:
            device.free(name, dropped)
            self._drop_backs(at, rows, sizes.take(rows))
        except BaseException:
            if not device.has_allocated(name, int(dropped[0])):
                self._drop_backs(at, rows, sizes.take(rows))
            raise

    def _drop_backs(self, at: NDArray[np.int64], rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Idempotent."""
        self._flat[at] = -1
        self._sizes[rows] = sizes


def _cells(rows: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]) -> Cells:
    """The places [first, last) of each row, none of which is empty."""
    counts = last - first
    total = int(counts.sum())
    if total == rows.size:  # one each, as in most steps
        return Cells(rows, first)
    ends = counts.cumsum()
    return Cells(rows.repeat(counts), np.arange(total) + (last - ends).repeat(counts))
