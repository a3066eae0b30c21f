"""What a running request holds of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.arguments import integer
from unified_tree.errors import LeaseError, TransferError

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from unified_tree.controllers.cache.generations import Generation
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.host.load import Load
    from unified_tree.keys import Key
    from unified_tree.receipt import Boundary, Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopy:
    """Copy a cached state before running: page `source` of the component's pool into the lease's own page `target`."""

    component: str
    source: int
    target: int


class PageTable:
    """The pages of one component by page index; -1 where the lease holds none (a window that moved on).

    Attributes:
        private_from: pages of this index and above are the lease's own; those below are the tree's, pinned.
        held_from: the first index held.
        size: one past the last index held.
    """

    __slots__ = ("_ids", "held_from", "private_from", "size")

    def __init__(self) -> None:
        self._ids = np.empty(0, np.int64)
        self.held_from = 0
        self.private_from = 0
        self.size = 0

    def put(self, first: int, ids: NDArray[np.int64]) -> None:
        """Write page ids at the indices from `first` on."""
        last = first + ids.size
        self.cover(last)
        self._ids[first:last] = ids
        self.size = max(self.size, last)

    def cover(self, size: int) -> None:
        """Have room for the indices below `size`."""
        if size > self._ids.size:
            grown = np.full(max(size, 2 * self._ids.size), -1, np.int64)
            grown[: self._ids.size] = self._ids
            self._ids = grown

    def slice(self, first: int, last: int) -> NDArray[np.int64]:
        """The ids of the indices [first, last): a view, which later changes show in."""
        return self._ids[first:last]

    def drop_front(self, first_kept: int) -> NDArray[np.int64]:
        """Stop holding the indices below `first_kept`; returns the private pages among them, which the lease must free."""
        first_kept = min(first_kept, self.size)
        if first_kept <= self.held_from:
            return self._ids[:0]
        private = self._ids[max(self.held_from, self.private_from) : first_kept].copy()
        self._ids[self.held_from : first_kept] = -1
        self.held_from = first_kept
        self.private_from = max(self.private_from, first_kept)
        return private

    def skip_to(self, first_held: int) -> NDArray[np.int64]:
        """Hold nothing below an index that may lie beyond the end; returns the private pages that the lease must free."""
        private = self.drop_front(first_held)
        if first_held > self.size:
            self.held_from = self.private_from = self.size = first_held
        return private

    def drop_back(self, size: int) -> NDArray[np.int64]:
        """Stop holding the indices from `size` on, all private; returns their pages."""
        size = max(size, self.held_from)
        dropped = self._ids[size : self.size].copy()
        self._ids[size : self.size] = -1
        self.size = min(size, self.size)
        return dropped


class Lease:
    """A request's hold on the cache, from `PrefixCache.acquire` to `release`; a context manager that releases.

    Attributes:
        prompt_tokens: length of the key it was acquired for.
        cached_tokens: the prompt's first tokens whose state is in the cache.
        compute_from: the first token to run. Smaller than `cached_tokens` when windows are rebuilt by running tokens again:
            those runs read the cached pages of path components and must not write them.
        write_from: by component, the first token whose state is to be written; what is computed before it is discarded.
        save_at: lengths at which a state should be saved (into `save_pages`) and a window kept, ascending.
        save_pages: pages to save states in, by length, so far as `allocate` has got. Beyond the prompt there are at most two:
            for the last place that the output has pages for, and for the one before, while rejected tokens may lead back there.
        state_page: the running state's own page; None without a `Point` component, and once it was given up in a `commit`:
            then the lease can publish what is computed, and go no further.
        state_copies: copies to make before running; of a lease that is loading, behind the gates of the state's layers.
        missing: optional components in shared pages whose state the cache lacked, as page indices [first, last).
        length: tokens it has pages for; `committed`: tokens published.
        boundary: where what is committed ends in the tree; valid for as long as the lease.
        failure: why what it was loading back never came; it can only be released then. None for all is well.
    """

    __slots__ = (
        "boundary",
        "cache",
        "cached_tokens",
        "committed",
        "compute_from",
        "computed",
        "failure",
        "generation",
        "key",
        "length",
        "load",
        "missing",
        "path_receipt",
        "priority",
        "prompt_tokens",
        "save_at",
        "save_output",
        "save_pages",
        "saved",
        "state_copies",
        "state_page",
        "tables",
        "window_boundary",
        "window_receipt",
        "write_from",
    )

    def __init__(
        self, cache: PrefixCache, key: Key, boundary: Boundary, compute_from: int, priority: int, save_output: bool
    ) -> None:
        self.cache: PrefixCache | None = cache
        self.key = key
        self.boundary = boundary
        self.prompt_tokens = key.length
        self.cached_tokens = boundary.length
        self.compute_from = compute_from
        self.computed = compute_from
        self.committed = boundary.length
        self.length = boundary.length
        self.priority = priority
        self.save_output = save_output
        self.write_from: dict[str, int] = {}
        self.save_at: tuple[int, ...] = ()
        self.saved: set[int] = set()
        self.save_pages: dict[int, int] = {}
        self.missing: dict[str, tuple[int, int]] = {}
        self.state_page: int | None = None
        self.state_copies: tuple[StateCopy, ...] = ()
        self.tables: dict[str, PageTable] = {}
        self.path_receipt: Receipt | None = None
        self.window_receipt: Receipt | None = None
        self.window_boundary = 0
        self.load: Load | None = None
        self.failure: str | None = None
        self.generation: Generation | None = None

    def unpin(self) -> None:
        """Let go of the tree's pages."""
        if self.path_receipt is not None:
            self.path_receipt.release()
            self.path_receipt = None
        self.unpin_windows()

    def unpin_windows(self) -> None:
        """Let go of the tree's windows and state."""
        if self.window_receipt is not None:
            self.window_receipt.release()
            self.window_receipt = None

    @property
    def loading(self) -> bool:
        """Whether cached pages are still on their way from host: `PrefixCache.wait_layer` is the gate before each layer."""
        return self.load is not None

    @property
    def released(self) -> bool:
        """Whether it was given back."""
        return self.cache is None

    @property
    def rebuilt_tokens(self) -> int:
        """How many cached tokens run again to rebuild windows."""
        return self.cached_tokens - self.compute_from

    def pages(self, component: str, first_page: int = 0) -> NDArray[np.int64]:
        """The page ids of a component by page index, from index `first_page` on, int64; -1 where a window has moved on.

        A component that shares pages has its owner's, and -1 where its own state was not in the cache at `acquire`.

        What comes back is a snapshot: a read-only array of the caller's own that never changes. It does not follow the lease.
        Pages named in it that the lease has given back or swapped since are no longer the lease's: they may be free, or another
        request's. Take a new one, or the part that is new, before each run:

        - `allocate` only adds at the end, `truncate` only takes from there, `advance` only makes holes of a window's front.
        - `commit` may swap pages for the tree's: of a path none before page `committed // page_size`, `committed` being
          what it was before the call; of a window any.
        - While the lease is `loading`, `poll` may swap all before `cached_tokens`.

        Raises LeaseError for a component without a page table and after `release`, TransferError if what the lease was loading
        never came. Cost: a copy of the ids from `first_page` on. Of 128k tokens at a token a page that is 1 MiB and takes 28
        microseconds, at 16 tokens a page 2.3; the last page alone takes 1.5 at any length (one core of an AMD EPYC).
        """
        if self.cache is None:
            raise LeaseError(f"{self} was released: its pages are the tree's, or free")
        if self.failure is not None:
            raise TransferError(self.failure)
        table = self.tables.get(self.cache.owner_of.get(component, component)) if isinstance(component, str) else None
        if table is None:
            raise LeaseError(f"there is no page table for {component!r}; there are {', '.join(self.tables)}")
        first_page = integer(first_page, "first_page", LeaseError)
        ids = table.slice(first_page, table.size).copy()
        if component in self.missing:
            first, last = self.missing[component]
            ids[max(0, first - first_page) : max(0, last - first_page)] = -1
        ids.flags.writeable = False
        return ids

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.cache is not None:
            self.cache.release(self)

    def __repr__(self) -> str:
        state = "released" if self.released else f"{self.length} tokens, {self.committed} committed"
        return f"Lease({state}, cached {self.cached_tokens} of {self.prompt_tokens})"
