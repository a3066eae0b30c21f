"""Rows of running requests: each page of a range is freed once, or the allocator fails the test."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from sglang_allocators import SlotAllocator

from unified_tree import Component, Key, Path, UnifiedTree
from unified_tree.controllers.adapters.sglang.device_pools import FULL, DevicePools
from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
from unified_tree.controllers.adapters.sglang.request_rows import RequestRows
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
