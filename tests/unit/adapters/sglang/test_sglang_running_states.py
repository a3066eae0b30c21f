"""Which states a checkpoint gives to the tree, and what is freed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang_allocators import StateAllocator

from unified_tree.controllers.adapters.sglang.request_rows import RunningStates


class StatePool:
    """What the class calls of `HybridReqToTokenPool`; states are numbers."""

    mamba_ping_pong_track_buffer_size = 2

    def __init__(self, count: int) -> None:
        self.mamba_allocator = StateAllocator(count)
        self.states = torch.zeros(count + 1)
        self.mamba_pool = SimpleNamespace(copy_from=self._copy)

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.states[target] = self.states[source]

    def translate_mamba_indices(self, slots: torch.Tensor) -> torch.Tensor:
        return slots

    def get_mamba_ping_pong_keep_idx(self, req: Any) -> int:
        return int(req.kv.mamba_last_track_idx)

    def get_mamba_ping_pong_other_idx(self, index: int) -> int:
        return 1 - index

    def donate_mamba_ping_pong_slot(self, req: Any, new: torch.Tensor) -> torch.Tensor:
        index = req.kv.mamba_last_track_idx
        old: torch.Tensor = req.kv.mamba_ping_pong_track_buffer[index : index + 1].clone()
        req.kv.mamba_ping_pong_track_buffer[index] = new[0]
        return old

    def free_mamba_cache(self, req: Any, mamba_ping_pong_track_buffer_to_keep: int | None = None) -> None:
        self.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(0))
        slots = req.kv.mamba_ping_pong_track_buffer
        for index in range(0 if slots is None else 2):
            if index != mamba_ping_pong_track_buffer_to_keep:
                self.mamba_allocator.free(slots[index : index + 1])


def rig(*, extra_buffer: bool, count: int = 8, can_evict: bool = False) -> tuple[RunningStates, StatePool, Any]:
    """The states of one running request, whose own state is 7, with slots of the grid at 11 and 12."""
    pool = StatePool(count)
    allocator = pool.mamba_allocator

    def evict_one() -> None:
        if can_evict:
            allocator.free(torch.tensor([count]))

    def slots(number: int) -> torch.Tensor:
        found = allocator.alloc(number)
        assert found is not None
        return found

    kv = SimpleNamespace(
        mamba_pool_idx=slots(1)[0],
        mamba_ping_pong_track_buffer=slots(2) if extra_buffer else None,
        mamba_last_track_idx=0,
        mamba_last_track_seqlen=None,
        mamba_prev_track_seqlen=None,
        holds_mamba=True,
    )
    pool.states[kv.mamba_pool_idx] = 7
    return RunningStates(pool, extra_buffer=extra_buffer, evict_one=evict_one), pool, SimpleNamespace(kv=kv)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_running_request_gives_a_copy_of_its_state(is_kept: bool) -> None:
    states, pool, req = rig(extra_buffer=False)
    offered = states.offer(req, 30, is_finished=False)
    assert offered is not None
    assert offered.length == 30
    assert offered.slot.tolist() != [int(req.kv.mamba_pool_idx)]
    assert pool.states[offered.slot].tolist() == [7]
    states.settle(req, offered, is_kept=is_kept, is_finished=False)
    assert pool.mamba_allocator.available_size() == 8 - 1 - is_kept


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_finished_request_gives_its_own_state(is_kept: bool) -> None:
    states, pool, req = rig(extra_buffer=False)
    offered = states.offer(req, 30, is_finished=True)
    assert offered is not None
    assert (offered.length, offered.slot.tolist()) == (30, [int(req.kv.mamba_pool_idx)])
    states.settle(req, offered, is_kept=is_kept, is_finished=True)
    assert pool.mamba_allocator.available_size() == 8 - is_kept


def test_with_the_extra_buffer_a_running_request_gives_the_slot_of_the_grid_and_gets_another() -> None:
    states, pool, req = rig(extra_buffer=True)
    assert states.offer(req, 100, is_finished=False) is None, "no point of the grid was passed"
    before = int(req.kv.mamba_ping_pong_track_buffer[0])
    req.kv.mamba_last_track_seqlen = 64
    offered = states.offer(req, 100, is_finished=False)
    assert offered is not None
    assert (offered.length, offered.slot.tolist()) == (64, [before])
    assert int(req.kv.mamba_ping_pong_track_buffer[0]) != before
    states.settle(req, offered, is_kept=False, is_finished=False)
    assert pool.mamba_allocator.available_size() == 8 - 3
    assert req.kv.mamba_last_track_seqlen is None


@pytest.mark.parametrize(
    ("last", "previous", "expected"),
    [(64, None, (64, 0)), (None, None, None), (128, 64, (64, 1)), (128, None, None), (128, 112, None)],
    ids=["last", "none saved", "the last is past the tokens", "and there is no other", "the other is past them too"],
)
@pytest.mark.parametrize("is_kept", [True, False])
def test_with_the_extra_buffer_a_finished_request_gives_the_last_point_that_counts(
    last: int | None, previous: int | None, expected: tuple[int, int] | None, is_kept: bool
) -> None:
    states, pool, req = rig(extra_buffer=True)
    req.kv.mamba_last_track_seqlen, req.kv.mamba_prev_track_seqlen = last, previous
    offered = states.offer(req, 100, is_finished=True)
    assert (None if offered is None else (offered.length, offered.kept_index)) == expected
    states.settle(req, offered, is_kept=is_kept and offered is not None, is_finished=True)
    assert pool.mamba_allocator.available_size() == 8 - (is_kept and expected is not None)


def test_a_request_starts_from_a_state_of_the_tree() -> None:
    states, pool, req = rig(extra_buffer=False)
    own = int(req.kv.mamba_pool_idx)
    states.start_from(req.kv, torch.tensor([5]))
    assert (int(req.kv.mamba_pool_idx), req.kv.mamba_cow_src_index.tolist(), req.kv.mamba_needs_clear) == (own, [5], False)
    req.kv.holds_mamba = False
    states.start_from(req.kv, torch.tensor([5]))
    assert int(req.kv.mamba_pool_idx) != own
    assert pool.mamba_allocator.available_size() == 6


def test_a_slot_is_evicted_if_none_is_free() -> None:
    states, _, _ = rig(extra_buffer=False, count=2, can_evict=True)
    assert [states.allocate().tolist(), states.allocate().tolist()] == [[2], [2]]
    states, _, _ = rig(extra_buffer=False, count=1)
    with pytest.raises(MemoryError, match="raise --max-mamba-cache-size"):
        states.allocate()


def test_an_aborted_request_loses_all_its_states() -> None:
    for extra_buffer in (False, True):
        states, pool, req = rig(extra_buffer=extra_buffer)
        states.settle(req, None, is_kept=False, is_finished=True)
        assert pool.mamba_allocator.available_size() == 8
