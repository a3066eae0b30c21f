"""SGLang's slot allocators as pools of the tree's pages.

SGLang numbers full-attention slots; a window slot is reached through `full_to_swa_index_mapping` from the full slot of the same
token. A running request owns pairs of both. The tree owns full pages and window pages apart: a window goes before its path, and
a path page that was computed twice can take over the other's window. So this class keeps, for each window page of the tree,
which full page of the tree it hangs on (its *holder*), and rewrites the mapping where that changes.

All frees are of whole pages, in calls of SGLang's allocators that do not wait for the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.sglang.page_names import PageNames

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from unified_tree.receipt import InsertResult

FULL, WINDOW, STATE = "full", "swa", "mamba"
NONE = -1
"""No holder, or no window held."""


@dataclass(frozen=True, slots=True)
class OfferedPages:
    """Pages of a running request that are offered to the tree.

    Attributes:
        full: names of its full pages, int64 [pages].
        windows: names of the window pages of the last so many of them, int64.
        freed: the indices of those whose windows the request has freed already, all before the offered windows.
        pages: SGLang's numbers of the full pages, int64 [pages], in device memory.
    """

    full: NDArray[np.int64]
    windows: NDArray[np.int64]
    freed: range
    pages: torch.Tensor


class DevicePools:
    """The pools of one cache.

    Args:
        allocator: SGLang's `token_to_kv_pool_allocator`.
        page_size: tokens a page.
        window_tokens: of its windows, if it is a `SWATokenToKVPoolAllocator`; None otherwise.
        state_allocator: SGLang's `mamba_allocator`; None for models without recurrent states.
    """

    def __init__(
        self, allocator: Any, page_size: int, *, window_tokens: int | None = None, state_allocator: Any = None
    ) -> None:
        self._allocator = allocator
        self._size = page_size
        self._has_windows = window_tokens is not None
        self._full_allocator = allocator.full_attn_allocator if self._has_windows else allocator
        self._window_pages = -(-(window_tokens or 0) // page_size)
        self._state_allocator = state_allocator
        self._offsets: torch.Tensor | None = None
        self.full = PageNames(allocator.device)
        self.windows = PageNames(allocator.device)
        self.states = PageNames(allocator.device)
        self._names = {FULL: self.full, WINDOW: self.windows, STATE: self.states}
        self._holder = np.full(0, NONE, np.int64)  # by window name: the full name it hangs on
        self._held = np.full(0, NONE, np.int64)  # by full name: the window name that hangs on it

    def names(self, component: str) -> PageNames:
        """The names of one component's pages."""
        return self._names[component]

    def slots(self, pages: torch.Tensor) -> torch.Tensor:
        """The slots of SGLang's pages, int64 [pages * page_size]."""
        if self._size == 1:
            return pages
        if self._offsets is None:
            self._offsets = pages.new_tensor(range(self._size))
        return (pages[:, None] * self._size + self._offsets).reshape(-1)

    def path_slots(self, names: NDArray[np.int64]) -> torch.Tensor:
        """The full-attention slots of the tree's full pages, int64 [pages * page_size]."""
        return self.slots(self.full.pages(names))

    def page_count(self, component: str) -> int:
        """Pages of a whole pool."""
        if component == STATE:
            return int(self._state_allocator.size)
        if not self._has_windows:
            return int(self._allocator.size) // self._size
        return int(self._allocator.size_full if component == FULL else self._allocator.size_swa) // self._size

    def free_pages(self, component: str) -> int:
        """Pages of a pool that can be allocated now."""
        if component == STATE:
            return int(self._state_allocator.available_size())
        if not self._has_windows:
            return int(self._allocator.available_size()) // self._size
        allocator = self._allocator
        return int(allocator.full_available_size() if component == FULL else allocator.swa_available_size()) // self._size

    def allocate(self, component: str, page_count: int) -> NDArray[np.int64]:
        """Names of so many pages, which must be free: the targets of a load. A window hangs on nothing yet."""
        if component == STATE:
            return self.states.assign(self._state_allocator.alloc(page_count))
        allocator = self._full_allocator if component == FULL else self._allocator.swa_attn_allocator
        pages = allocator.alloc(page_count * self._size)[:: self._size].div(self._size, rounding_mode="floor")
        return self.names(component).assign(pages)

    def offer(self, slots: torch.Tensor, windows_freed: range) -> OfferedPages:
        """Name pages of a request's row.

        Args:
            slots: of the first token of each page, from `req_to_token`.
            windows_freed: the indices of those whose windows the request has freed already.
        """
        size = self._size
        pages = slots.long()
        if size > 1:
            pages = pages.div_(size, rounding_mode="floor")
        full = self.full.assign(pages)
        if not self._has_windows:
            return OfferedPages(full, full[:0], range(0), pages)
        count = full.size
        freed = windows_freed[: max(0, count - windows_freed.start)] or range(0)
        first = max(0, count - self._window_pages, freed.stop)
        mapped = self._allocator.translate_loc_from_full_to_swa(pages[first:] if size == 1 else pages[first:] * size).long()
        named = self.windows.assign(mapped if size == 1 else mapped.div_(size, rounding_mode="floor"))
        return OfferedPages(full, named, freed, pages)

    def settle(self, offered: OfferedPages, result: InsertResult) -> NDArray[np.int64]:
        """Free what the tree did not keep of the offered pages, and move windows to the pages that it kept.

        A path in the tree ends somewhere, so the first of the offered pages are copies of the tree's, and the others are new.

        Returns the tree's own full pages, by name, in place of the copies. Cost: O(pages), and a tensor operation or two for
        each way in which a page can end.
        """
        if not offered.full.size:
            return offered.full
        copied = result.duplicates.get(FULL)
        copies = 0 if copied is None else copied.size
        assert copied is None or copied[-1] == offered.full[copies - 1], "the copies are not the first of the offered pages"
        kept = result.canonical[FULL][:copies]
        if self._has_windows:
            self._settle_windows(offered, result, copies)
        elif copies:
            self._free_full(self.slots(offered.pages[:copies]))
        if copies:
            self.full.release(offered.full[:copies])
        return kept

    def _settle_windows(self, offered: OfferedPages, result: InsertResult, copies: int) -> None:
        """As `settle`, with windows: a run of pages at a time that share a fate, so that each is a slice on the device."""
        freed = offered.freed
        self._free_run(offered, range(freed.start), copies)
        if freed and copies > freed.start:
            self._free_full(self.slots(offered.pages[freed.start : min(copies, freed.stop)]))
        begin = freed.stop
        for kept in _kept_windows(offered, result):
            self._free_run(offered, range(begin, kept.start), copies)
            self._keep_run(offered, kept, copies, result.canonical[FULL])
            begin = kept.stop
        self._free_run(offered, range(begin, offered.full.size), copies)

    def _free_run(self, offered: OfferedPages, run: range, copies: int) -> None:
        """Free the windows of a run of pages, and those of the pages that are copies."""
        if not run:
            return
        new = min(max(copies, run.start), run.stop)
        if run.start < new:
            self._allocator.free_segment(self.slots(offered.pages[run.start : new]), start_pos=0)
        if new < run.stop:
            self._free_windows_of(self.slots(offered.pages[new : run.stop]))
        first = offered.full.size - offered.windows.size
        if run.stop > first:
            self.windows.release(offered.windows[max(0, run.start - first) : run.stop - first])

    def _keep_run(self, offered: OfferedPages, run: range, copies: int, kept: NDArray[np.int64]) -> None:
        """Hang the windows of a run of pages on the pages that the tree kept, and free those that are copies."""
        first = offered.full.size - offered.windows.size
        windows = offered.windows[run.start - first : run.stop - first]
        new = min(max(copies, run.start), run.stop)
        if run.start < new:
            slots = self.slots(offered.pages[run.start : new])
            self._allocator.clear_full_to_swa_mapping(slots)
            self._free_full(slots)
            self.attach(kept[run.start : new], windows[: new - run.start])
        if new < run.stop:
            self._hold(offered.full[new : run.stop], windows[new - run.start :])

    def attach(self, full: NDArray[np.int64], windows: NDArray[np.int64]) -> None:
        """Hang windows on full pages, both by name and in the same order, and map the slots of those that hung elsewhere."""
        if not windows.size:
            return
        self._cover()
        moved: NDArray[np.bool_] = self._holder[windows] != full
        if not moved.any():
            return
        before = self._held[full]
        self._holder[before[(before != NONE) & (before != windows)]] = NONE  # those of a load that was cancelled
        self._hold(full, windows)
        targets = self.slots(self.full.pages(full[moved]))
        self._allocator.set_full_to_swa_mapping(targets, self.slots(self.windows.pages(windows[moved])))

    def free(self, freed: Mapping[str, NDArray[np.int64]]) -> None:
        """Free pages that the tree gave up, by component and name."""
        windows = freed.get(WINDOW)
        if windows is not None and windows.size:
            self._free_windows(windows)
        full = freed.get(FULL)
        if full is not None and full.size:
            pages = self.full.pages(full)
            if self._has_windows:
                self._detach(full)
            self._free_full(self.slots(pages))
            self.full.release(full)
        states = freed.get(STATE)
        if states is not None and states.size:
            self._state_allocator.free(self.states.pages(states))
            self.states.release(states)

    def _free_full(self, slots: torch.Tensor) -> None:
        """Free full pages whose windows are gone. (SGLang's `free_full_segment` looks up on the device whether they are.)"""
        if slots.numel():
            self._full_allocator.free_segment(slots, start_pos=0)

    def _free_windows_of(self, slots: torch.Tensor) -> None:
        if slots.numel():
            self._allocator.free_swa_segment(slots, start_pos=0)

    def _free_windows(self, names: NDArray[np.int64]) -> None:
        self._cover()
        holders = self._holder[names]
        hanging = holders != NONE
        if hanging.any():
            self._free_windows_of(self.path_slots(holders[hanging]))
            self._held[holders[hanging]] = NONE
        if not hanging.all():
            self._allocator.swa_attn_allocator.free_page_ids(self.windows.pages(names[~hanging]))
        self._holder[names] = NONE
        self.windows.release(names)

    def _detach(self, full: NDArray[np.int64]) -> None:
        """Full pages go while windows hang on them: these stay, and hang on nothing."""
        self._cover()
        held = self._held[full]
        hanging = held != NONE
        if hanging.any():
            self._allocator.clear_full_to_swa_mapping(self.path_slots(full[hanging]))
            self._holder[held[hanging]] = NONE
            self._held[full] = NONE

    def _hold(self, full: NDArray[np.int64], windows: NDArray[np.int64]) -> None:
        """Note that windows hang on full pages, which hold no others."""
        self._cover()
        self._held[full] = windows
        self._holder[windows] = full

    def _cover(self) -> None:
        """Make both arrays long enough for all names."""
        if self._held.size < self.full.capacity:
            self._held = _grown(self._held, self.full.capacity)
        if self._holder.size < self.windows.capacity:
            self._holder = _grown(self._holder, self.windows.capacity)


def _kept_windows(offered: OfferedPages, result: InsertResult) -> list[range]:
    """The pages whose offered windows the tree kept, as runs of indices."""
    windows, refused = offered.windows, result.duplicates.get(WINDOW)
    if WINDOW not in result.canonical or (refused is not None and refused.size == windows.size):
        return []
    first = offered.full.size - windows.size
    if refused is None:
        return [range(first, offered.full.size)]
    is_kept = result.canonical[WINDOW] == windows
    edges = (first + np.flatnonzero(np.diff(is_kept, prepend=False, append=False))).tolist()
    return [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _grown(array: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    grown = np.full(size, NONE, np.int64)
    grown[: array.size] = array
    return grown
