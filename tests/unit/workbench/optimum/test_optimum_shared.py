"""The optimum where pools share their room: never exceeded by any choice, and met exactly where all of it is the paths'."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from every_choice import Tiny, most_hits
from tiny_workloads import PAGE, bound, descent, drawn, idle_of

from unified_tree.controllers.workbench.optimum.descent import whole_tokens
from unified_tree.controllers.workbench.optimum.idle import Demand, Idle, most_path_hits
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Path, Point, Trailing

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.optimum.idle import Int64s


Kept = tuple[int, int, int]
"""How many pages of paths, pages of windows, and states."""
Fits = Callable[[int, Kept], bool]
"""Whether so much of what no running request has in its prompt can be kept at a moment."""
Item = tuple[int, tuple[int, ...]]
"""A kind, by its number in `Kept`, and the prefix that it ends or was saved after."""


def most_hits_where(tiny: Tiny, fits: Fits) -> int:
    """Pages hit at most. The pools of `tiny` only say which there are; `fits` says how much they hold.

    Moments are admissions; where requests pin, there is one more after each, at which it runs.
    """
    kept: list[Counter[Item]] = [Counter() for _ in range(2 * len(tiny.prompts))]
    depths: list[int] = []

    def best() -> int:
        index = len(depths)
        if index == len(tiny.prompts):
            return 0
        prompt, has_more = tiny.prompts[index]
        found = 0
        for depth in range(max(0, len(prompt) if has_more else len(prompt) - 1) + 1):
            uses = [(item, at) for item in _needed(tiny, prompt, depth) for at in _moments(tiny, depths, item)]
            if any(at < 0 for _, at in uses):
                continue
            for item, at in uses:
                kept[at][item] += 1
            if all(fits(at, _sizes(kept[at])) for at in {at for _, at in uses}):
                depths.append(depth)
                found = max(found, depth + best())
                depths.pop()
            for item, at in uses:
                kept[at][item] -= 1
        return found

    return best()


def _needed(tiny: Tiny, prompt: tuple[int, ...], depth: int) -> list[Item]:
    prefixes = [prompt[: length + 1] for length in range(depth)]
    needed: list[Item] = []
    if tiny.paths is not None:
        needed += [(0, prefix) for prefix in prefixes]
    if tiny.windows is not None:
        needed += [(1, prefix) for prefix in prefixes[max(0, depth - tiny.window) :]]
    if tiny.states is not None and depth:
        needed.append((2, prefixes[-1]))
    return needed


def _moments(tiny: Tiny, depths: list[int], item: Item) -> list[int]:
    """When a thing must be kept for the next request; a moment below zero if nobody had computed it."""
    kind, prefix = item
    length, passed = len(prefix), [prompt[: len(prefix)] == prefix for prompt, _ in tiny.prompts[: len(depths)]]
    if kind == 2 and length % tiny.grid:
        return [-1]
    sources = [at for at, depth in enumerate(depths) if passed[at] and (kind == 0 or length > depth)]
    if not sources:
        return [-1]
    if not tiny.pins:
        return list(range(sources[-1] + 1, len(depths) + 1))
    between = [2 * at for at in range(sources[-1] + 1, len(depths) + 1)]
    return between + [2 * at + 1 for at in range(sources[-1] + 1, len(depths)) if not passed[at]]


def _sizes(kept: Counter[Item]) -> Kept:
    kinds = Counter(kind for (kind, _), uses in kept.items() if uses)
    return kinds[0], kinds[1], kinds[2]


def fits_on_two_tiers(kept: Kept, device: tuple[int, Kept], host: tuple[int, Kept]) -> bool:
    """Whether everything can lie on one tier or the other, of each the room and what one of each kind takes of it."""
    (room, page), (host_room, host_page) = device, host
    return any(
        sum(n * size for n, size in zip(there, page, strict=True)) <= room
        and sum((n - m) * size for n, m, size in zip(kept, there, host_page, strict=True)) <= host_room
        for there in product(*(range(count + 1) for count in kept))
    )


INSTANCES = int(os.environ.get("INSTANCES", "16"))


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A workload and the room for it.

    Attributes:
        tiny: its pools only say which there are.
        blocks: on the device, beside what requests that overlap hold at each moment; one number where requests pin.
        page: blocks of a page of the paths, of a page of the windows, and of a state.
        host_blocks, host_page: the same of a host tier.
    """

    tiny: Tiny
    blocks: tuple[int, ...]
    page: Kept
    host_blocks: int = 0
    host_page: Kept = (1, 1, 1)

    def most_hits(self) -> int:
        """The tokens that can be hit at most."""

        def fits(at: int, kept: Kept) -> bool:
            if not self.tiny.pins:
                return sum(count * size for count, size in zip(kept, self.page, strict=True)) <= self.blocks[at]
            running = len(self.tiny.prompts[at // 2][0]) * self.page[0] if at % 2 else 0
            device, host = (self.blocks[0] - running, self.page), (self.host_blocks, self.host_page)
            return fits_on_two_tiers(kept, device, host)

        return most_hits_where(self.tiny, fits) * PAGE

    def demand(self, idle: Idle) -> Demand:
        """What the bound is of: with a host tier a page takes what it does on the tier where that is less."""
        tiny, page = self.tiny, self.page
        room = np.array(self.blocks, np.int64)
        if tiny.pins:
            page = (min(page[0], self.host_page[0]), min(page[1], self.host_page[1]), min(page[2], self.host_page[2]))
            room = np.array([self.blocks[0] + self.host_blocks], np.int64)
        blocks = {"full": 1, "compressed": page[0] - 1, "swa": page[1], "mamba": page[2], "draft": 1}
        components = [Component(name="draft", coverage=Path(), required=False)]
        if tiny.paths is not None:
            components += [Component(name=name, coverage=Path()) for name in ("full", "compressed") if blocks[name]]
        if tiny.windows is not None:
            components.append(Component(name="swa", coverage=Trailing(tiny.window * PAGE - 1)))
        if tiny.states is not None:
            components.append(Component(name="mamba", coverage=Point(), save_grid_tokens=tiny.grid * PAGE))
        return Demand.sharing(components, PAGE, room, blocks, idle.pinned if tiny.pins else 0)


def one_tier(rng: Random) -> Shared:
    """Paths, windows, states, or some of them, and room that comes and goes."""
    has_windows, has_states = rng.choice([(True, False), (True, False), (False, True), (True, True)])
    tiny = drawn(
        rng,
        paths=None if rng.random() < 0.1 else 1,
        windows=1 if has_windows else None,
        window=rng.randint(1, 2),
        states=1 if has_states else None,
        grid=rng.choice([1, 1, 2]),
    )
    most = rng.randint(1, 14)
    is_steady = rng.random() < 0.5
    blocks = tuple(most if is_steady else rng.randint(max(0, most - 4), most) for _ in tiny.prompts)
    return Shared(tiny=tiny, blocks=blocks, page=(rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 4)))


def two_tiers(rng: Random) -> Shared:
    """Requests that need their prompts on device while they run; pages on host take more or less than there."""
    has_windows, has_states = rng.choice([(False, False), (True, False), (False, True), (True, True)])
    tiny = drawn(
        rng,
        paths=1,
        windows=1 if has_windows else None,
        window=rng.randint(1, 2),
        states=1 if has_states else None,
        pins=True,
    )
    page = (rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 4))
    host_page = (page[0] + rng.randint(-1, 1) or 1, page[1] + rng.randint(-1, 1) or 1, page[2] + rng.randint(-1, 1) or 1)
    blocks = 4 * page[0] + rng.randint(0, 3)
    return Shared(tiny=tiny, blocks=(blocks,), page=page, host_blocks=rng.randint(0, 6), host_page=host_page)


def is_room(idle: Idle, demand: Demand, depths: Int64s) -> bool:
    """Whether all idle tokens that a plan keeps fit at all moments."""
    assert demand.shared is not None
    used = np.zeros(idle.count, np.int64)
    for owner, begin, end, since in zip(idle.owner, idle.begin, idle.end, idle.since, strict=True):
        depth, weights = int(depths[owner]), iter(demand.shared.weights)
        kept = next(weights) * max(0, min(depth, end) - begin) if demand.path_tokens is not None else 0
        for window, _ in demand.windows:
            kept += next(weights) * max(0, min(depth, end) - max(depth - window, begin))
        for _ in demand.states:
            kept += next(weights) * (begin < depth <= end)
        used[since : owner + 1] += kept
    return bool((used <= np.maximum(0, demand.shared.units)).all())


def are_room_for(rooms: Kept, _: int, kept: Kept) -> bool:
    return all(count <= room for count, room in zip(kept, rooms, strict=True))


@pytest.mark.parametrize("seed", range(INSTANCES // 2))
def test_both_ways_to_try_everything_agree(seed: int) -> None:
    rng = Random(seed)
    for _ in range(4):
        kind = rng.choice(["paths", "windows", "states"])
        rooms = (rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 2))
        tiny = drawn(
            rng,
            paths=rooms[0],
            windows=rooms[1] if kind == "windows" else None,
            window=rng.randint(1, 2),
            states=rooms[2] if kind == "states" else None,
            grid=rng.choice([1, 1, 2]),
        )
        assert most_hits(tiny) == most_hits_where(tiny, partial(are_room_for, rooms)), tiny


@pytest.mark.parametrize("seed", range(INSTANCES))
def test_paths_are_exact(seed: int) -> None:
    rng = Random(seed)
    for _ in range(10):
        tiny, size = drawn(rng, paths=1), rng.randint(1, 4)
        some = Shared(tiny=tiny, blocks=tuple(rng.randint(1, 12) for _ in tiny.prompts), page=(size, 1, 1))
        best, idle = some.most_hits(), idle_of(tiny)
        demand = some.demand(idle)
        assert demand.path_tokens is not None
        assert most_path_hits(idle, demand.path_tokens).sum() == best, some
        assert bound(idle, demand) >= best, some


@pytest.mark.parametrize("draw", [one_tier, two_tiers])
@pytest.mark.parametrize("seed", range(INSTANCES))
def test_no_choice_exceeds_the_bound(seed: int, draw: Callable[[Random], Shared]) -> None:
    rng = Random(seed)
    for _ in range(4):
        some = draw(rng)
        best, idle = some.most_hits(), idle_of(some.tiny)
        demand = some.demand(idle)
        found = descent(idle, demand)
        assert best <= whole_tokens(found.bound), some
        if demand.path_tokens is not None:
            assert best <= most_path_hits(idle, demand.path_tokens).sum(), some
        assert found.depths.sum() <= whole_tokens(found.bound), some
        assert is_room(idle, demand, found.depths), some


def weighing(demand: Demand, number: int, more: int) -> Demand:
    """A demand in which a token of one pool takes more."""
    assert demand.shared is not None
    weights = tuple(weight + more * (at == number) for at, weight in enumerate(demand.shared.weights))
    return replace(demand, shared=replace(demand.shared, weights=weights))


def paths_too_large(some: Shared, demand: Demand) -> Demand:
    return demand if some.tiny.paths is None else weighing(demand, 0, 1)


def windows_too_large(some: Shared, demand: Demand) -> Demand:
    return demand if some.tiny.windows is None else weighing(demand, int(some.tiny.paths is not None), 1)


def states_too_large(some: Shared, demand: Demand) -> Demand:
    assert demand.shared is not None
    return demand if some.tiny.states is None else weighing(demand, len(demand.shared.weights) - 1, PAGE)


def a_page_is_lost(some: Shared, demand: Demand) -> Demand:
    assert demand.shared is not None
    return replace(demand, shared=replace(demand.shared, units=demand.shared.units - PAGE * min(some.page)))


def room_in_blocks(_: Shared, demand: Demand) -> Demand:
    assert demand.shared is not None
    return replace(demand, shared=replace(demand.shared, units=demand.shared.units // PAGE))


@pytest.mark.parametrize("defect", [paths_too_large, windows_too_large, states_too_large, a_page_is_lost, room_in_blocks])
@pytest.mark.parametrize("draw", [one_tier, two_tiers])
def test_a_wrong_bound_is_noticed(defect: Callable[[Shared, Demand], Demand], draw: Callable[[Random], Shared]) -> None:
    """Each defect makes a bound that some choice exceeds, within the workloads that the tests above draw."""
    rng = Random(3)
    for _ in range(600):
        some = draw(rng)
        idle = idle_of(some.tiny)
        if some.most_hits() > bound(idle, defect(some, some.demand(idle))):
            return
    raise AssertionError("no choice exceeds the wrong bound")


def host_forgotten(some: Shared) -> Shared:
    return replace(some, host_blocks=0)


def larger_pages(some: Shared) -> Shared:
    page = (max(some.page[0], some.host_page[0]), max(some.page[1], some.host_page[1]), max(some.page[2], some.host_page[2]))
    return replace(some, page=page, host_page=page)


def running_counted_twice(some: Shared) -> Shared:
    return replace(some, blocks=(some.blocks[0] - some.page[0] * max(len(prompt) for prompt, _ in some.tiny.prompts),))


@pytest.mark.parametrize("defect", [host_forgotten, larger_pages, running_counted_twice])
def test_a_wrong_bound_of_two_tiers_is_noticed(defect: Callable[[Shared], Shared]) -> None:
    rng = Random(5)
    drawn_ones = (two_tiers(rng) for _ in range(600))
    assert any(some.most_hits() > bound(idle := idle_of(some.tiny), defect(some).demand(idle)) for some in drawn_ones)


def test_a_plan_that_takes_too_much_room_is_noticed() -> None:
    rng = Random(7)
    for _ in range(600):
        some = one_tier(rng)
        idle = idle_of(some.tiny)
        demand = some.demand(idle)
        assert demand.shared is not None
        light = replace(demand, shared=replace(demand.shared, weights=tuple(1 for _ in demand.shared.weights)))
        if not is_room(idle, demand, descent(idle, light).depths):
            return
    raise AssertionError("no plan takes too much room")
