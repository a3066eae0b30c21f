"""The recurrent states of SGLang's running requests, and which of them a checkpoint gives to the tree.

A running request writes its state in place. Without the extra buffer only the state at its last token exists: a checkpoint
copies it to a slot of the tree, and the end of the request gives the slot itself. With the extra buffer the kernels also save
the state at the last point of a grid, in one of two slots that take turns, and a checkpoint gives that slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class OfferedState:
    """A state that a checkpoint gives to the tree.

    Attributes:
        length: after how many tokens it was saved.
        slot: its slot, int64 [1], in device memory.
        kept_index: which of the request's two slots it is in; None if it is not in one of them.
    """

    __slots__ = ("kept_index", "length", "slot")

    def __init__(self, length: int, slot: torch.Tensor, kept_index: int | None = None) -> None:
        self.length = length
        self.slot = slot
        self.kept_index = kept_index


class RunningStates:
    """The states of running requests.

    Args:
        pool: SGLang's `HybridReqToTokenPool`.
        extra_buffer: whether the kernels save states on a grid.
        evict_one: free one state of the tree, if any can go.
    """

    def __init__(self, pool: Any, *, extra_buffer: bool, evict_one: Callable[[], None]) -> None:
        self._pool = pool
        self._extra_buffer = extra_buffer
        self._evict_one = evict_one

    def allocate(self) -> torch.Tensor:
        """A free slot, int64 [1]; evicts one if there is none. Raises MemoryError if none can be had."""
        slot: torch.Tensor | None = self._pool.mamba_allocator.alloc(1)
        if slot is None:
            self._evict_one()
            slot = self._pool.mamba_allocator.alloc(1)
        if slot is None:
            raise MemoryError(
                "mamba: no state slot is free and none can go; raise --max-mamba-cache-size or --mamba-full-memory-ratio"
            )
        return slot

    def start_from(self, kv: Any, source: torch.Tensor) -> None:
        """Let a request start from a state of the tree: SGLang copies it to the request's own slot before the next forward."""
        if not kv.holds_mamba:
            kv.mamba_pool_idx = self.allocate()[0]
        kv.mamba_cow_src_index = source
        kv.mamba_needs_clear = False

    def offer(self, req: Any, token_count: int, *, is_finished: bool) -> OfferedState | None:
        """The state that a checkpoint of `token_count` tokens gives to the tree; None if no saved one can be named."""
        if is_finished:
            return self._offer_last(req, token_count)
        kv = req.kv
        if self._extra_buffer:
            length = kv.mamba_last_track_seqlen
            if length is None:
                return None
            return OfferedState(length, self._pool.donate_mamba_ping_pong_slot(req, self.allocate()))
        slot = self.allocate()
        translate = self._pool.translate_mamba_indices
        self._pool.mamba_pool.copy_from(translate(kv.mamba_pool_idx.unsqueeze(0)), translate(slot))
        return OfferedState(token_count, slot)

    def _offer_last(self, req: Any, token_count: int) -> OfferedState | None:
        kv = req.kv
        if not self._extra_buffer:
            return OfferedState(token_count, kv.mamba_pool_idx.unsqueeze(-1).clone())
        index = self._pool.get_mamba_ping_pong_keep_idx(req)
        length = kv.mamba_last_track_seqlen or 0
        if length > token_count:  # saved past the tokens that count: the other slot may hold an earlier one
            length = kv.mamba_prev_track_seqlen
            if self._pool.mamba_ping_pong_track_buffer_size != 2 or length is None or length > token_count:
                return None
            index = self._pool.get_mamba_ping_pong_other_idx(index)
        if not length:
            return None
        return OfferedState(length, kv.mamba_ping_pong_track_buffer[index].unsqueeze(-1).clone(), index)

    def settle(self, req: Any, offered: OfferedState | None, *, is_kept: bool, is_finished: bool) -> None:
        """A checkpoint is over: free the state if the tree did not keep it, and all that a finished request has left."""
        kv = req.kv
        if not is_finished:
            if offered is not None and not is_kept:
                self._pool.mamba_allocator.free(offered.slot)
            kv.mamba_last_track_seqlen = kv.mamba_prev_track_seqlen = None
        elif self._extra_buffer:
            kept = offered.kept_index if offered is not None and is_kept else None
            self._pool.free_mamba_cache(req, mamba_ping_pong_track_buffer_to_keep=kept)
        elif not is_kept:
            self._pool.free_mamba_cache(req)
