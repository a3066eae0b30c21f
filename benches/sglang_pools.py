"""SGLang's pools on a CPU, for a contestant: its own allocators, or some that cost nothing.

Its own keep free slots in one tensor, which each free copies whole. A GPU does that beside the scheduler; on a CPU it is the
scheduler's time, a millisecond for a million slots. So the pools that judge cost next to nothing: they count, and hand out
consecutive slots, whoever may still hold them. Rows (`req_to_token`) are SGLang's own in both.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, ReqToTokenPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from benches.subject import WINDOW_TOKENS, Capacity

STATE_GRID_TOKENS = 64
ROOMY = Capacity(full_tokens=1 << 24, window_tokens=1 << 24, states=1 << 16)
KINDS = {
    "full": (ComponentType.FULL,),
    "full_swa": (ComponentType.FULL, ComponentType.SWA),
    "full_mamba": (ComponentType.FULL, ComponentType.MAMBA),
}
ROWS = 4
"""Requests that can run at a time."""


class Counting(PagedTokenToKVPoolAllocator):  # type: ignore[misc]
    """Slots of one kind: O(1) whatever is asked of it."""

    def __init__(self, size: int, page_size: int) -> None:
        self.size, self.page_size, self.device = size, page_size, "cpu"
        self.free_group = None
        self.clear()

    def clear(self) -> None:
        """All are free."""
        self.free_slots, self.next = self.size, self.page_size

    def available_size(self) -> int:
        """In tokens."""
        return self.free_slots

    def alloc(self, need_size: int) -> Any:
        """Consecutive slots; whole pages are taken."""
        taken = -(-need_size // self.page_size) * self.page_size
        if taken > self.free_slots:
            return None
        self.free_slots -= taken
        if self.next + taken > self.size:
            self.next = self.page_size
        first, self.next = self.next, self.next + taken
        return torch.arange(first, first + need_size, dtype=torch.int64)

    def free(self, free_index: Any) -> None:
        """Whole pages come back, whatever part of the last one is named."""
        self.free_slots += -(-free_index.numel() // self.page_size) * self.page_size

    def free_segment(self, free_index: Any, *, start_pos: int) -> None:  # noqa: ARG002
        """The same."""
        self.free(free_index)

    free_page_ids = free_full = free


class CountingWindows(SWATokenToKVPoolAllocator):  # type: ignore[misc]
    """Slots of full attention and of a window; the mapping between them is left alone."""

    def __init__(self, size: int, size_swa: int, page_size: int) -> None:
        self.page_size, self.device = page_size, "cpu"
        self._size_full, self._size_swa, self.free_group = size, size_swa, None
        self.full_attn_allocator, self.swa_attn_allocator = Counting(size, page_size), Counting(size_swa, page_size)

    def clear(self) -> None:
        """All are free."""
        self.full_attn_allocator.clear()
        self.swa_attn_allocator.clear()

    def alloc(self, need_size: int) -> Any:
        """Slots of both."""
        taken = -(-need_size // self.page_size) * self.page_size
        if taken > self.swa_attn_allocator.free_slots:
            return None
        slots = self.full_attn_allocator.alloc(need_size)
        if slots is not None:
            self.swa_attn_allocator.free_slots -= taken
        return slots

    def translate_loc_from_full_to_swa(self, kv_indices: Any) -> Any:
        """The same numbers."""
        return kv_indices

    translate_swa_indices_for_transfer = translate_loc_from_full_to_swa

    def set_full_to_swa_mapping(self, full_indices: Any, swa_indices: Any) -> None:
        """Nothing to set."""

    def clear_full_to_swa_mapping(self, full_indices: Any) -> None:
        """Nothing to clear."""

    def free_swa_segment(self, free_index: Any, *, start_pos: int) -> None:  # noqa: ARG002
        """Only the window's."""
        self.swa_attn_allocator.free(free_index)

    def free_full_segment(self, free_index: Any, *, start_pos: int) -> None:  # noqa: ARG002
        """Only the others."""
        self.full_attn_allocator.free(free_index)

    def free_segment(self, free_index: Any, *, start_pos: int) -> None:  # noqa: ARG002
        """Both."""
        self.free(free_index)

    def free(self, free_index: Any) -> None:
        """Both."""
        self.full_attn_allocator.free(free_index)
        self.swa_attn_allocator.free(free_index)

    def free_group_begin(self) -> None:
        """Nothing is put off."""

    def free_group_end(self) -> None:
        """Nothing was put off."""


class CountingStates(MambaSlotAllocator):  # type: ignore[misc]
    """Slots of states."""

    def __init__(self, size: int) -> None:
        self.size, self.device, self._alloc_iter = size, "cpu", None
        self.clear()

    def clear(self) -> None:
        """All are free."""
        self.free_count, self.next = self.size, 0

    def available_size(self) -> int:
        """How many are free."""
        return self.free_count

    def _do_alloc(self, need_size: int) -> Any:
        if need_size > self.free_count:
            return None
        self.free_count -= need_size
        self.next = self.next % self.size + 1
        return torch.arange(self.next, self.next + need_size, dtype=torch.int64)

    def free(self, free_index: Any) -> None:
        """They are free again."""
        self.free_count += free_index.numel()


def build(
    components: str,
    page_size: int,
    capacity: Capacity | None,
    *,
    counting: bool,
    context_tokens: int = 1 << 16,
    core: str = "rust",
    window_tokens: int = WINDOW_TOKENS,
    has_draft: bool = False,
) -> UnifiedRadixCache:
    """A cache over pools of this capacity; where a page has more tokens than one, states are saved in an extra buffer.

    Args:
        counting: pools that cost nothing.
        context_tokens: the length of a row.
        core: of the tree, `rust` or `python`.
        window_tokens: past tokens that the window has.
        has_draft: keys are pairs of tokens, where it does that.
    """
    capacity = capacity or ROOMY
    arguments = ServerArgs(model_path="dummy", page_size=page_size)
    arguments._mamba_cache_chunk_size = STATE_GRID_TOKENS
    set_global_server_args_for_scheduler(arguments)
    rows = {"size": ROWS, "max_context_len": context_tokens, "device": "cpu", "enable_memory_saver": False}
    states, window = components == "full_mamba", components == "full_swa"
    requests = _state_rows(rows, capacity.states, counting=counting, extra=page_size > 1) if states else ReqToTokenPool(**rows)
    cache = UnifiedRadixCache(
        params=CacheInitParams(
            disable=False,
            req_to_token_pool=requests,
            token_to_kv_pool_allocator=_allocator(page_size, capacity, window=window, counting=counting),
            page_size=page_size,
            is_eagle=has_draft,
            sliding_window_size=window_tokens if window else None,
            enable_mamba_extra_buffer=states and page_size > 1,
            tree_components=KINDS[components],
            tree_core_backend=core,
        )
    )
    assert type(cache.tree_core).__name__ == {"python": "UnifiedTreeCore", "rust": "RustUnifiedTreeCore"}[core]
    return cache


def _allocator(page_size: int, capacity: Capacity, *, window: bool, counting: bool) -> Any:
    if counting and window:
        return CountingWindows(capacity.full_tokens, capacity.window_tokens, page_size)
    if counting:
        return Counting(capacity.full_tokens, page_size)
    common: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    if window:
        layers = {"swa_attention_layer_ids": [1], "full_attention_layer_ids": [0], "head_num": 1, "head_dim": 1}
        sizes = {"size": capacity.full_tokens, "size_swa": capacity.window_tokens, "page_size": page_size}
        return SWATokenToKVPoolAllocator(kvcache=SWAKVPool(**sizes, **layers, **common), need_sort=False, **sizes, **common)
    if page_size == 1:
        return TokenToKVPoolAllocator(size=capacity.full_tokens, kvcache=None, need_sort=False, **common)
    return PagedTokenToKVPoolAllocator(size=capacity.full_tokens, page_size=page_size, kvcache=None, need_sort=False, **common)


def _state_rows(rows: dict[str, Any], states: int, *, counting: bool, extra: bool) -> HybridReqToTokenPool:
    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=8, n_groups=1, num_heads=1, head_dim=8, state_size=2, conv_kernel=2
    )
    pool = HybridReqToTokenPool(
        **rows,
        mamba_size=states,
        mamba_spec_state_size=ROWS,
        cache_params=Mamba2CacheParams(shape=shape, layers=[1]),
        mamba_layer_ids=[1],
        enable_mamba_extra_buffer=extra,
    )
    if counting:
        pool.mamba_allocator = CountingStates(states)
        pool.mamba_pool.copy_from = lambda *_: None  # bytes, which ours leaves to the engine
    return pool
