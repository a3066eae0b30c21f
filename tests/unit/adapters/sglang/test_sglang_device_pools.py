"""SGLang's allocators as pools of the tree's pages: every slot holds what its prefix says, and none is lost; and the
names of pages."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from sglang_allocators import SlotAllocator, StateAllocator, WindowAllocator

from unified_tree import Component, Key, OutOfPagesError, PageError, Path, Point, Trailing, UnifiedTree
from unified_tree.controllers.adapters.sglang.device_pools import FULL, STATE, WINDOW, DevicePools
from unified_tree.controllers.adapters.sglang.device_tier import DeviceTier
from unified_tree.controllers.adapters.sglang.page_names import FIRST_CAPACITY, PageNames
from unified_tree.controllers.counters.cache_counters import CacheCounters
from unified_tree.terms.results import NOWHERE, Boundary

PAGES = {FULL: 40, WINDOW: 24}


@dataclass
class Engine:
    """Requests that compute prompts, one or two at a time, and write each token's prefix into its slots."""

    size: int
    rng: random.Random
    has_windows: bool = True
    in_host_memory: bool = True
    keys: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        components = [Component(name=FULL, coverage=Path())]
        if self.has_windows:
            components.append(Component(name=WINDOW, coverage=Trailing(2 * self.size)))
            self.allocator = WindowAllocator(PAGES[FULL], PAGES[WINDOW], self.size)
        else:
            self.allocator = SlotAllocator(PAGES[FULL], self.size)  # type: ignore[assignment]
        self.tree = UnifiedTree(components, self.size)
        window_tokens = 2 * self.size if self.has_windows else None
        self.pools = DevicePools(self.allocator, self.size, window_tokens=window_tokens, in_host_memory=self.in_host_memory)
        self.device = DeviceTier(self.tree, self.pools, CacheCounters())
        self.full: dict[int, int] = {}
        self.windows: dict[int, int] = {}

    def compute(self, tokens: list[int], after: Boundary) -> torch.Tensor:
        """A row: the tree's slots up to a boundary, and new ones that are filled."""
        count = len(tokens) - after.length
        needs = {name: count // self.size for name in PAGES if name == FULL or self.has_windows}
        self.device.reserve(needs)
        slots = self.allocator.alloc(count)
        row = torch.cat([self.pools.path_slots(self.tree.pages(after, FULL)), slots]).to(torch.int32)
        for at in range(after.length, len(tokens)):
            self.full[int(row[at])] = prefix(tokens, at)
            if self.has_windows:
                self.windows[int(self.allocator.translate_loc_from_full_to_swa(row[at : at + 1].long()))] = prefix(tokens, at)
        return row

    def serve(self, tokens: list[int], copies: int) -> None:
        """The same prompt, by several requests that do not know of each other until they are done."""
        after = self.tree.match_prefix(Key(tokens)).device
        lock = self.tree.lock(after) if after.length else None
        rows = [self.compute(tokens, after) for _ in range(copies)]
        for row in rows:
            freed = range(0)
            if self.has_windows and self.rng.random() < 0.5 and len(tokens) > after.length:
                end = self.rng.randrange(after.length, len(tokens), self.size)
                freed = range((end - after.length) // self.size)
                if freed:
                    self.allocator.free_swa_segment(row[after.length : end].long(), start_pos=0)
            given = row[after.length : len(tokens) : self.size]
            offered = self.pools.offer(given.numpy() if self.in_host_memory else given, freed)
            pages = {FULL: offered.full, **({WINDOW: offered.windows} if self.has_windows else {})}
            repeatable, ends_spare = (self.rng.random() < 0.5 for _ in range(2))
            result = self.tree.insert(
                Key(tokens), pages, after=after, repeatable=repeatable, keep_spare=True, ends_spare=ends_spare
            )
            kept = self.pools.settle(offered, result)
            slots = self.pools.path_slots(kept)
            row[after.length : after.length + slots.numel()] = slots.to(torch.int32)
            assert [self.full[slot] for slot in row.tolist()] == [prefix(tokens, at) for at in range(len(tokens))]
        if lock is not None:
            lock.release()
        self.keys.append(tokens)

    def check(self) -> None:
        names = [FULL, WINDOW] if self.has_windows else [FULL]
        for name in names:
            assert len(self.pools.names(name)) == self.tree.pool(name).used_pages
            assert self.pools.free_pages(name) + len(self.pools.names(name)) == PAGES[name] == self.pools.page_count(name)
        for tokens in self.keys[-15:]:
            found = self.tree.match_prefix(Key(tokens)).device
            if not found.length:
                continue
            slots = self.pools.path_slots(self.tree.pages(found, FULL))
            assert [self.full[slot] for slot in slots.tolist()] == [prefix(tokens, at) for at in range(found.length)]
            if self.has_windows:
                held = self.tree.pages(found, WINDOW).size * self.size
                mapped = self.allocator.translate_loc_from_full_to_swa(slots[-held:])
                assert [self.windows[slot] for slot in mapped.tolist()] == [
                    prefix(tokens, at) for at in range(found.length - held, found.length)
                ]


def prefix(tokens: list[int], at: int) -> int:
    return hash(tuple(tokens[: at + 1]))


@pytest.mark.parametrize("in_host_memory", [True, False])
@pytest.mark.parametrize("has_windows", [True, False])
@pytest.mark.parametrize("size", [1, 4])
def test_every_slot_holds_its_prefix_and_none_is_lost(size: int, has_windows: bool, in_host_memory: bool) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        engine = Engine(size, rng, has_windows, in_host_memory)
        for _ in range(40):
            count = rng.randrange(1, 9) * size
            tokens = [rng.randrange(2) for _ in range(count)]
            if engine.keys and rng.random() < 0.6:
                tokens = (rng.choice(engine.keys[-5:]) + tokens)[: 10 * size]
            engine.serve(tokens, rng.choice([1, 2]))
            if rng.random() < 0.3:
                engine.device.evict({name: rng.randrange(1, 6) for name in PAGES if name == FULL or has_windows})
            engine.check()
        engine.device.evict({name: count for name, count in PAGES.items() if name == FULL or has_windows})
        engine.check()
        assert engine.pools.free_pages(FULL) == PAGES[FULL]


@pytest.fixture(params=[True, False], ids=["in host memory", "in device memory"])
def pools(request: pytest.FixtureRequest) -> DevicePools:
    return DevicePools(
        WindowAllocator(8, 8, 2), 2, window_tokens=2, state_allocator=StateAllocator(3), in_host_memory=request.param
    )


def mapped(pools: DevicePools, full: np.ndarray) -> list[int]:
    slots: torch.Tensor = pools._allocator.translate_loc_from_full_to_swa(pools.path_slots(full))
    return slots.tolist()


def test_a_window_that_comes_back_hangs_on_the_page_that_came_back(pools: DevicePools) -> None:
    full, windows = pools.allocate(FULL, 2), pools.allocate(WINDOW, 2)
    assert mapped(pools, full) == [0, 0, 0, 0]
    pools.attach(full, windows)
    expected = pools._slots(pools.windows.pages(windows)).tolist()
    assert mapped(pools, full) == expected
    pools.free({FULL: full})  # gone to host; its windows stay
    assert pools.free_pages(FULL) == 8
    assert pools.free_pages(WINDOW) == 6
    again = pools.allocate(FULL, 2)
    assert mapped(pools, again) == [0, 0, 0, 0]
    pools.attach(again, windows)
    assert mapped(pools, again) == expected
    pools.free({FULL: again[:1], WINDOW: windows[:1]})
    pools.free({WINDOW: windows[1:]})
    pools.free({FULL: again[1:]})
    assert [pools.free_pages(FULL), pools.free_pages(WINDOW), len(pools.full), len(pools.windows)] == [8, 8, 0, 0]


def test_a_window_whose_place_another_took_is_freed_without_it(pools: DevicePools) -> None:
    full, cancelled, computed = pools.allocate(FULL, 1), pools.allocate(WINDOW, 1), pools.allocate(WINDOW, 1)
    pools.attach(full, cancelled)
    pools.attach(full, computed)
    pools.free({WINDOW: cancelled})
    assert mapped(pools, full) == pools._slots(pools.windows.pages(computed)).tolist()
    pools.free({WINDOW: computed})
    assert pools.free_pages(WINDOW) == 8


def test_windows_that_never_hung_on_anything_are_freed(pools: DevicePools) -> None:
    windows = pools.allocate(WINDOW, 3)
    pools.free({WINDOW: windows})
    assert pools.free_pages(WINDOW) == 8


def test_states_are_allocated_and_freed(pools: DevicePools) -> None:
    names = pools.allocate(STATE, 2)
    assert (pools.free_pages(STATE), pools.page_count(STATE), len(pools.states)) == (1, 3, 2)
    pools.free({STATE: names})
    assert (pools.free_pages(STATE), len(pools.states)) == (3, 0)


def test_pages_are_reserved_in_all_pools_or_in_none() -> None:
    components = [Component(name=FULL, coverage=Path()), Component(name=STATE, coverage=Point())]
    tree = UnifiedTree(components, 2)
    pools = DevicePools(SlotAllocator(4, 2), 2, state_allocator=StateAllocator(1), in_host_memory=True)
    device = DeviceTier(tree, pools, CacheCounters())
    given = device.allocate_all({FULL: 3, STATE: 1})
    assert {name: names.size for name, names in given.items()} == {FULL: 3, STATE: 1}
    with pytest.raises(OutOfPagesError, match="mamba: 1 device pages needed, 0 are free and 0 evictable") as raised:
        device.allocate_all({FULL: 1, STATE: 1})
    assert (raised.value.component, raised.value.total) == (STATE, 1)
    assert device.allocators[FULL].free_pages == 1
    end = tree.insert(Key([1, 2, 3, 4, 5, 6]), {FULL: given[FULL]}, {STATE: {6: int(given[STATE][0])}}).boundary
    lock = tree.lock(end)
    with pytest.raises(OutOfPagesError, match="full: 2 device pages needed"):
        device.reserve({FULL: 2})
    lock.release()
    device.reserve({FULL: 2, STATE: 1})
    assert device.allocators[FULL].free_pages >= 2
    assert tree.match_prefix(Key([1, 2, 3, 4, 5, 6])).device == NOWHERE


def test_names_stand_for_their_pages_however_many_there_are() -> None:
    rng, names, most = random.Random(0), PageNames(torch.device("cpu")), 0
    known: dict[int, int] = {}
    for _ in range(40):
        pages = torch.tensor([rng.randrange(1 << 40) for _ in range(rng.randrange(FIRST_CAPACITY))], dtype=torch.int64)
        given = names.assign(pages)
        known |= dict(zip(given.tolist(), pages.tolist(), strict=True))
        most = max(most, int(given.max(initial=0)))
        if rng.random() < 0.4 and known:
            gone = rng.sample(sorted(known), len(known) // 2)
            names.release(np.array(gone, np.int64))
            known = {name: page for name, page in known.items() if name not in set(gone)}
        asked = np.array(sorted(known), np.int64)
        asked.flags.writeable = False  # as the tree's own arrays
        assert names.pages(asked).tolist() == [known[name] for name in asked.tolist()]
        assert len(names) == len(known)
    assert most > FIRST_CAPACITY


def test_a_name_that_is_not_in_use_is_not_released() -> None:
    names = PageNames(torch.device("cpu"))
    given = names.assign(torch.tensor([5, 6]))
    names.release(given[:1])
    with pytest.raises(PageError, match="released twice"):
        names.release(given)
    assert len(names) == 1
