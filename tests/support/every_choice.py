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
        host_paths, host_windows, host_states: how many more fit on host. All but a running request's prompt may be there, and
            move there and back at any time, so what is kept is all that matters.
        pins: whether a running request keeps its prompt on device while others are idle; between requests it is idle itself.
        window: pages that a boundary needs before it.
        grid: pages between boundaries with states.
    """

    prompts: tuple[tuple[tuple[int, ...], bool], ...]
    paths: int | None
    windows: int | None = None
    window: int = 1
    states: int | None = None
    grid: int = 1
    host_paths: int = 0
    host_windows: int = 0
    host_states: int = 0
    pins: bool = False


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
            for kept in _kept(paths | frozenset(prefixes), tiny.paths, tiny.host_paths, frozenset(prefixes)):
                for kept_windows in _kept(windows | frozenset(computed), tiny.windows, tiny.host_windows):
                    for kept_states in _kept(states | frozenset(boundaries), tiny.states, tiny.host_states):
                        found = max(found, length + best(index + 1, kept, kept_windows, kept_states))
        return found

    def _kept(names: Names, device: int | None, host: int, running: Names = frozenset()) -> Iterator[Names]:
        """All that can be kept; keeping more never hurts. While it ran, a request took room for all of its prompt."""
        if device is None:
            yield names
            return
        room = device + host
        beside = room - len(running) if tiny.pins else room
        own, others = sorted(names & asked & running), sorted(names & asked - running)
        for count in range(min(len(others), room, beside) + 1):
            rest = min(len(own), room - count)
            if count < min(len(others), beside, room - rest):
                continue  # one more of the others would fit as well
            for some in combinations(others, count):
                yield from (frozenset((*some, *mine)) for mine in combinations(own, rest))

    asked = frozenset(prompt[:length] for prompt, _ in tiny.prompts for length in range(1, len(prompt) + 1))
    return best(0, frozenset(), frozenset(), frozenset())


def _can_resume(tiny: Tiny, prefixes: list[tuple[int, ...]], length: int, paths: Names, windows: Names, states: Names) -> bool:
    if tiny.paths is not None and not paths.issuperset(prefixes[:length]):
        return False
    if tiny.windows is not None and not windows.issuperset(prefixes[max(0, length - tiny.window) : length]):
        return False
    return tiny.states is None or (length % tiny.grid == 0 and prefixes[length - 1] in states)
