"""Rows and states of running requests: each page of a range is freed once, and each state that the tree does not keep."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang_allocators import SlotAllocator, StateAllocator

from unified_tree import Component, Key, Path, UnifiedTree
from unified_tree.controllers.adapters.sglang.device_pools import FULL, DevicePools
from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
from unified_tree.controllers.adapters.sglang.request_rows import RequestRows, RunningStates
from unified_tree.terms.results import NOWHERE

PAGES = 40


class World:
    """One row that holds all pages of a pool."""

    def __init__(self, size: int, policy: str = "lru") -> None:
        self.size = size
        self.allocator = SlotAllocator(PAGES, size)
        slots = self.allocator.alloc(PAGES * size)
        assert slots is not None
        slots = slots.to(torch.int32)
        self.rows = RequestRows(
            UnifiedTree([Component(name=FULL, coverage=Path())], size, policy=policy),
            DevicePools(self.allocator, size, in_host_memory=True),
            RequestKeys(is_bigram=False, adapters={}),
            SimpleNamespace(req_to_token=torch.stack([torch.zeros_like(slots), slots])),
            states=None,
            window_kind=None,
            new_lock=None,
            events=None,
            tiers=None,
        )

    def freed(self, ranges: list[tuple[int, int]]) -> int:
        """Pages that came free."""
        before = self.allocator.available_size()
        self.rows.free(1, ranges)
        return int(self.allocator.available_size() - before) // self.size


@pytest.mark.parametrize(
    ("size", "ranges", "pages"),
    [
        (1, [], 0),
        (1, [(3, 3)], 0),
        (1, [(3, 5), (5, 9), (20, 21)], 7),
        (4, [(4, 6), (6, 13)], 3),  # the seam lies within a page
        (4, [(4, 5), (5, 6), (6, 7)], 1),
        (4, [(0, 4), (8, 10)], 2),
        (16, [(0, 640)], 40),
    ],
)
def test_each_page_of_a_row_is_freed_once(size: int, ranges: list[tuple[int, int]], pages: int) -> None:
    assert World(size).freed(ranges) == pages


@pytest.mark.parametrize("seed", range(20))
def test_random_pieces_of_a_row_free_all_of_it(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng.choice([1, 4, 16]))
    end = rng.randint(1, PAGES * world.size)
    cuts = sorted(rng.choices(range(end), k=rng.randint(0, 9)))
    assert world.freed(list(zip([0, *cuts], [*cuts, end], strict=True))) == -(-end // world.size)


def test_a_range_that_begins_within_a_page_is_refused() -> None:
    with pytest.raises(AssertionError, match="within a page"):
        World(4).rows.free(1, [(2, 8)])


@pytest.mark.parametrize("priority", [None, 3, 10**400, -(10**400)], ids=["none", "3", "huge", "hugely negative"])
def test_a_client_may_send_any_priority(priority: int | None) -> None:
    req = SimpleNamespace(
        kv=SimpleNamespace(req_pool_idx=1),
        priority=priority,
        full_untruncated_fill_ids=range(5),
        finished=lambda: False,
        swa_branching_seqlen=None,
        session_id=None,
    )
    boundary, _ = World(1, "priority").rows._insert(req, Key(range(4)), 0, 4, NOWHERE, None, 4)
    assert boundary.length == 4


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
