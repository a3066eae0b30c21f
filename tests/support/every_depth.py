"""The best that any eviction could do, by trying all depths at which requests could resume; for pools that share their room.

What a request resumes from must have been kept since somebody computed it last. So depths alone decide what is kept when, and
keeping more never helps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from every_choice import Tiny

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
