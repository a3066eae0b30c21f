"""SGLang's slot allocators without SGLang: the same calls, and each misuse is an error at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class SlotAllocator:
    """`TokenToKVPoolAllocator` and `PagedTokenToKVPoolAllocator`: page 0 is padding, pages 1 to n are handed out."""

    def __init__(self, page_count: int, page_size: int) -> None:
        self.page_size = page_size
        self.size = page_count * page_size
        self.device = torch.device("cpu")
        self.free_pages = list(range(page_count, 0, -1))

    def available_size(self) -> int:
        return len(self.free_pages) * self.page_size

    def alloc(self, need_size: int) -> torch.Tensor | None:
        assert need_size % self.page_size == 0
        if need_size > self.available_size():
            return None
        pages = torch.tensor([self.free_pages.pop() for _ in range(need_size // self.page_size)], dtype=torch.int64)
        return (pages[:, None] * self.page_size + torch.arange(self.page_size)).reshape(-1)

    def free_page_ids(self, pages: torch.Tensor) -> None:
        for page in pages.tolist():
            assert 0 < page <= self.size // self.page_size, f"page {page} is not of this pool"
            assert page not in self.free_pages, f"page {page} is freed twice"
            self.free_pages.append(page)

    def free_segment(self, slots: torch.Tensor, *, start_pos: int) -> None:
        assert start_pos % self.page_size == 0
        pages = slots[:: self.page_size] // self.page_size
        whole = (pages[:, None] * self.page_size + torch.arange(self.page_size)).reshape(-1)
        assert torch.equal(slots, whole), "a segment is of whole pages"
        self.free_page_ids(pages)


class FullAllocator(SlotAllocator):
    """The full slots of pairs, which are freed when no window hangs on them any more."""

    def __init__(self, page_count: int, page_size: int, mapping: torch.Tensor) -> None:
        super().__init__(page_count, page_size)
        self._mapping = mapping

    def free_page_ids(self, pages: torch.Tensor) -> None:
        slots = (pages[:, None] * self.page_size + torch.arange(self.page_size)).reshape(-1)
        assert not bool(self._mapping[slots].any()), "a full slot is freed whose mapping is live"
        super().free_page_ids(pages)


class WindowAllocator:
    """`SWATokenToKVPoolAllocator`: pairs of full and window slots, and the mapping from one to the other."""

    def __init__(self, full_pages: int, window_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.device = torch.device("cpu")
        self.full_to_swa_index_mapping = torch.zeros((full_pages + 1) * page_size, dtype=torch.int64)
        self.full_attn_allocator = FullAllocator(full_pages, page_size, self.full_to_swa_index_mapping)
        self.swa_attn_allocator = SlotAllocator(window_pages, page_size)
        self.size_full, self.size_swa = self.full_attn_allocator.size, self.swa_attn_allocator.size

    def full_available_size(self) -> int:
        return self.full_attn_allocator.available_size()

    def swa_available_size(self) -> int:
        return self.swa_attn_allocator.available_size()

    def alloc(self, need_size: int) -> torch.Tensor:
        full, windows = self.full_attn_allocator.alloc(need_size), self.swa_attn_allocator.alloc(need_size)
        assert full is not None
        assert windows is not None
        self.set_full_to_swa_mapping(full, windows)
        return full

    def translate_loc_from_full_to_swa(self, slots: torch.Tensor) -> torch.Tensor:
        return self.full_to_swa_index_mapping[slots]

    def set_full_to_swa_mapping(self, full: torch.Tensor, windows: torch.Tensor) -> None:
        self.full_to_swa_index_mapping[full] = windows

    def clear_full_to_swa_mapping(self, full: torch.Tensor) -> None:
        self.full_to_swa_index_mapping[full] = 0

    def free_swa_segment(self, slots: torch.Tensor, *, start_pos: int) -> None:
        windows = self.full_to_swa_index_mapping[slots]
        assert bool((windows > 0).all()), "a window is freed that is not mapped"
        self.clear_full_to_swa_mapping(slots)
        self.swa_attn_allocator.free_segment(windows, start_pos=start_pos)

    def free_segment(self, slots: torch.Tensor, *, start_pos: int) -> None:
        self.free_swa_segment(slots, start_pos=start_pos)
        self.full_attn_allocator.free_segment(slots, start_pos=start_pos)


class StateAllocator(SlotAllocator):
    """`mamba_allocator`: slots of recurrent states."""

    def __init__(self, count: int) -> None:
        super().__init__(count, 1)

    def free(self, slots: torch.Tensor) -> None:
        self.free_page_ids(slots)


def fake_pool(kind: str, **fields: Any) -> Any:
    """A pool that SGLang would call `kind`."""
    return type(kind, (SimpleNamespace,), {})(**fields)
