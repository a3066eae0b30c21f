"""The free list of one pool's page ids, also of a pool that shares a budget of blocks with others."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.inputs.arguments import INT64
from unified_tree.inputs.printable import repr_of
from unified_tree.state.page_set import MAX_PAGES, PageSet
from unified_tree.terms.errors import ConfigurationError, OutOfPagesError, PageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.pages.block_tables import BlockTables
    from unified_tree.declare.block_budget import BlockBudget

RUN_LENGTH = 256


class PageAllocator:
    """Allocates and frees the page ids 0 … page_count - 1. Creating a pool of any size costs nothing.

    At most 2**32 ids can be tracked: a larger pool, or one without a limit, allocates no more than that many pages.

    Pages never used are a counter; freed pages are on a stack and are allocated first. A call that raises, whatever it raises
    and wherever it is interrupted, has allocated and freed nothing.

    Args:
        name: of the component, for messages.
        page_count: pages in the pool; None for no limit.
    """

    __slots__ = (
        "_allocated",
        "_limit",
        "_run",
        "_run_begin",
        "_stack",
        "_unused",
        "name",
        "page_count",
    )

    def __init__(self, name: str, page_count: Any) -> None:  # unchecked: compiled code would refuse in its own words
        if page_count is not None and (type(page_count) is not int or page_count <= 0):
            raise ConfigurationError(f"{name}: a pool needs a positive number of pages, not {repr_of(page_count)}")
        self.name = name
        self.page_count: int | None = page_count
        self._unused = 0  # ids from here on were never handed out
        self._run_begin = 0
        self._run = np.empty(0, np.int64)  # the ids from there on
        self._stack = array("q")
        self._limit: int = MAX_PAGES if page_count is None else min(page_count, MAX_PAGES)
        self._allocated = PageSet(self._limit)

    @property
    def used_pages(self) -> int:
        """How many pages are allocated."""
        return self._unused - len(self._stack)

    @property
    def free_pages(self) -> int:
        """How many pages can be allocated now; a very large number if there is no limit."""
        return self._limit - self._unused + len(self._stack)

    def allocate(self, page_count: int) -> NDArray[np.int64]:
        """`page_count` page ids, int64. Raises OutOfPagesError with nothing changed. Cost: O(page_count)."""
        if page_count < 0:
            raise PageError(f"{self.name}: cannot allocate {page_count} pages")
        if page_count > self.free_pages:
            raise self._refusal(page_count)
        kept, unused = len(self._stack) - page_count, self._unused
        freed = self._stack[max(0, kept) :]
        try:
            ids = self._with_unused(page_count) if kept < 0 else np.frombuffer(freed, INT64)
            self._allocated.add(ids)
            del self._stack[max(0, kept) :]
            return ids
        except (MemoryError, PageError) as error:
            raise self._lack_of_memory(page_count) from error
        except BaseException:
            self._go_back(self._stack[: max(0, kept)] + freed, unused)
            raise

    def allocate_one(self) -> int:
        """One page id, the same as `allocate(1)` would return. Raises as that. Cost: O(1)."""
        if not self.free_pages:
            raise self._refusal(1)
        unused = self._unused
        try:
            if self._stack:
                self._allocated.add_one(self._stack[-1])
                return self._stack.pop()
            self._allocated.cover(unused + 1)
            self._allocated.add_one(unused)
            self._unused = unused + 1
            return unused
        except PageError as error:
            raise self._lack_of_memory(1) from error
        except BaseException:
            self._go_back(self._stack, unused)
            raise

    def _go_back(self, freed: array[int], unused: int) -> None:
        """Undo what was interrupted: these are the freed pages, and those from `unused` on were never handed out."""
        self._stack, self._unused = freed, unused
        self._allocated = PageSet(self._limit)
        self._allocated.cover(unused)
        self._allocated.add(np.arange(unused, dtype=np.int64))
        self._allocated.discard(freed.tobytes())

    def _refusal(self, page_count: int) -> OutOfPagesError:
        return OutOfPagesError(
            f"{self.name}: {page_count} pages asked for, {self.free_pages} of {self.page_count} are free",
            component=self.name,
            needed=page_count,
            free=self.free_pages,
            total=self.page_count,
        )

    def _lack_of_memory(self, page_count: int) -> OutOfPagesError:
        return OutOfPagesError(f"{self.name}: there is no memory for the ids of {page_count} more pages")

    def is_allocated(self, page: int) -> bool:
        """Whether a page is allocated now. Cost: O(1)."""
        return bool(self._allocated.all_are(np.array([page], np.int64), members=True))

    def _with_unused(self, page_count: int) -> NDArray[np.int64]:
        """All freed pages, and before them as many unused ones as are still lacking. Raises MemoryError or PageError with
        nothing changed.
        """
        freed = len(self._stack)
        unused = self._unused + page_count - freed
        ids = self._unused_ids(page_count - freed)
        if freed:
            ids = np.concatenate((ids, np.frombuffer(self._stack[:], INT64)))
        self._allocated.cover(unused)
        self._unused = unused
        return ids

    def _unused_ids(self, count: int) -> NDArray[np.int64]:
        """The next ids that were never handed out. A few are cut from a run of them: to make an array takes longer."""
        begin = self._unused - self._run_begin
        if begin + count > len(self._run):
            run = np.arange(self._unused, self._unused + max(count, RUN_LENGTH), dtype=np.int64)
            if count > RUN_LENGTH:
                return run
            self._run, self._run_begin, begin = run, self._unused, 0
        return self._run[begin : begin + count]

    def free(self, ids: NDArray[np.int64]) -> None:
        """Free pages. Raises PageError, with nothing changed, for a page that is not allocated. Cost: O(len(ids))."""
        count = len(ids)
        if count == 0:
            return
        before = len(self._stack)
        try:
            self._stack.frombytes(ids.tobytes())  # first, because there may be no memory
            if self._allocated.discard_all(ids):
                return
        except BaseException:
            self._go_back(self._stack[:before], self._unused)
            raise
        del self._stack[before:]
        raise PageError(f"{self.name}: freed a page that is not allocated, or one twice, among {ids[:8].tolist()}")

    def free_one(self, page: int) -> None:
        """As `free`, for one page. Cost: O(1)."""
        if not self._allocated.contains(page):
            raise PageError(f"{self.name}: freed page {page}, which is not allocated")
        before = len(self._stack)
        try:
            self._allocated.discard_one(page)
            self._stack.append(page)
        except BaseException:
            self._go_back(self._stack[:before], self._unused)
            raise


class Blocks:
    """The blocks of one tier.

    Attributes:
        budget: how many there are.
        used: how many of them pages take now.
        tables: says which; None where that is nobody's to know.
    """

    __slots__ = ("budget", "count", "tables", "used")

    def __init__(self, budget: BlockBudget) -> None:
        self.budget = budget
        self.count = budget.block_count
        self.used = 0
        self.tables: BlockTables | None = None

    @property
    def free(self) -> int:
        """How many no page takes."""
        return self.count - self.used


class BlockAllocator(PageAllocator):
    """The free list of one pool's page ids, whose pages take blocks of a common store of them.

    Ids are dense up to the most pages that the pool could have, so an array by page id says where its blocks are.

    Args:
        name: of the component.
        blocks: what its pages take blocks of, with other pools.
    """

    __slots__ = ("_blocks", "_page_blocks")

    def __init__(self, name: str, blocks: Blocks) -> None:
        super().__init__(name, blocks.budget.page_count(name))
        self._blocks = blocks
        self._page_blocks = blocks.budget.page_blocks[name]

    @property
    def free_pages(self) -> int:
        """How many pages can be allocated now, were no other pool to allocate any."""
        return self._blocks.free // self._page_blocks

    def allocate(self, page_count: int) -> NDArray[np.int64]:
        blocks, before, held = self._blocks, self._blocks.used, self.used_pages
        free = 0 if blocks.tables is None else blocks.tables.free_count
        ids: NDArray[np.int64] | None = None
        try:
            ids = super().allocate(page_count)
            blocks.used = before + page_count * self._page_blocks
            if blocks.tables is not None:
                blocks.tables.assign(self.name, ids)
            return ids
        except BaseException:
            if ids is not None and self.used_pages != held:
                if blocks.tables is not None and blocks.tables.free_count != free:
                    blocks.tables.release(self.name, ids)
                super().free(ids)
            blocks.used = before
            raise

    def allocate_one(self) -> int:
        return int(self.allocate(1)[0])

    def free(self, ids: NDArray[np.int64]) -> None:
        blocks, before, held = self._blocks, self._blocks.used, self.used_pages
        try:
            super().free(ids)
            blocks.used = before - len(ids) * self._page_blocks
            if blocks.tables is not None:
                blocks.tables.release(self.name, ids)
        except BaseException:
            blocks.used = before
            if self.used_pages != held:
                self._go_back(self._stack[: -len(ids)], self._unused)
            raise

    def free_one(self, page: int) -> None:
        self.free(np.array([page], np.int64))
