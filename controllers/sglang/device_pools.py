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
        has_window: for each page, whether the request still holds its window, bool [pages]; None for models without windows.
        pages: SGLang's numbers of the full pages, int64 [pages], in device memory.
    """

    full: NDArray[np.int64]
    windows: NDArray[np.int64]
    has_window: NDArray[np.bool_] | None
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
        self._window_pages = -(-(window_tokens or 0) // page_size)
        self._state_allocator = state_allocator
        self._offsets: torch.Tensor | None = None
        self.full = PageNames(allocator.device)
        self.windows = PageNames(allocator.device)
        self.states = PageNames(allocator.device)
        self._holder = np.full(0, NONE, np.int64)  # by window name: the full name it hangs on
        self._held = np.full(0, NONE, np.int64)  # by full name: the window name that hangs on it

    def names(self, component: str) -> PageNames:
        """The names of one component's pages."""
        return {FULL: self.full, WINDOW: self.windows, STATE: self.states}[component]

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
        allocator = self._allocator
        if self._has_windows:
            allocator = allocator.full_attn_allocator if component == FULL else allocator.swa_attn_allocator
        pages = allocator.alloc(page_count * self._size)[:: self._size].div(self._size, rounding_mode="floor")
        names = (self.full if component == FULL else self.windows).assign(pages)
        self._cover(names, names[:0]) if component == FULL else self._cover(names[:0], names)
        return names

    def offer(self, row: torch.Tensor, begin: int, end: int, windows: range) -> OfferedPages:
        """Name the pages of a request's row from `begin` to `end`, in whole pages.

        Args:
            row: the slots of its tokens, from `req_to_token`.
            windows: the positions at which the request has freed its windows already.
        """
        size = self._size
        pages = row[begin:end:size].long()
        if size > 1:
            pages = pages.div_(size, rounding_mode="floor")
        full = self.full.assign(pages)
        if not self._has_windows:
            return OfferedPages(full, full[:0], None, pages)
        count = full.size
        first, has_window = max(0, count - self._window_pages), np.ones(count, np.bool_)
        if windows:
            freed_from, freed_to = (min(count, max(0, (at - begin) // size)) for at in (windows.start, windows.stop))
            has_window[freed_from:freed_to] = False
            first = max(first, freed_to)
        mapped = self._allocator.translate_loc_from_full_to_swa(pages[first:] if size == 1 else pages[first:] * size).long()
        named = self.windows.assign(mapped if size == 1 else mapped.div_(size, rounding_mode="floor"))
        return OfferedPages(full, named, has_window, pages)

    def settle(self, offered: OfferedPages, result: InsertResult) -> NDArray[np.int64] | None:
        """Free what the tree did not keep of the offered pages, and move windows to the pages that it kept.

        Returns the tree's own full pages, by name, where they differ from the offered ones; None if it kept all of them.
        Cost: O(pages), a few tensor operations for each of the four ways in which a page can end.
        """
        if not result.duplicates and WINDOW in result.canonical:
            assert offered.has_window is not None
            self._hold(offered.full[offered.full.size - offered.windows.size :], offered.windows)
            older = offered.has_window[: offered.full.size - offered.windows.size]
            if older.all():
                self._free_windows_of(self.slots(offered.pages[: older.size]))
            else:
                self._free_windows_of(self._chosen(offered, older))
            return None
        if not result.duplicates and not self._has_windows:
            return None
        kept = result.canonical[FULL]
        is_copy = kept != offered.full
        if offered.has_window is None:
            self._free_full(self._chosen(offered, is_copy))
        else:
            self._settle_windows(offered, result, kept, is_copy)
        self.full.release(offered.full[is_copy])
        return kept

    def _settle_windows(
        self, offered: OfferedPages, result: InsertResult, kept: NDArray[np.int64], is_copy: NDArray[np.bool_]
    ) -> None:
        assert offered.has_window is not None
        keeps_window = np.zeros(is_copy.size, np.bool_)
        offers = slice(is_copy.size - offered.windows.size, None)
        if WINDOW in result.canonical:
            refused = result.duplicates.get(WINDOW, offered.windows[:0])
            keeps_window[offers] = ~np.isin(offered.windows, refused)
        loses_window = offered.has_window & ~keeps_window
        self._free_pairs(self._chosen(offered, is_copy & loses_window))
        self._free_windows_of(self._chosen(offered, ~is_copy & loses_window))
        moved = is_copy & keeps_window
        if moved.any():
            self._allocator.clear_full_to_swa_mapping(self._chosen(offered, moved))
        self._free_full(self._chosen(offered, is_copy & ~loses_window))
        windows = keeps_window[offers]
        self.attach(kept[keeps_window], offered.windows[windows], only=is_copy[keeps_window])
        self.windows.release(offered.windows[~windows])

    def attach(self, full: NDArray[np.int64], windows: NDArray[np.int64], only: NDArray[np.bool_] | None = None) -> None:
        """Hang windows on full pages, both by name and in the same order, and map the slots of those that hung elsewhere.

        Args:
            only: map just these; the others are mapped already. By default those whose holder changes.
        """
        if not windows.size:
            return
        self._cover(full, windows)
        moved: NDArray[np.bool_] = self._holder[windows] != full if only is None else only
        self._hold(full, windows)
        if moved.any():
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

    def _chosen(self, offered: OfferedPages, mask: NDArray[np.bool_]) -> torch.Tensor:
        """The full slots of the offered pages that `mask` names."""
        chosen = np.flatnonzero(mask)
        return offered.pages[:0] if not chosen.size else self.slots(offered.pages[self.full.index(chosen)])

    def _free_pairs(self, slots: torch.Tensor) -> None:
        if slots.numel():
            self._allocator.free_segment(slots, start_pos=0)

    def _free_full(self, slots: torch.Tensor) -> None:
        if not slots.numel():
            return
        if self._has_windows:
            self._allocator.free_full_segment(slots, start_pos=0)
        else:
            self._allocator.free_segment(slots, start_pos=0)

    def _free_windows_of(self, slots: torch.Tensor) -> None:
        if slots.numel():
            self._allocator.free_swa_segment(slots, start_pos=0)

    def _free_windows(self, names: NDArray[np.int64]) -> None:
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
        self._cover(full, full[:0])
        held = self._held[full]
        hanging = held != NONE
        if hanging.any():
            self._allocator.clear_full_to_swa_mapping(self.path_slots(full[hanging]))
            self._holder[held[hanging]] = NONE
            self._held[full] = NONE

    def _hold(self, full: NDArray[np.int64], windows: NDArray[np.int64]) -> None:
        if windows.size:
            self._cover(full, windows)
            before = self._held[full]
            self._holder[before[(before != NONE) & (before != windows)]] = NONE  # those of a load that was cancelled
            self._held[full] = windows
            self._holder[windows] = full

    def _cover(self, full: NDArray[np.int64], windows: NDArray[np.int64]) -> None:
        """Make both arrays long enough for these names."""
        self._held = _covering(self._held, full)
        self._holder = _covering(self._holder, windows)


def _covering(array: NDArray[np.int64], names: NDArray[np.int64]) -> NDArray[np.int64]:
    top = int(names.max(initial=-1)) + 1
    if top <= array.size:
        return array
    grown = np.full(max(top, 2 * array.size, 1024), NONE, np.int64)
    grown[: array.size] = array
    return grown
