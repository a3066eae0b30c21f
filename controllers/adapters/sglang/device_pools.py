"""SGLang's slot allocators as pools of the tree's pages.

SGLang numbers full-attention slots; a window slot is reached through `full_to_swa_index_mapping` from the full slot of the same
token. A running request owns pairs of both. The tree owns full pages and window pages apart: a window goes before its path, and
a path page that was computed twice can take over the other's window. So this class keeps, for each window page of the tree,
which full page of the tree it hangs on (its *holder*), and rewrites the mapping where that changes.

All frees are of whole pages, in calls of SGLang's allocators that do not wait for the device. On a CPU page numbers are in
arrays, whose operations touch less code than those of tensors: between two calls a model runs, so each call finds cold caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from unified_tree.inputs.arguments import any_negative

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from unified_tree.controllers.adapters.sglang.page_names import PageNames
    from unified_tree.terms.results import InsertResult

    Names: TypeAlias = "PageNames | PageNumbers"
    Numbers: TypeAlias = Any
    """SGLang's numbers of pages or slots, int64: an array in host memory, a tensor in device memory."""

FULL: Final = "full"
WINDOW: Final = "swa"
STATE: Final = "mamba"
NONE: Final = -1
"""No holder, or no window held."""


class OfferedPages:
    """Pages of a running request that are offered to the tree.

    Attributes:
        full: names of its full pages, int64 [pages].
        windows: names of the window pages of the last so many of them, int64.
        freed: the indices of those whose windows the request has freed already, all before the offered windows.
        pages: SGLang's numbers of the full pages, int64 [pages].
    """

    __slots__ = ("freed", "full", "pages", "windows")

    def __init__(self, full: NDArray[np.int64], windows: NDArray[np.int64], freed: range, pages: Numbers) -> None:
        self.full = full
        self.windows = windows
        self.freed = freed
        self.pages = pages


class DevicePools:
    """The pools of one cache.

    Args:
        allocator: SGLang's `token_to_kv_pool_allocator`.
        page_size: tokens a page.
        window_tokens: of its windows, if it is a `SWATokenToKVPoolAllocator`; None otherwise.
        state_allocator: SGLang's `mamba_allocator`; None for models without recurrent states.
        in_host_memory: whether SGLang's numbers can be read without waiting: they are in arrays then, else in tensors.

    Attributes:
        full, windows, states: the names of each component's pages.
        in_host_memory: as given.
    """

    def __init__(
        self,
        allocator: Any,
        page_size: int,
        *,
        window_tokens: int | None = None,
        state_allocator: Any = None,
        in_host_memory: bool,
    ) -> None:
        import torch

        self._allocator = allocator
        self.in_host_memory = in_host_memory
        self._from_numpy: Any = torch.from_numpy
        self._size = page_size
        self._has_windows = window_tokens is not None
        self._full_allocator = allocator.full_attn_allocator if self._has_windows else allocator
        self._state_allocator = state_allocator
        self._offsets: Any = np.arange(page_size) if in_host_memory else None
        self._window_of: Any = None
        """By full slot, the window slot; in host memory."""
        if in_host_memory and self._has_windows:
            self._window_of = allocator.full_to_swa_index_mapping.numpy()
        self.full = self._new_names(FULL)
        self.windows = self._new_names(WINDOW)
        self.states = self._new_names(STATE)
        self._names: dict[str, Names] = {FULL: self.full, WINDOW: self.windows, STATE: self.states}
        self._holder = np.full(0, NONE, np.int64)  # by window name: the full name it hangs on
        self._held = np.full(0, NONE, np.int64)  # by full name: the window name that hangs on it

    def _new_names(self, component: str) -> Names:
        if self.in_host_memory:
            is_known = component == FULL or (self._has_windows if component == WINDOW else self._state_allocator is not None)
            return PageNumbers(self.page_count(component) + 1 if is_known else 0)  # SGLang counts from 1
        from unified_tree.controllers.adapters.sglang.page_names import PageNames

        return PageNames(self._allocator.device)

    def names(self, component: str) -> Names:
        """The names of one component's pages."""
        return self._names[component]

    def _numbers(self, tensor: torch.Tensor) -> Numbers:
        """Numbers from SGLang."""
        return tensor.numpy() if self.in_host_memory else tensor

    def _tensor(self, numbers: Numbers) -> torch.Tensor:
        """Numbers for SGLang. Those of the tree are read-only, so an array is copied."""
        tensor: torch.Tensor = self._from_numpy(numbers.copy()) if self.in_host_memory else numbers
        return tensor

    def _slots(self, pages: Numbers) -> Numbers:
        """The slots of SGLang's pages, int64 [pages * page_size]."""
        if self._size == 1:
            return pages
        if self._offsets is None:
            self._offsets = pages.new_tensor(range(self._size))
        return (pages[:, None] * self._size + self._offsets).reshape(-1)

    def slots_of(self, names: NDArray[np.int64]) -> Numbers:
        """The full-attention slots of the tree's full pages, int64 [pages * page_size]."""
        return self._slots(self.full.pages(names))

    def path_slots(self, names: NDArray[np.int64]) -> torch.Tensor:
        """As `slots_of`, in device memory."""
        return self._tensor(self.slots_of(names))

    def state_slots(self, names: NDArray[np.int64]) -> torch.Tensor:
        """The slots of the tree's states, int64 [states], in device memory."""
        return self._tensor(self.states.pages(names))

    def name_state(self, slot: torch.Tensor) -> int:
        """The name of a state that is offered to the tree, in slot int64 [1]."""
        return int(self.states.assign(self._numbers(slot))[0])

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
            return self.states.assign(self._numbers(self._state_allocator.alloc(page_count)))
        allocator = self._full_allocator if component == FULL else self._allocator.swa_attn_allocator
        slots = self._numbers(allocator.alloc(page_count * self._size))
        return self.names(component).assign(slots[:: self._size] // self._size)

    def offer(self, slots: Numbers, windows_freed: range) -> OfferedPages:
        """Name pages of a request's row.

        Args:
            slots: of the first token of each page, from `req_to_token`, of any integer type.
            windows_freed: the indices of those whose windows the request has freed already.
        """
        size = self._size
        pages = self._pages_of(slots)
        full = self.full.assign(pages)
        if not self._has_windows:
            return OfferedPages(full, full[:0], range(0), pages)
        freed = windows_freed[: max(0, len(full) - windows_freed.start)] or range(0)
        first = freed.stop
        windows = self._mapped(pages[first:] if size == 1 else pages[first:] * size)
        if size > 1:
            windows //= size
        return OfferedPages(full, self.windows.assign(windows), freed, pages)

    def _mapped(self, slots: Numbers) -> Numbers:
        """The window slots of full slots, int64, in memory of its own."""
        if self._window_of is not None:
            return self._window_of.take(slots)
        return self._allocator.translate_loc_from_full_to_swa(slots).long()

    def settle(self, offered: OfferedPages, result: InsertResult) -> NDArray[np.int64]:
        """Free what the tree did not keep of the offered pages, and move windows to the pages that it kept.

        A path in the tree ends somewhere, so the first of the offered pages are copies of the tree's, and the others are new.

        Returns the tree's own full pages, by name, in place of the copies. Cost: O(pages), and a tensor operation or two for
        each way in which a page can end.
        """
        if not len(offered.full):
            return offered.full
        assert not len(result.replaced.get(FULL, ())), "what shares full pages is as long as they are"
        copied = result.duplicates.get(FULL)
        copies = 0 if copied is None else len(copied)
        assert copied is None or copied[-1] == offered.full[copies - 1], "the copies are not the first of the offered pages"
        kept = result.canonical[FULL][:copies]
        if self._has_windows:
            self._settle_windows(offered, result, copies)
        elif copies:
            self._free_full(offered.pages[:copies])
        if copies:
            self.full.release(offered.full[:copies])
        return kept

    def _settle_windows(self, offered: OfferedPages, result: InsertResult, copies: int) -> None:
        """As `settle`, with windows: a run of pages at a time that share a fate, so that each is a slice on the device."""
        freed = offered.freed
        self._free_run(offered, range(freed.start), copies)
        if freed and copies > freed.start:
            self._free_full(offered.pages[freed.start : min(copies, freed.stop)])
        begin = freed.stop
        for kept in _kept_windows(offered, result):
            self._free_run(offered, range(begin, kept.start), copies)
            self._keep_run(offered, kept, copies, result.canonical[FULL])
            begin = kept.stop
        self._free_run(offered, range(begin, len(offered.full)), copies)

    def _free_run(self, offered: OfferedPages, run: range, copies: int) -> None:
        """Free the windows of a run of pages, and those of the pages that are copies."""
        if not run:
            return
        new = min(max(copies, run.start), run.stop)
        if run.start < new:
            pages = offered.pages[run.start : new]
            self._free_windows_of(self._slots(pages))
            self._free_full(pages)
        if new < run.stop:
            self._free_windows_of(self._slots(offered.pages[new : run.stop]))
        first = len(offered.full) - len(offered.windows)
        if run.stop > first:
            self.windows.release(offered.windows[max(0, run.start - first) : run.stop - first])

    def _keep_run(self, offered: OfferedPages, run: range, copies: int, kept: NDArray[np.int64]) -> None:
        """Hang the windows of a run of pages on the pages that the tree kept, and free those that are copies."""
        first = len(offered.full) - len(offered.windows)
        windows = offered.windows[run.start - first : run.stop - first]
        new = min(max(copies, run.start), run.stop)
        if run.start < new:
            pages = offered.pages[run.start : new]
            self._map(self._slots(pages), None)
            self._free_full(pages)
            self.attach(kept[run.start : new], windows[: new - run.start])
        if new < run.stop:
            self._hold(offered.full[new : run.stop], windows[new - run.start :])

    def attach(self, full: NDArray[np.int64], windows: NDArray[np.int64]) -> None:
        """Hang windows on full pages, both by name and in the same order, and map the slots of those that hung elsewhere."""
        if not len(windows):
            return
        self._cover()
        holders = self._holder[windows]
        if holders.tobytes() == full.tobytes():
            return
        moved = holders != full
        before = self._held[full]
        self._holder[before[(before != NONE) & (before != windows)]] = NONE  # those of a load that was cancelled
        self._hold(full, windows)
        self._map(self.slots_of(full[moved]), self._slots(self.windows.pages(windows[moved])))

    def free(self, freed: Mapping[str, NDArray[np.int64]]) -> None:
        """Free pages that the tree gave up, by component and name."""
        windows = freed.get(WINDOW)
        if windows is not None and len(windows):
            self._free_windows(windows)
        full = freed.get(FULL)
        if full is not None and len(full):
            if self._has_windows:
                self._detach(full)
            self._free_full(self.full.pages(full))
            self.full.release(full)
        states = freed.get(STATE)
        if states is not None and len(states):
            self._state_allocator.free(self.state_slots(states))
            self.states.release(states)

    def free_slots(self, slots: Numbers) -> None:
        """Free pages that the tree never had, by a slot of each; for models without windows."""
        pages = self._pages_of(slots)
        self._full_allocator.free_page_ids(self._from_numpy(pages) if self.in_host_memory else pages)

    def _pages_of(self, slots: Numbers) -> Numbers:
        """SGLang's pages of slots of any integer type, int64, in memory of their own."""
        pages = slots.astype(np.int64) if self.in_host_memory else slots.long()
        if self._size > 1:
            pages //= self._size
        return pages

    def _free_full(self, pages: Numbers) -> None:
        """Free full pages whose windows are gone. (SGLang's `free_full_segment` looks up on the device whether they are.)"""
        if len(pages):
            self._full_allocator.free_page_ids(self._tensor(pages))

    def _free_windows_of(self, slots: Numbers) -> None:
        """Free the windows of whole pages of full slots, which have no mapping from then on."""
        if not len(slots):
            return
        if self._window_of is None:
            self._allocator.free_swa_segment(slots, start_pos=0)
            return
        windows = self._window_of.take(slots[:: self._size])
        if self._size > 1:
            windows //= self._size
        assert np.count_nonzero(windows) == len(windows), "a window is freed that is not mapped"
        self._window_of[slots] = 0
        self._allocator.swa_attn_allocator.free_page_ids(self._from_numpy(windows))

    def _map(self, slots: Numbers, windows: Numbers | None) -> None:
        """Map full slots to window slots, or to none."""
        if self._window_of is not None:
            self._window_of[slots] = 0 if windows is None else windows
        elif windows is None:
            self._allocator.clear_full_to_swa_mapping(slots)
        else:
            self._allocator.set_full_to_swa_mapping(slots, windows)

    def _free_windows(self, names: NDArray[np.int64]) -> None:
        self._cover()
        holders = self._holder[names]
        if any_negative(holders.tobytes()):
            hanging = holders != NONE
            self._allocator.swa_attn_allocator.free_page_ids(self._tensor(self.windows.pages(names[~hanging])))
            holders = holders[hanging]
        if len(holders):
            self._free_windows_of(self.slots_of(holders))
            self._held[holders] = NONE
        self._holder[names] = NONE
        self.windows.release(names)

    def _detach(self, full: NDArray[np.int64]) -> None:
        """Full pages go while windows hang on them: these stay, and hang on nothing."""
        self._cover()
        held = self._held[full]
        if held.tobytes().strip(b"\xff"):  # not NONE throughout
            hanging = held != NONE
            self._map(self.slots_of(full[hanging]), None)
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
    if WINDOW not in result.canonical or (refused is not None and len(refused) == len(windows)):
        return []
    first = len(offered.full) - len(windows)
    if refused is None:
        return [range(first, len(offered.full))]
    kept = np.flatnonzero(result.canonical[WINDOW] == windows) + first
    if kept[-1] - kept[0] + 1 == kept.size:
        return [range(kept[0], kept[-1] + 1)]
    runs = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)
    return [range(run[0], run[-1] + 1) for run in runs]


def _grown(array: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    grown = np.full(size, NONE, np.int64)
    grown[: array.size] = array
    return grown


class PageNumbers:
    """As `PageNames`, for an engine whose slot numbers are in host memory: each page's name is its number.

    Attributes:
        capacity: all names are less than this; it grows.

    >>> import numpy as np
    >>> from unified_tree.controllers.adapters.sglang.device_pools import PageNumbers
    >>> names = PageNumbers(100)
    >>> names.assign(np.array([70, 71])).tolist(), len(names)
    ([70, 71], 2)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def assign(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The names of pages that the engine has handed out: the same array."""
        self._count += len(pages)
        return pages

    def pages(self, names: NDArray[np.int64]) -> NDArray[np.int64]:
        """The engine's pages of these names: the same array."""
        return names

    def release(self, names: NDArray[np.int64]) -> None:
        """The engine has its pages back."""
        self._count -= len(names)
