"""The page tables of one lease: for every path and window, the pages that a run reads and writes.

Pages below `PageTable.private_from` are the tree's and locked; those from it on are the lease's own. Only this file writes the
tables, and every page that leaves a table goes to its pool or to the tree here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from unified_tree.inputs.arguments import INT64
from unified_tree.inserts.insert_plan import known_pages
from unified_tree.terms.errors import OutOfPagesError
from unified_tree.terms.tier import PAGE_ID_BYTES, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView, Mapping, Sequence, ValuesView

    from numpy.typing import NDArray

    from unified_tree.controllers.cache.resources import CacheResources
    from unified_tree.declare.component import Component
    from unified_tree.terms.results import Boundary, InsertResult

    Pages = Callable[[Boundary, str], NDArray[np.int64]]


class PageTables:
    """One table for every path and window with pages of its own.

    Attributes:
        write_from: by component, the first token whose state is to be written.
        missing: optional components in shared pages whose state is not in the pages held, as page indices [first, last); of one
            that is valid at one length only, all of them.
    """

    __slots__ = ("_device", "_layout", "_locks", "_rebuilt_to", "_state", "_tables", "_tree", "missing", "write_from")

    def __init__(self, resources: CacheResources) -> None:
        self._layout = resources.layout
        self._device = resources.device
        self._tree = resources.tree
        self._state = resources.state
        self._locks = resources.locks
        self._tables: dict[str, PageTable] = {}
        self._rebuilt_to = 0
        self.write_from: dict[str, int] = {}
        self.missing: dict[str, tuple[int, int]] = {}

    def __getitem__(self, component: str) -> PageTable:
        return self._tables[component]

    def get(self, component: str) -> PageTable | None:
        """The table of a component, or of the one whose pages it shares; None if there is no table."""
        return self._tables.get(self._layout.owner_of.get(component, component))

    @property
    def given_up(self) -> tuple[str, ...]:
        """The optional components that the lease runs without."""
        return tuple([name for name, table in self._tables.items() if table.is_given_up])

    @property
    def by_component(self) -> dict[str, PageTable]:
        """All tables."""
        return self._tables

    def lay_out(self, boundary: Boundary, compute_from: int, prompt_tokens: int, *, rebuilds: bool, loading: bool) -> None:
        """Fill the tables with what is cached or being loaded up to a boundary, and set from which token on each component is
        written.

        Args:
            rebuilds: windows are not cached; running the tokens from `compute_from` on computes them.
        """
        layout, pages = self._layout, self._pages(loading)
        last, first_run = boundary.length // layout.page_size, compute_from // layout.page_size
        prompt_pages, index = -(-prompt_tokens // layout.page_size), self._state.layout.index
        self._rebuilt_to = boundary.length if rebuilds else 0
        for name in layout.paths:
            table = PageTable(prompt_pages)
            table.start(0, last)  # first, for none of what is put there is the lease's own
            self._tables[name] = table
            if loading:
                _put_path(table, pages(boundary, name), last)
            else:
                table.fill(self._locks.pages(boundary, index[name], Tier.DEVICE), last)
            self.write_from[name] = boundary.length
        for name, window in layout.windows:
            table = PageTable(prompt_pages)
            table.start(0, first_run)
            self._tables[name] = table
            if rebuilds and name in layout.can_give_up:  # the run is long enough for those that are required only
                table.fill_end([], last)
                table.start(last, last)
                self.write_from[name] = boundary.length
            elif rebuilds:
                table.start(first_run, first_run)
                self.write_from[name] = layout.floor_to_page(window.start(boundary.length))
            else:
                if loading:
                    ids = pages(boundary, name)
                    table.put(last - ids.size, ids)
                    table.start(last - ids.size, first_run)
                else:
                    table.fill_end(self._locks.pages(boundary, index[name], Tier.DEVICE), last)
                    table.start(table.first_held, first_run)
                self.write_from[name] = boundary.length
        if layout.point is not None:
            self.write_from[layout.point] = compute_from
        if layout.sharers:
            for component in layout.sharers:
                self.write_from[component.name] = self.write_from[layout.owner_of[component.name]]
            self._note_missing(boundary, pages)

    def adopt_tree_pages(self, boundary: Boundary, *, loading: bool) -> None:
        """After a load or a part of it: replace pages that others have loaded meanwhile by the tree's."""
        layout, pages = self._layout, self._pages(loading)
        last = boundary.length // layout.page_size
        for name in layout.paths:
            _put_path(self._tables[name], pages(boundary, name), last)
        for name, _ in layout.windows:
            table, ids = self._tables[name], pages(boundary, name)
            first = max(last - ids.size, min(table.first_held, last))  # a window of what arrives may begin behind it
            table.put(first, ids[first - last + ids.size :])
        self._note_missing(boundary, pages)

    def _pages(self, loading: bool) -> Pages:
        return self._tree.transfers.pages_with_loads if loading else self._tree.pages

    def _note_missing(self, boundary: Boundary, pages: Pages) -> None:
        """Set `missing`: the sharers whose state is not in the lease's pages."""
        last = boundary.length // self._layout.page_size
        self.missing.clear()
        for component in self._layout.sharers:
            if not component.required:
                there = pages(boundary, component.name).size
                if component.coverage.is_exact and there:
                    continue
                missing = (there, last) if component.coverage.is_path else (0, last - there)
                if missing[0] < missing[1]:
                    self.missing[component.name] = missing

    def lacking(self, length_tokens: int) -> list[str]:
        """The optional paths and windows that are not whole in the pages of a boundary. Cost: O(optional components)."""
        last = length_tokens // self._layout.page_size
        lacking: list[str] = []
        for component in self._layout.optional:
            if component.coverage.is_exact:
                is_whole = component.name not in self.missing
            else:
                first = component.coverage.first_page(length_tokens, self._layout.page_size)
                if component.shares is None:  # a path lacks its end, and a window its beginning
                    page = self._tables[component.name].page(last - 1 if component.coverage.is_path else first)
                    is_whole = first == last or page >= 0
                else:
                    is_whole = component.name not in self.missing or self.missing[component.name][1] <= first
            if not is_whole:
                lacking.append(component.name)
        return lacking

    def needs(self, page_count: int, without: Sequence[str] = ()) -> dict[str, int]:
        """How many pages of each pool it takes to grow all tables but these to `page_count`."""
        needs = {}
        for name, table in self._tables.items():
            if page_count > table.size and name not in without:
                needs[name] = page_count - table.size
        return needs

    def grow(self, page_count: int, without: Sequence[str] = ()) -> dict[str, int]:
        """Grow all tables but these to `page_count` pages; returns how many are new, by component.

        Raises OutOfPagesError; then nothing is changed, but pages may have been evicted where there is no memory for tables.
        Cost: O(new pages), and O(log n) a victim.
        """
        needs = self.needs(page_count, without)
        if needs:
            self._device.reserve(needs)
            for name in needs:
                self._tables[name].cover(page_count)
            self._extend(needs, page_count)
        return needs

    def _extend(self, needs: Mapping[str, int], page_count: int) -> None:
        """Add pages that were reserved to tables that have room, all or none. Raises OutOfPagesError if there is no memory."""
        at, page = "", -1
        taken: NDArray[np.int64] | None = None
        try:
            for name, count in needs.items():
                table = self._tables[name]
                at, taken, page = name, None, -1
                if count == 1:
                    page = self._device.allocate_one(name)
                    table.append(page)
                else:
                    taken = self._device.allocate(name, count)
                    table.put(table.size, taken)
        except BaseException:
            for name, count in needs.items():
                if self._tables[name].size >= page_count:
                    self._free_from(name, self._tables[name], page_count - count)
                elif name == at and taken is not None:
                    self._device.free(name, taken)
                elif name == at and page >= 0:
                    self._device.free_one(name, page)
            raise

    def shrink(self, added: Mapping[str, int]) -> None:
        """Undo a `grow`."""
        for name, count in added.items():
            table = self._tables[name]
            self._free_from(name, table, table.size - count)

    def give_up(self, without: Sequence[str]) -> None:
        """Free the lease's own pages of optional components, and hold none of theirs any more. Idempotent."""
        for name in without:
            table = self._tables.get(name)
            if table is None:
                continue  # a state
            ids = table.private()
            try:
                self._device.free(name, ids)
                table.give_up()
            except BaseException:
                if not self._is_held(name, ids):
                    table.give_up()
                raise

    def cut(self, page_count: int) -> None:
        """Shrink every table to at most `page_count` pages; the removed ones are the lease's own."""
        for name, table in self._tables.items():
            self._free_from(name, table, page_count)

    def _free_from(self, name: str, table: PageTable, size: int) -> None:
        """Free pages from an index on. Pages are freed before the table forgets them; if that is interrupted between, they are
        forgotten all the same: so with all that frees pages here.
        """
        ids = table.private_from_index(size)
        try:
            self._device.free(name, ids)
            table.drop_back(size)
        except BaseException:
            if not self._is_held(name, ids):
                table.drop_back(size)
            raise

    def _is_held(self, name: str, ids: NDArray[np.int64]) -> bool:
        """Whether pages, if there are any, have not been freed."""
        return ids.size > 0 and self._device.has_allocated(name, int(ids[0]))

    def free_windows_before(self, length_tokens: int) -> None:
        """Free window pages that a run from this length on does not need. Cost: O(pages freed)."""
        for name, window in self._layout.windows:
            self._free_before(name, self._tables[name], window.start(length_tokens) // self._layout.page_size)

    def keep_windows_for(self, length_tokens: int) -> None:
        """Keep of windows only what this length needs, which may lie beyond the tables' ends."""
        for name, window in self._layout.windows:
            first = window.start(length_tokens) // self._layout.page_size
            table = self._tables[name]
            ids = table.private_before(first)
            try:
                self._device.free(name, ids)
                table.skip_to(first)
            except BaseException:
                if not self._is_held(name, ids):
                    table.skip_to(first)
                raise

    def expect(self, windows_at: int, length_tokens: int, *, has_windows: bool) -> None:
        """Have the state up to a length arrive behind what is held; windows are those of the length `windows_at`.

        Args:
            has_windows: those at the end of what is held are held, too; else windows arrive whole.
        """
        layout, size = self._layout, self._layout.page_size
        if has_windows:
            self.keep_windows_for(windows_at)
        for name, window in layout.windows:
            first = window.start(windows_at) // size
            if has_windows:
                self.write_from[name] = max(self.write_from[name], first * size)
            else:
                table = self._tables[name] = PageTable(layout.pages(length_tokens))
                table.skip_to(first)
                self.write_from[name] = first * size
        if layout.point is not None:
            self.write_from[layout.point] = length_tokens
        for component in layout.sharers:
            owner = layout.owner_of[component.name]
            self.write_from[component.name] = self.write_from[owner]
            if owner == layout.point or (not has_windows and any(owner == name for name, _ in layout.windows)):
                self.missing.pop(component.name, None)

    def windows_are_beyond(self, page: int) -> bool:
        """Whether no window's table holds a page below this index."""
        return all(self._tables[name].first_held >= page for name, _ in self._layout.windows)

    @property
    def windows_end(self) -> int:
        """Up to which length all windows have pages, in tokens: not up to the cached length before a rebuild is allocated."""
        return min([self._tables[name].size for name, _ in self._layout.windows]) * self._layout.page_size

    def not_rebuilt(self, length_tokens: int) -> tuple[str, ...]:
        """The optional components in those window pages of an insert up to a length that a rebuild has written: its run is long
        enough for the required windows only.
        """
        if not self._rebuilt_to:
            return ()
        size, windows = self._layout.page_size, dict(self._layout.windows)
        rebuilt = {name for name, window in windows.items() if window.start(length_tokens) // size * size < self._rebuilt_to}
        return tuple([c.name for c in self._layout.sharers if not c.required and c.shares in rebuilt])

    def to_insert(
        self, committed: int, length_tokens: int, without: Sequence[str] = (), *, keep_windows: bool
    ) -> dict[str, NDArray[np.int64]]:
        """The pages to insert up to a length, as views: of paths those behind `committed`, of windows all that the lease has of
        its own, but for those that hold nothing exact because it rebuilds them. None of those `without` which they were
        computed, and of an optional path none behind a hole.
        """
        size = self._layout.page_size
        last, first = length_tokens // size, min(committed, length_tokens) // size
        pages = {}
        for name in self._layout.paths:
            table = self._tables[name]
            if name not in self._layout.can_give_up or (
                name not in without and table.private_from >= first and not (table.slice(0, last) < 0).any()
            ):
                pages[name] = table.slice(first, last)
        if keep_windows:
            for name, _ in self._layout.windows:
                if name in without:
                    continue
                table = self._tables[name]
                begin = max(self.write_from[name] // size, table.first_held, table.private_from)
                pages[name] = table.slice(min(begin, last), last)
        return pages

    def put_canonical(self, result: InsertResult, length_tokens: int, *, keep_windows: bool) -> None:
        """Put the tree's pages into the tables up to an inserted length, where they are not those given; window pages before
        what it needs are freed.
        """
        size = self._layout.page_size
        last = length_tokens // size
        for name in self._layout.paths:
            if name in result.canonical:
                self._put_given(name, result, last).publish(last)
        if keep_windows:
            for name, window in self._layout.windows:
                if name not in result.canonical:
                    continue
                table = self._tables[name]
                if table.private_from < self.write_from[name] // size:  # those before hold nothing exact
                    self._free_before(name, table, min(self.write_from[name] // size, last))
                self._put_given(name, result, last).publish(last)
                self._free_before(name, table, window.start(length_tokens) // size)

    def leave_out(self, without: Sequence[str], length_tokens: int) -> None:
        """Give up the window pages up to a length that were not computed, so that no later insert takes them."""
        last = length_tokens // self._layout.page_size
        for name, _ in self._layout.windows:
            if name in without:
                self._free_before(name, self._tables[name], min(last, self._tables[name].size))

    def _put_given(self, name: str, result: InsertResult, last: int) -> PageTable:
        """Put the tree's pages below an index in place of those that it did not take."""
        table = self._tables[name]
        if name in result.duplicates:
            ids = result.canonical[name]
            for component in self._layout.sharers:
                if component.shares == name and not component.required and not component.coverage.is_exact:
                    self._note_swapped(component, table, ids, result.boundary)
            table.put(last - ids.size, ids)
        return table

    def _note_swapped(self, component: Component, table: PageTable, ids: NDArray[np.int64], boundary: Boundary) -> None:
        """Add to `missing` those of the tree's pages up to a boundary that are about to replace others in a table and lack a
        sharer's state. Cost: O(pages, and nodes that they lie in).
        """
        node, length = self._locks.find(boundary)
        assert node is not None
        size, i = self._layout.page_size, self._state.layout.index[component.name]
        last = length // size
        first = last - ids.size
        lacking = known_pages(node, length, i, first * size, size) < 0
        at = first + np.flatnonzero(lacking & (table.slice(first, last) != ids))
        if at.size:
            begin, end = self.missing.get(component.name, (last, 0))
            begin = min(begin, int(at[0])) if component.coverage.is_path else 0
            self.missing[component.name] = begin, max(end, int(at[-1]) + 1)

    def _free_before(self, name: str, table: PageTable, first: int) -> None:
        held = table.first_held
        if first <= held:
            return
        if first == held + 1 <= table.size:
            page = table.private_first()
            try:
                if page >= 0:
                    self._device.free_one(name, page)
                table.drop_front(first)
            except BaseException:
                if page < 0 or not self._device.has_allocated(name, page):
                    table.drop_front(first)
                raise
            return
        ids = table.private_before(first)
        try:
            self._device.free(name, ids)
            table.drop_front(first)
        except BaseException:
            if not self._is_held(name, ids):
                table.drop_front(first)
            raise

    def values(self) -> ValuesView[PageTable]:
        """The tables."""
        return self._tables.values()

    def items(self) -> ItemsView[str, PageTable]:
        """The tables by component."""
        return self._tables.items()

    def free(self) -> None:
        """Free the lease's own pages, and hold them no more."""
        for name, table in self._tables.items():
            if table.has_private:
                ids = table.private()
                try:
                    self._device.free(name, ids)
                    table.publish(table.size)
                except BaseException:
                    if not self._is_held(name, ids):
                        table.publish(table.size)
                    raise


def _put_path(table: PageTable, ids: NDArray[np.int64], last: int) -> None:
    """A path's pages from the first token on; an optional one may end before `last`."""
    table.put(0, ids)
    if ids.size < last:
        table.put(ids.size, np.full(last - ids.size, -1, np.int64))


FIRST_HELD: Final = 0
PRIVATE_FROM: Final = 1
SIZE: Final = 2
MIN_ROOM: Final = 256
ROOM_PART: Final = 16
"""A table has room for so many pages behind the prompt, or for the sixteenth part of those of the prompt."""
NOTHING: Final[NDArray[np.int64]] = np.empty(0, INT64)
FEW: Final = 1 << 20
"""Up to so many page ids numpy fills an array more slowly than a bytearray."""
GIVEN_UP: Final = 1 << 40
"""All three numbers of a table that was given up: it holds nothing, and needs no page up to here."""


class PageTable:
    """The pages of one component by page index; -1 where the lease holds none (before a window).

    The ids and the three numbers are kept here, or in a row of a batch (see `move_to`).

    Args:
        prompt_pages: how many the prompt has. There is room for them, and for some of the output, from the first page on.
    """

    __slots__ = ("_expected", "_first_held", "_ids", "_private_from", "_row", "_size")

    def __init__(self, prompt_pages: int) -> None:
        self._expected = prompt_pages + max(MIN_ROOM, prompt_pages // ROOM_PART)
        self._ids = NOTHING
        self._first_held = 0
        self._private_from = 0
        self._size = 0
        self._row: memoryview | None = None

    @property
    def first_held(self) -> int:
        """The first index held."""
        return self._first_held if self._row is None else self._row[FIRST_HELD]

    @property
    def private_from(self) -> int:
        """Pages from this index on are the lease's own; those below are the tree's and locked."""
        return self._private_from if self._row is None else self._row[PRIVATE_FROM]

    @property
    def size(self) -> int:
        """One past the last index held."""
        return self._size if self._row is None else self._row[SIZE]

    def _note(self, first_held: int, private_from: int, size: int) -> None:
        """Set these three."""
        row = self._row
        if row is None:
            self._first_held, self._private_from, self._size = first_held, private_from, size
        else:
            row[FIRST_HELD], row[PRIVATE_FROM], row[SIZE] = first_held, private_from, size

    @property
    def is_given_up(self) -> bool:
        """Whether the lease runs without it until its end."""
        return self.size == GIVEN_UP

    def give_up(self) -> None:
        """Hold nothing any more, whatever is asked of it later."""
        self._ids[:] = -1
        self._note(GIVEN_UP, GIVEN_UP, GIVEN_UP)

    def start(self, first_held: int, private_from: int) -> None:
        """Hold nothing below `first_held`; the pages below `private_from` are the tree's."""
        self._note(first_held, private_from, max(self.size, first_held))

    def publish(self, private_from: int) -> None:
        """The pages below an index are the tree's now."""
        if private_from > self.private_from:
            self._note(self.first_held, private_from, self.size)

    def move_to(self, ids: NDArray[np.int64], row: memoryview | None) -> None:
        """Keep the ids in other memory from now on, which has room for them, and the numbers in a row of a batch; None for
        outside it again. Cost: one copy of the ids.
        """
        size = self.size
        if size == GIVEN_UP:
            ids[:] = -1
        else:
            ids[:size] = self._ids[:size]
        if row is None:
            self._first_held, self._private_from, self._size = self.first_held, self.private_from, size
        else:
            row[FIRST_HELD], row[PRIVATE_FROM], row[SIZE] = self.first_held, self.private_from, size
        self._ids, self._row = ids, row

    def fill(self, parts: list[bytes], size: int) -> None:
        """Hold `size` pages: the ids in these parts, from index 0 on, and -1 behind them. Cost: one copy of the ids."""
        held = sum([len(part) for part in parts])
        parts.append(b"\xff" * (max(size, self._expected) * PAGE_ID_BYTES - held))
        self._ids = np.frombuffer(bytearray().join(parts), INT64)
        self._note(self.first_held, self.private_from, size)

    def fill_end(self, parts: list[bytes], size: int) -> None:
        """Hold the ids in these parts as the last of `size` pages, and -1 before and behind them. Cost: O(size)."""
        held = b"".join(parts)
        first = size - len(held) // PAGE_ID_BYTES
        ids = bytearray(b"\xff") * (max(size, self._expected) * PAGE_ID_BYTES)
        ids[first * PAGE_ID_BYTES : size * PAGE_ID_BYTES] = held
        self._ids = np.frombuffer(ids, INT64)
        self._note(first, self.private_from, size)

    def put(self, first: int, ids: NDArray[np.int64]) -> None:
        """Write page ids at the indices from `first` on."""
        last = first + ids.size
        self.cover(last)
        self._ids[first:last] = ids
        if last > self.size:
            self._note(self.first_held, self.private_from, last)

    def append(self, page: int) -> None:
        """Hold one page more, at the end, where `cover` has made room."""
        size = self.size
        self._ids[size] = page
        self._note(self.first_held, self.private_from, size + 1)

    def cover(self, size: int) -> None:
        """Have room for the indices below `size`. Raises OutOfPagesError with nothing changed if there is no memory."""
        if size > self._ids.size:
            before = self._ids.size
            try:
                grown = _unset(max(size, 2 * before, self._expected))
            except MemoryError as error:
                raise OutOfPagesError(f"there is no memory for page tables of {size} pages") from error
            grown[:before] = self._ids
            self._ids = grown

    def page(self, index: int) -> int:
        """The id at an index; -1 if it holds none there."""
        return int(self._ids[index]) if self.first_held <= index < self.size else -1

    def slice(self, first: int, last: int) -> NDArray[np.int64]:
        """The ids of the indices [first, last): a view, in which later changes show."""
        return self._ids[first:last]

    @property
    def has_private(self) -> bool:
        """Whether the lease has pages of its own."""
        return max(self.first_held, self.private_from) < self.size

    def private(self) -> NDArray[np.int64]:
        """The lease's own pages: a copy."""
        return self._ids[max(self.first_held, self.private_from) : self.size].copy()

    def private_before(self, first_kept: int) -> NDArray[np.int64]:
        """The private pages below an index: a copy."""
        return self._ids[max(self.first_held, self.private_from) : max(0, min(first_kept, self.size))].copy()

    def private_first(self) -> int:
        """The page of the first index held, if it is private, or -1."""
        first = self.first_held
        return self.page(first) if first >= self.private_from else -1

    def drop_front(self, first_kept: int) -> None:
        """Release the indices below `first_kept`, whose private pages the lease has freed. Idempotent."""
        first_held, private_from, size = self.first_held, self.private_from, self.size
        first_kept = min(first_kept, size)
        if first_kept > first_held:
            self._ids[first_held:first_kept] = -1
            self._note(first_kept, max(private_from, first_kept), size)

    def skip_to(self, first_held: int) -> None:
        """As `drop_front`, of all below an index, which may lie beyond the end."""
        self.drop_front(first_held)
        if first_held > self.size:
            self.cover(first_held)
            self.start(first_held, first_held)

    def private_from_index(self, size: int) -> NDArray[np.int64]:
        """The pages of the indices from `size` on, all private: a copy."""
        return self._ids[max(size, self.first_held) : self.size].copy()

    def drop_back(self, size: int) -> None:
        """Release the indices from `size` on, whose pages the lease has freed. Idempotent."""
        first_held, held = self.first_held, self.size
        size = max(size, first_held)
        self._ids[size:held] = -1
        self._note(first_held, self.private_from, min(size, held))


def _unset(count: int) -> NDArray[np.int64]:
    """So many times -1. Raises MemoryError."""
    if count <= FEW:
        return np.frombuffer(bytearray(b"\xff") * (count * PAGE_ID_BYTES), INT64)
    return np.full(count, -1, INT64)  # a bytearray for which there is no memory prints an error beside the one that it raises
