"""The ceiling of an exhibit: how many prompt tokens any cache with its pools can hit, even one that knows the future.

All ways to fill the pools are tried. A cache may keep any boundaries (lengths that one can resume from) that a running request
computes, and drop any at any time; what it keeps has to fit into the pools beside what the running requests hold. Two things
make this an upper bound: pages that a prefill needs on its way are not counted, and a host tier counts as more room on device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeAlias

from exhibits import Exhibit, Invalidate, Preempt, Start, Tokens

from unified_tree import Path, Point, Trailing

Space: TypeAlias = tuple[str, int]
"""A namespace and its weights version."""
Set: TypeAlias = int
"""A set of numbers, of boundaries or of pages: a bit for each."""


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """A length of a text that one can resume from.

    Attributes:
        hit: how many tokens a prompt need not compute that resumes there.
        path, windows: the pages that it needs; `windows` by component.
        states: how many states.
    """

    space: Space
    prefix: Tokens
    hit: int
    path: Set
    windows: tuple[Set, ...]
    states: int


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A prompt that is looked up and computed, or an output that was generated.

    Attributes:
        known: how many tokens were computed before; 0 for a prompt, which may resume anywhere.
        running: what the running requests hold while it happens; `after`: behind it.
    """

    space: Space
    text: Tokens
    is_start: bool
    known: int
    running: tuple[Boundary, ...]
    after: tuple[Boundary, ...]


class Fits(Protocol):
    """Whether a set of boundaries fits."""

    def __call__(self, kept: Set) -> bool:
        """For a set."""
        ...


class Ceiling:
    """The search, for one exhibit."""

    def __init__(self, exhibit: Exhibit) -> None:
        self._page = exhibit.page_size
        own = [component for component in exhibit.components if component.shares is None and component.required]
        kinds = (Path, Trailing, Point)
        paths, self._windows, self._points = ([c for c in own if isinstance(c.coverage, kind)] for kind in kinds)
        self._grid = math.lcm(self._page, *(c.save_grid_tokens for c in self._points))
        rebuilds = [c.rebuild_tokens or math.inf for c in self._windows]
        self._rebuild_tokens = 0 if self._points else max(rebuilds, default=0)
        host = exhibit.host
        room = {c: exhibit.pools.get(c.name, math.inf) + (host.get(c.name, math.inf) if host is not None else 0) for c in own}
        self._window_room = [room[c] for c in self._windows]
        self._state_room = min((room[c] for c in self._points), default=math.inf)
        self._pages: dict[tuple[Space, Tokens], int] = {}
        self._numbers: dict[tuple[Space, Tokens, bool], int] = {}
        self._boundaries: list[Boundary] = []
        self._events = list(self._read(exhibit))
        self._path_room = min(room[c] for c in paths)
        if len(self._pages) <= self._path_room:  # all texts together fit
            self._path_room = math.inf

    def tokens(self) -> int:
        """The most prompt tokens that can be hit."""
        best: dict[Set, int] = {0: 0}
        for at, event in enumerate(self._events):
            useful = self._useful(at)
            following: dict[Set, int] = {}
            fits = self._room_beside(event.running), self._room_beside(event.after)
            for kept, hits in best.items():
                for resumed in self._resumptions(event, kept):
                    fresh = sum(1 << number for number in _members(useful) if self._computes(event, number, resumed))
                    for chosen in self._choices(kept & useful, fresh, fits):
                        following[chosen] = max(following.get(chosen, 0), hits + (resumed if event.is_start else 0))
            best = {
                kept: hits
                for kept, hits in following.items()
                if not any(kept & ~more == 0 and kept != more and hits <= others for more, others in following.items())
            }
        return max(best.values())

    def _useful(self, at: int) -> Set:
        """The boundaries that a prompt behind the event can resume from, as far as two texts agree."""
        found = 0
        for later in self._events[at + 1 :]:
            if later.is_start:
                for event in self._events[: at + 1]:
                    if event.space == later.space:
                        for number in self._shared(event.space, event.text, later.text):
                            found |= 1 << number
        return found

    def _shared(self, space: Space, text: Tokens, prompt: Tokens) -> Iterator[int]:
        longest = min(_common(text, prompt), len(prompt) - 1)
        lengths = {longest // self._grid * self._grid}
        if math.isfinite(self._path_room):
            lengths |= set(range(self._grid, longest + 1, self._grid))
        for length in lengths - {0}:
            yield self._number(space, text[:length], bare=False)
        bare = longest // self._page * self._page
        if 0 < self._rebuild_tokens < bare:
            yield self._number(space, text[:bare], bare=True)

    def _resumptions(self, event: Event, kept: Set) -> set[int]:
        """How many tokens may be hit; of an output that is generated, what was computed before."""
        if not event.is_start:
            return {event.known}
        found = {0}
        for number in _members(kept):
            boundary = self._boundaries[number]
            length = len(boundary.prefix)
            if boundary.space == event.space and length < len(event.text) and event.text[:length] == boundary.prefix:
                found.add(boundary.hit)
        return found

    def _computes(self, event: Event, number: int, resumed: int) -> bool:
        """Whether a boundary can be kept because its last token is computed, or its path held."""
        boundary = self._boundaries[number]
        length = len(boundary.prefix)
        if boundary.space != event.space or event.text[:length] != boundary.prefix:
            return False
        return length > resumed or not (boundary.states or any(boundary.windows))

    def _choices(self, before: Set, fresh: Set, fits: tuple[Fits, Fits]) -> Iterator[Set]:
        """The largest sets of boundaries that fit, both beside the running requests and behind the event."""
        grown = before | fresh
        pending, seen = [grown], {grown}
        while pending:
            chosen = pending.pop()
            if fits[0](chosen & before) and fits[1](chosen):
                yield chosen
                continue
            for number in _members(chosen):
                smaller = chosen & ~(1 << number)
                if smaller not in seen and self._takes_room(number, smaller):
                    seen.add(smaller)
                    pending.append(smaller)

    def _takes_room(self, number: int, others: Set) -> bool:
        """Whether a boundary needs anything that is not a path which others need, too."""
        boundary = self._boundaries[number]
        if boundary.states or any(boundary.windows):
            return True
        return not any(boundary.path & ~self._boundaries[other].path == 0 for other in _members(others))

    def _room_beside(self, running: tuple[Boundary, ...]) -> Fits:
        """Whether a set of boundaries fits into the pools beside what is running."""

        @cache
        def fits(kept: Set) -> bool:
            held = [*running, *(self._boundaries[number] for number in _members(kept))]
            path, states = 0, 0
            windows = [0] * len(self._windows)
            for each in held:
                path |= each.path
                states += each.states
                for index, pages in enumerate(each.windows):
                    windows[index] |= pages
            rooms = zip(windows, self._window_room, strict=True)
            is_enough = path.bit_count() <= self._path_room and states <= self._state_room
            return is_enough and all(pages.bit_count() <= room for pages, room in rooms)

        return fits

    def _number(self, space: Space, prefix: Tokens, *, bare: bool) -> int:
        name = (space, prefix, bare)
        if name not in self._numbers:
            self._numbers[name] = len(self._boundaries)
            self._boundaries.append(self._boundary(space, prefix, bare=bare))
        return self._numbers[name]

    def _boundary(self, space: Space, prefix: Tokens, *, bare: bool) -> Boundary:
        count = len(prefix)
        starts = [count if bare else max(0, count - (c.coverage.window_tokens or 0)) for c in self._windows]
        return Boundary(
            space,
            prefix,
            hit=count - int(self._rebuild_tokens) if bare else count,
            path=self._page_set(space, prefix, 0),
            windows=tuple(self._page_set(space, prefix, start) for start in starts),
            states=len(self._points) if not bare else 0,
        )

    def _page_set(self, space: Space, text: Tokens, begin: int) -> Set:
        """The pages of a text from a token on; a page is known by all tokens up to its end."""
        firsts = range(begin // self._page * self._page, len(text), self._page)
        names = [(space, text[: first + self._page]) for first in firsts]
        return sum(1 << self._pages.setdefault(name, len(self._pages)) for name in names)

    def _read(self, exhibit: Exhibit) -> Iterator[Event]:
        versions: dict[str, int] = {}
        running: dict[int, Boundary] = {}
        for step in exhibit.script:
            if isinstance(step, Invalidate):
                versions[step.namespace] = versions.get(step.namespace, 0) + 1
                continue
            request, is_start = step.request, isinstance(step, Start)
            space = (request.namespace, versions.get(request.namespace, 0))
            output = request.output[: step.output_tokens] if isinstance(step, Preempt) else request.output
            text = request.prompt if is_start else request.prompt + output
            running[id(request)] = self._boundary(space, text, bare=False)
            during = tuple(running.values())
            if not is_start:
                del running[id(request)]
            yield Event(space, text, is_start, 0 if is_start else len(request.prompt), during, tuple(running.values()))


def _members(numbers: Set) -> Iterator[int]:
    while numbers:
        lowest = numbers & -numbers
        yield lowest.bit_length() - 1
        numbers ^= lowest


def _common(left: Tokens, right: Tokens) -> int:
    """How many tokens two texts begin with in common."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))


def ceiling(exhibit: Exhibit) -> int:
    """The most prompt tokens that any cache with an exhibit's pools can hit."""
    return Ceiling(exhibit).tokens()
