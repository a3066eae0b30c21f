"""Leases that decode together: their lengths and page tables are rows of arrays, and a step is a few operations on them.

A lease keeps two numbers (tokens that it has pages for, tokens computed) and of each table three and the ids. In a batch these
lie in a row of the batch's arrays, and the lease reads and writes them there through views. So nothing is kept twice, every
call that takes a lease works on, and each page has the one owner that it had. A step of n rows is about ten array operations,
of each component about ten more and one allocation for all rows that enter a new page.

What a single lease does besides, seldom, cannot be done for all at once: it saves a state, or releases the lock on the window
that it resumed from. For each row the batch keeps the next length at which something of that kind is due. One comparison a step
finds these rows, and their leases do it one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unified_tree.controllers.cache.decode_row import DecodeRow
from unified_tree.controllers.cache.lease_state import COMPUTED, DOUBTED_AT, LENGTH
from unified_tree.controllers.cache.page_tables import FIRST_HELD, PRIVATE_FROM, SIZE
from unified_tree.declare.coverage import NO_LENGTH
from unified_tree.inputs.arguments import integer
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import LeaseError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from unified_tree.controllers.cache.lease import Lease, Leases
    from unified_tree.controllers.cache.lease_state import LeaseState
    from unified_tree.controllers.cache.resources import CacheResources
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


GROWS_AT, ADVANCES_AT, CUTS_AT, KEPT_FROM, COMMITTED = range(5)


class DecodeBatch:
    """Leases whose tokens are allocated together; `PrefixCache.batch` makes one.

    A lease enters a free row with `add` and stays there until `remove` or its release. All calls of the cache take it as ever.
    Arrays that are given or returned "by row" have one entry for each of `rows`; an integer stands for all of them.

    Attributes:
        max_leases: how many rows there are.
        max_tokens: the longest lease, in tokens.
        lengths: how many tokens each row has pages for, int64 [max_leases], 0 in a free row; a read-only view.
        tables: by component, the page ids, int64 [max_leases, pages of max_tokens]; read-only views. What lies behind a
            row's length means nothing. -1 before a window. A component in shared pages has its owner's table.

    >>> import numpy as np
    >>> from unified_tree import Component, Key, Path
    >>> from unified_tree.controllers import PrefixCache
    >>> cache = PrefixCache([Component(name="full", coverage=Path())], page_size=2, page_counts={"full": 8})
    >>> batch = cache.batch(max_leases=4, max_tokens=100)
    >>> for tokens in ([1, 2, 3], [4, 5]):
    ...     lease = cache.acquire(Key(tokens))
    ...     cache.allocate(lease, len(tokens))
    ...     row = batch.add(lease)
    >>> batch.advance()
    >>> news = batch.allocate(1)
    >>> batch.lengths.tolist(), news["full"].rows.tolist(), news["full"].indices.tolist()
    ([4, 3, 0, 0], [1], [1])
    >>> batch.slots("full").tolist() == (batch.tables["full"][[0, 1], 1] * 2 + [1, 0]).tolist()
    True
    """

    def __init__(self, resources: CacheResources, leases: Leases, max_leases: int, max_tokens: int) -> None:
        self.max_leases = integer(max_leases, "max_leases", LeaseError, minimum=1)
        self.max_tokens = integer(max_tokens, "max_tokens", LeaseError, minimum=1)
        self._layout = layout = resources.layout
        self._device = resources.device
        self._open_leases = leases
        names = (*layout.paths, *(name for name, _ in layout.windows))
        try:
            self._numbers = np.zeros((3, self.max_leases), np.int64)
            self._plans = np.full((5, self.max_leases), NO_LENGTH, np.int64)
            self._tables = {name: TableRows(self.max_leases, layout.pages(self.max_tokens)) for name in names}
            self._is_taken = np.zeros(self.max_leases, np.int64)
            self._taken: list[DecodeRow | None] = [None] * self.max_leases
            self._leases: list[Lease | None] = [None] * self.max_leases
            self._free = list(range(self.max_leases - 1, -1, -1))
        except (MemoryError, ValueError) as error:  # numpy has two ways to say so
            raise LeaseError(f"there is no memory for {max_leases} leases of {max_tokens} tokens: {error}") from error
        self._lengths, self._computed = self._numbers[LENGTH], self._numbers[COMPUTED]
        self._doubted_at = self._numbers[DOUBTED_AT]
        self._rows = self._find_rows()
        self.lengths = _read_only(self._lengths)
        self.tables: Mapping[str, NDArray[np.int64]] = {name: _read_only(rows.ids) for name, rows in self._tables.items()}

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows that have a lease, ascending; a read-only array that never changes."""
        return self._rows

    @property
    def leases(self) -> list[Lease]:
        """The leases in the order of `rows`: that at index `i` has row `rows[i]`, not `i`."""
        return [lease for lease, row in zip(self._leases, self._taken, strict=True) if lease is not None and row is not None]

    def add(self, lease: Lease) -> int:
        """A lease enters; returns its row, which it keeps until it leaves. It gets pages up to its length first, if it lacks
        any.

        Raises LeaseError for a lease that is loading, arriving or in a batch already, and if there is no room for it;
        OutOfPagesError as `PrefixCache.allocate`. Nothing is changed then. Cost: one copy of its page ids.
        """
        state = self._open_leases.require(lease)
        if state.row is not None:
            raise LeaseError(f"{lease} is in a batch already")
        if state.load is not None or state.failure is not None or state.is_arriving:
            raise LeaseError(f"{lease} has not got what it resumes from; a batch takes it once that is loaded, or has arrived")
        self.require_room(state, state.length)
        if not self._free:
            raise LeaseError(f"all {self.max_leases} rows of the batch are taken")
        state.grow(state.length)
        index = self._free[-1]
        try:
            self._leases[index] = lease
            tables = {name: rows.row(index) for name, rows in self._tables.items()}
            row = DecodeRow(self, self._layout, state, index, self._numbers[:, index].data, tables)
            state.join(row)
            self._taken[index] = row
            self._is_taken[index] = 1
            self._rows = self._find_rows()
            self.plan(row)
            self._free.pop()
            return index
        except BaseException:
            if state.is_in_batch:
                self._take_out(state, index)
            raise

    def remove(self, lease: Lease) -> None:
        """A lease leaves, with all its pages. Raises LeaseError if it is not in this batch.

        Cost: one copy of its page ids.
        """
        state = self._open_leases.require(lease)
        index = state.row
        row = None if index is None or index >= self.max_leases else self._taken[index]
        if row is None or row.lease is not state:
            raise LeaseError(f"{lease} is not in this batch")
        try:
            self._take_out(state, row.index)
        except BaseException:
            self._take_out(state, row.index)
            raise

    def _take_out(self, state: LeaseState, index: int) -> None:
        """Idempotent, and so is each of its steps."""
        state.move_out()
        self.vacate(index)
        state.left()

    def allocate(self, tokens: NDArray[np.integer[Any]] | int = 1) -> dict[str, NewPages]:
        """Grow the leases by so many tokens, all or none, evicting as needed.

        Args:
            tokens: of each lease, or an array of integers by row.

        Returns the new entries of `tables`, for the components that got any. A mirror of the tables on a device needs no more,
        as long as no lease enters or makes a call of its own, and what lies before a window is not looked at.

        Does for each lease what `PrefixCache.allocate` does; a saved state gets no page, though, if the pool is short when its
        length is passed. Raises OutOfPagesError, or LeaseError for a lease that would grow beyond `max_tokens` or has given up
        its running state; nothing is changed then. Cost: a few array operations over the rows, O(new pages), and O(log n) a
        victim.
        """
        grown = self._by_row(tokens, "tokens")
        after = self._lengths + grown
        due = self._due(after, GROWS_AT)
        for row in due:
            self.require_room(row.lease, int(after[row.index]))
            row.lease.require_state(int(after[row.index]))
        counts = after if self._layout.page_size == 1 else (after + (self._layout.page_size - 1)) // self._layout.page_size
        cells = {name: rows.missing(counts) for name, rows in self._tables.items()}
        needs = {name: found.rows.size for name, found in cells.items() if found.rows.size}
        taken: dict[str, NDArray[np.int64]] = {}
        news: dict[str, NewPages] = {}
        before: dict[DecodeRow, dict[int, int]] = {}
        try:
            if needs:
                taken = self._device.allocate_all(needs)
            for row in due:
                before[row] = row.saves()
                row.lease.grow_states(int(after[row.index]))
            for name, ids in taken.items():
                news[name] = self._tables[name].append(cells[name], ids)
            for row in due:
                row.lease.states_grown()
                before.pop(row)
            self._lengths[:] = after
            for row in due:
                self._plans[GROWS_AT, row.index] = min(self.max_tokens + 1, row.grows_at)
                self._plans[CUTS_AT, row.index] = row.cuts_at
            return news
        except BaseException:
            self._lengths[:] = after - grown
            for row, saves in before.items():
                row.restore_states(saves)
            for name, ids in taken.items():
                self._tables[name].take_back(cells[name])
                self._device.free(name, ids)
            for row in due:
                self.plan(row)
            raise

    def can_allocate(self, tokens: NDArray[np.integer[Any]] | int = 1) -> bool:
        """Whether every pool has enough free and evictable pages for `allocate` now; see PrefixCache.can_allocate.

        Raises LeaseError for a lease that would grow beyond `max_tokens`.
        """
        after = self._lengths + self._by_row(tokens, "tokens")
        for row in self._at(after > self.max_tokens):
            self.require_room(row.lease, int(after[row.index]))
        counts = -(after // -self._layout.page_size)
        return self._device.fits({name: rows.missing_count(counts) for name, rows in self._tables.items()})

    def advance(self, lengths: NDArray[np.integer[Any]] | int | None = None) -> None:
        """Report that all tokens that have pages are computed, or the first `lengths` by row.

        Does for each lease what `PrefixCache.advance` does. Raises LeaseError, with nothing changed, for more tokens than a
        lease has pages for, and for a lease that has given up its running state. Cost: a few array operations over the rows,
        and O(pages freed).
        """
        computed = self._lengths if lengths is None else self._by_row(lengths, "lengths")
        if lengths is not None and (computed > self._lengths).any():
            self._refuse(computed > self._lengths, computed, "computed: it does not have pages for so many")
        due = self._due(computed, ADVANCES_AT)
        for row in due:
            row.lease.require_state(int(computed[row.index]))
        np.maximum(self._computed, computed, out=self._computed)
        size = self._layout.page_size
        if self._layout.windows:
            kept_from = np.minimum(self._computed // size * size, self._plans[KEPT_FROM])
            for name, window in self._layout.windows:
                self._tables[name].free_fronts(window.starts(kept_from) // size, name, self._device)
        for row in due:
            row.lease.advance(int(computed[row.index]))

    def truncate(self, lengths: NDArray[np.integer[Any]] | int) -> None:
        """Remove the tokens from these lengths by row on, which were never committed (rejected draft tokens).

        Does for each lease what `PrefixCache.truncate` does. Call it before `advance`, which gives window pages back. Raises
        LeaseError, with nothing changed, for tokens that were committed, and for more than there are. Cost: a few array
        operations over the rows, and O(pages freed).
        """
        after = self._by_row(lengths, "lengths")
        wrong = (after > self._lengths) | (after < np.minimum(self._plans[COMMITTED], self._lengths))
        if wrong.any():
            self._refuse(wrong, after, "kept: they must be between those committed and those that it has pages for")
        cut = after < np.minimum(self._plans[CUTS_AT], self._lengths)
        for row in self._at(cut):
            row.lease.cut(int(after[row.index]))
        counts = -(after // -self._layout.page_size)
        for name, rows in self._tables.items():
            rows.free_backs(counts, name, self._device)
        np.minimum(self._computed, after, out=self._computed)
        if self._layout.point is not None:
            np.copyto(self._doubted_at, self._computed, where=after < self._lengths)
        self._lengths[:] = after

    def slots(self, component: str, tokens: int = 1) -> NDArray[np.int64]:
        """Where the state of the last `tokens` tokens of each lease lies, as token indices into the component's pool: page id
        times page size, plus the place in the page.

        Returns int64 by row, or [row, token] if `tokens` is more than one; -1 for a token that a window has passed. Raises
        LeaseError if a row is shorter.
        """
        rows = self._tables.get(self._layout.owner_of.get(component, "")) if isinstance(component, str) else None
        if rows is None:
            raise LeaseError(f"there is no page table for {repr_of(component)}; there are {', '.join(self._tables)}")
        tokens = integer(tokens, "tokens", LeaseError, minimum=1)
        size, taken = self._layout.page_size, self._rows
        at = self._lengths.take(taken) - 1
        if at.size and at.min() < tokens - 1:
            raise LeaseError(f"some lease is shorter than {tokens} tokens")
        if tokens != 1:
            at = at[:, None] + np.arange(1 - min(tokens, self.max_tokens), 1)
            taken = taken[:, None]
        if size == 1:
            return rows.at(taken, at)
        pages, places = np.divmod(at, size)
        found = rows.at(taken, pages)
        found *= size
        found += places
        if tokens != 1:  # the last token is in every window
            np.maximum(found, -1, out=found)
        return found

    def _by_row(self, given: Any, name: str) -> NDArray[np.int64]:
        """What was given for each of `rows`, for all rows."""
        if isinstance(given, int | np.integer):
            return self._is_taken * min(integer(given, name, LeaseError), NO_LENGTH - 1)
        if not isinstance(given, np.ndarray) or given.dtype.kind not in "iu" or given.shape != self._rows.shape:
            raise LeaseError(f"{name} must be an integer, or an array of {self._rows.size} of them, not {repr_of(given)}")
        if given.size and (given.min() < 0 or given.max() >= NO_LENGTH):
            raise LeaseError(f"{name} must be zero or more, not {repr_of(given.tolist())}")
        found = np.zeros(self.max_leases, np.int64)
        found[self._rows] = given
        return found

    def _find_rows(self) -> NDArray[np.int64]:
        rows = self._is_taken.nonzero()[0]
        rows.flags.writeable = False
        return rows

    def _due(self, lengths: NDArray[np.int64], plan: int) -> list[DecodeRow]:
        """The rows whose leases have something of their own to do at these lengths."""
        return self._at(lengths >= self._plans[plan])

    def _at(self, chosen: NDArray[np.bool_]) -> list[DecodeRow]:
        return [row for index in chosen.nonzero()[0].tolist() if (row := self._taken[index]) is not None]

    def _refuse(self, wrong: NDArray[np.bool_], lengths: NDArray[np.int64], why: str) -> None:
        row = self._at(wrong)[0]
        raise LeaseError(f"{row.lease} in row {row.index} cannot have {lengths[row.index]} tokens {why}")

    # What its rows have it do.

    def require_room(self, lease: LeaseState, length_tokens: int) -> None:
        """Raise LeaseError if the rows are too short for so many tokens."""
        if length_tokens > self.max_tokens:
            raise LeaseError(f"{lease} cannot have {length_tokens} tokens in a batch that takes leases of {self.max_tokens}")

    def plan(self, row: DecodeRow) -> None:
        """Note at which lengths a row's lease has something of its own to do."""
        lease = row.lease
        self._plans[:, row.index] = (
            min(self.max_tokens + 1, row.grows_at),
            row.advances_at,
            row.cuts_at,
            lease.windows_kept_from,
            lease.committed,
        )

    def vacate(self, index: int) -> None:
        """The lease of a row has left. Idempotent, until the next call."""
        self._taken[index] = self._leases[index] = None
        self._is_taken[index] = 0
        self._rows = self._find_rows()
        self._numbers[:, index] = 0
        self._plans[:, index] = NO_LENGTH
        for rows in self._tables.values():
            rows.clear(index)
        if not self._free or self._free[-1] != index:
            self._free.append(index)


def _read_only(array: NDArray[np.int64]) -> NDArray[np.int64]:
    view = array.view()
    view.flags.writeable = False
    return view
