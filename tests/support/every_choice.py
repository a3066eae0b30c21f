"""The best that any eviction could do, by trying all of them; for workloads of a few pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

Names = frozenset[tuple[int, ...]]
"""Pages, or boundaries, by the prefix that they end."""


@dataclass(frozen=True)
class Tiny:
    """Prompts of pages, one after the other, and pools.

    Attributes:
        prompts: the pages of each, and whether a token follows them, without which the last page cannot be hit.
        paths, windows, states: pages, window pages and states that fit; None for no such pool.
        window: pages that a boundary needs before it.
        grid: pages between boundaries with states.
    """

    prompts: tuple[tuple[tuple[int, ...], bool], ...]
    paths: int | None
    windows: int | None = None
    window: int = 1
    states: int | None = None
    grid: int = 1


def most_hits(tiny: Tiny) -> int:
    """Pages hit at most, over all choices of what is kept after each request, and of where requests resume."""

    @cache
    def best(index: int, paths: Names, windows: Names, states: Names) -> int:
        if index == len(tiny.prompts):
            return 0
        prompt, has_more = tiny.prompts[index]
        most = len(prompt) if has_more else len(prompt) - 1
        prefixes = [prompt[:length] for length in range(1, len(prompt) + 1)]
        found = 0
        for length in range(max(0, most) + 1):
            if length and not _can_resume(tiny, prefixes, length, paths, windows, states):
                continue
            computed = prefixes[length:]
            boundaries = [prefix for prefix in computed if len(prefix) % tiny.grid == 0]
            for kept in _kept(paths | frozenset(prefixes), tiny.paths):
                for kept_windows in _kept(windows | frozenset(computed), tiny.windows):
                    for kept_states in _kept(states | frozenset(boundaries), tiny.states):
                        found = max(found, length + best(index + 1, kept, kept_windows, kept_states))
        return found

    def _kept(names: Names, room: int | None) -> Iterator[Names]:
        """All that can be kept; keeping more never hurts."""
        if room is None:
            yield names
            return
        some = sorted(names & asked)
        if len(some) <= room:
            yield frozenset(some)
        else:
            yield from map(frozenset, combinations(some, room))

    asked = frozenset(prompt[:length] for prompt, _ in tiny.prompts for length in range(1, len(prompt) + 1))
    return best(0, frozenset(), frozenset(), frozenset())


def _can_resume(tiny: Tiny, prefixes: list[tuple[int, ...]], length: int, paths: Names, windows: Names, states: Names) -> bool:
    if tiny.paths is not None and not paths.issuperset(prefixes[:length]):
        return False
    if tiny.windows is not None and not windows.issuperset(prefixes[max(0, length - tiny.window) : length]):
        return False
    return tiny.states is None or (length % tiny.grid == 0 and prefixes[length - 1] in states)
