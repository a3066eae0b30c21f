"""The figures of the host pool that SGLang's metrics read."""

from __future__ import annotations

from unified_tree.controllers.adapters.sglang.tiers import HostPoolSize
from unified_tree.controllers.pages.page_allocator import PageAllocator


def test_a_host_pool_is_counted_in_tokens() -> None:
    allocator = PageAllocator("full", 10)
    size = HostPoolSize(allocator, 16)
    allocator.allocate(3)
    assert (size.logical_size, size.available_size()) == (160, 112)
