"""The demand of a served workload: the admissions, their blocks, and since when these were there; the need of a boundary in
each pool, and the room of each pool for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from unified_tree.declare.component import Component

    Int64s: TypeAlias = NDArray[np.int64]
    Room: TypeAlias = int | NDArray[np.int64]
    """For what nobody uses: the same at all admissions, or [requests], at each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRoom:
    """Room that all pools of a demand share.

    Attributes:
        units: how much it is.
        weights: units that a token of the paths takes, then a token of each window, then each state.
    """

    units: Room
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The pools that can run short, and what of them a boundary needs; the others are left out.

    Attributes:
        path_tokens: room of the smallest path pool, in tokens; None for no end.
        windows: of each window's pool, the tokens that a boundary needs before it, in whole pages, and the room for such.
        states: of each pool of states, the room for them.
        grid: boundaries with states are at multiples of it; 1 without.
        rebuild_tokens: so many tokens run again where a request resumes without windows; None where it cannot.
        locks_states: whether a running request may lock the state that it resumed from for longer than its prompt takes: until
            its windows there are gone, too.
        shared: what all these pools share; the room of each is then what it could have of it. None where they share nothing.
    """

    path_tokens: Room | None = None
    windows: tuple[tuple[int, Room], ...] = ()
    states: tuple[Room, ...] = ()
    grid: int = 1
    rebuild_tokens: int | None = None
    locks_states: bool = False
    shared: SharedRoom | None = None

    @property
    def rooms(self) -> list[Room]:
        """What can run short: that of the paths, of each window and of the states, or the one that they share."""
        if self.shared is not None:
            return [self.shared.units]
        paths = [] if self.path_tokens is None else [self.path_tokens]
        return [*paths, *(tokens for _, tokens in self.windows), *self.states]

    @property
    def claims(self) -> list[tuple[int, int]]:
        """Of each pool, paths first, then windows, then states: which room it takes of, and how much a token or state takes."""
        if self.shared is not None:
            return [(0, weight) for weight in self.shared.weights]
        return [(number, 1) for number in range(len(self.rooms))]

    @classmethod
    def of(cls, components: Sequence[Component], page_size: int, rooms: Mapping[str, Room]) -> Demand:
        """Of required components with pages of their own.

        Args:
            rooms: pages by component, of all tiers together; one left out is without end.
        """
        paths: list[Room] = []
        windows: list[tuple[int, Room]] = []
        states: list[Room] = []
        grid, rebuilds = 1, []
        for component in components:
            if not component.required or component.shares is not None:
                continue
            count, suffix = rooms.get(component.name), component.coverage.suffix
            if component.coverage.is_path:
                if count is not None:
                    paths.append(count * page_size)
            elif suffix is not None:
                rebuilds.append(component.rebuild_tokens)
                if count is not None and suffix.back_tokens:  # chunks need nothing at their ends: the bound leaves them out
                    windows.append((-(-suffix.back_tokens // page_size) * page_size, count * page_size))
            else:
                grid = max(grid, component.save_grid_tokens)
                if count is not None:
                    states.append(count)
        can_rebuild = rebuilds and None not in rebuilds and not any(c.required and _is_state(c) for c in components)
        return cls(
            path_tokens=np.minimum.reduce(np.broadcast_arrays(*paths)) if paths else None,
            windows=tuple(windows),
            states=tuple(states),
            grid=grid,
            rebuild_tokens=sum(tokens or 0 for tokens in rebuilds) if can_rebuild else None,
            locks_states=any(component.coverage.window_tokens is not None for component in components),
        )

    @classmethod
    def sharing(
        cls,
        components: Sequence[Component],
        page_size: int,
        blocks: Room,
        page_blocks: Mapping[str, int],
        pinned_tokens: Room = 0,
    ) -> Demand:
        """Of required components whose pages take blocks of one memory.

        Args:
            blocks: of all tiers together.
            page_blocks: of a page, by component with pages of its own.
            pinned_tokens: of paths, in whole pages, for which there must be room besides.
        """
        owners = [component for component in components if component.required and component.shares is None]
        paths = [page_blocks[component.name] for component in owners if component.coverage.is_path]
        suffixes = [(component, component.coverage.suffix) for component in owners]
        windows = [page_blocks[c.name] for c, suffix in suffixes if suffix is not None and suffix.back_tokens]
        states = [page_blocks[component.name] * page_size for component in owners if _is_state(component)]
        blocks = blocks - pinned_tokens // page_size * sum(paths)
        together = {c.name: sum(paths) if c.coverage.is_path else page_blocks[c.name] for c in owners}
        alone = cls.of(components, page_size, {name: blocks // count for name, count in together.items()})
        weights = (*([sum(paths)] if paths else []), *windows, *states)
        return replace(alone, shared=SharedRoom(units=blocks * page_size, weights=weights))


def _is_state(component: Component) -> bool:
    return not component.coverage.is_path and component.coverage.window_tokens is None


NEVER = -1
ALL_TOKENS = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request, at its admission.

    Attributes:
        blocks: ids of the whole blocks of its prompt, int64; equal ids are equal blocks after equal prefixes.
        answer_blocks: of its answer, as far as a later prompt may go on with them.
        block_tokens: tokens of a block.
        prompt_tokens: all of the prompt's.
        prompt_done, done: how many admissions there had been when it had run beyond its prompt, and when it ended; its own is
            one of them. In between it keeps its prompt.
    """

    blocks: Int64s
    block_tokens: int
    prompt_tokens: int
    prompt_done: int
    done: int
    answer_blocks: Int64s | None = None


class Idle:
    """Prefixes between two uses, in order of admission, as runs of tokens that were idle for the same time.

    Time is counted in admissions. A token that request `a` asks for is *idle* from the moment by which each earlier request
    with this token in its prompt had ended, to the admission of `a`. Whoever is to hit it must keep it all that time, whatever
    else happened; and no two requests pay for the same token at the same admission.

    Tokens behind the first that nobody ever computed are left out, and so are those that cannot be hit: parts of a page, and
    the last token.

    Args:
        asked: the requests, in order of admission.
        block_count: ids of blocks are below it.
        page_size: tokens a page.

    Attributes:
        count: of the requests.
        grid: all runs begin and end at multiples of it: the page size, or one token if blocks and pages do not fit together.
        owner: int64 [runs], the request that asks, ascending.
        begin, end: int64 [runs], tokens of its prompt; the runs of a request join each other, from zero.
        since: int64 [runs]: idle at admissions `since` … `owner`, none if that is no range.
        saved: int64 [runs]: a state in it takes room at admissions `saved` … `owner`, likewise. Until `since` somebody runs who
            has passed there: the path is held, but his own state is one of a longer text.
        pinned: int64 [requests]: tokens that running requests keep at each admission, and that nobody had before them, at
            least. What running requests have in their prompts is not idle.

    Cost: O(blocks listed), in numpy.
    """

    def __init__(self, asked: Iterable[Asked | None], block_count: int, page_size: int) -> None:
        idle_since = np.full(block_count, NEVER, np.int64)  # of each block, when its last user had ended
        passed = np.full(block_count, NEVER, np.int64)  # and when one had passed it
        run_counts: list[int] = []
        runs: list[tuple[Int64s, Int64s, Int64s]] = []
        pins: list[tuple[int, int, int]] = []
        self.grid = page_size
        for request in asked:
            if request is None:
                run_counts.append(0)
                continue
            blocks = request.blocks
            its_idle, its_passed = idle_since[blocks], passed[blocks]
            seen = its_idle != NEVER
            seen_count = int(np.count_nonzero(seen))
            prefix = seen_count if seen[:seen_count].all() else int(seen.argmin())
            found = _runs(its_idle[:prefix], its_passed[:prefix], request, page_size)
            pins.append((request.prompt_done, request.done, _fresh_tokens(seen_count, request, page_size)))
            if request.block_tokens % page_size and page_size % request.block_tokens:
                self.grid = 1
            runs.append(found)
            run_counts.append(found[0].size)
            idle_since[blocks] = np.maximum(its_idle, request.done)
            passed[blocks] = np.maximum(its_passed, request.prompt_done)
            if request.answer_blocks is not None:
                for known in (idle_since, passed):
                    known[request.answer_blocks] = np.maximum(known[request.answer_blocks], request.done)
        nothing = np.empty(0, np.int64)
        self.count = len(run_counts)
        self.owner = np.repeat(np.arange(self.count), np.array(run_counts, np.int64))
        self.end, self.since, self.saved = (np.concatenate([nothing, *(each[i] for each in runs)]) for i in range(3))
        self.begin = np.zeros_like(self.end)
        joins = self.owner[1:] == self.owner[:-1]
        self.begin[1:][joins] = self.end[:-1][joins]
        changes = np.zeros(self.count + 1, np.int64)
        for begin, end, tokens in pins:
            changes[begin] += tokens
            changes[end] -= tokens
        self.pinned = np.cumsum(changes)[: self.count]

    def fitting(self, room_tokens: Room) -> Idle:
        """The same, of each request only as much as its idle tokens fit all alone into so much room for paths.

        What a request resumes from was kept, all of it. A token's ancestors are idle for no longer than it, so at each moment
        those that are idle lie one behind the other, up to where the request resumes: from some token on. So it resumes no
        later than that token and the room then, at any moment of them.

        Cost: O(moments log moments + runs).
        """
        lowest = _Lowest(np.maximum(0, np.broadcast_to(room_tokens, self.count)))
        end, last, deepest, since = self.end.tolist(), -1, 0, 0
        rows = zip(self.owner.tolist(), self.begin.tolist(), self.since.tolist(), strict=True)
        for run, (owner, begin, opened) in enumerate(rows):
            if owner != last:
                last, deepest, since = owner, ALL_TOKENS, owner + 1
            if opened < since:
                deepest, since = min(deepest, begin + lowest.of(opened, since)), opened
            end[run] = max(begin, min(end[run], deepest // self.grid * self.grid))
        kept = np.array(end, np.int64) > self.begin
        some = Idle((), 0, self.grid)
        some.count, some.pinned = self.count, self.pinned
        some.end = np.array(end, np.int64)[kept]
        some.owner, some.begin = self.owner[kept], self.begin[kept]
        some.since, some.saved = self.since[kept], self.saved[kept]
        return some


class _Lowest:
    """The lowest of a list between any two places. Cost: O(n log n), in memory as well, and O(1) a question."""

    def __init__(self, values: Int64s) -> None:
        self._over = [values]
        width = 1
        while 2 * width <= values.size:
            shorter = self._over[-1]
            self._over.append(np.minimum(shorter[:-width], shorter[width:]))
            width *= 2

    def of(self, begin: int, end: int) -> int:
        """The lowest from a place to before another one."""
        level = (end - begin).bit_length() - 1
        over = self._over[level]
        return int(min(over[begin], over[end - (1 << level)]))


def _fresh_tokens(seen_count: int, request: Asked, page_size: int) -> int:
    """Tokens of whole pages of a prompt, none of which any earlier one had, of whose blocks so many were seen before."""
    seen = seen_count * request.block_tokens
    return max(0, request.prompt_tokens // page_size - -(-seen // page_size)) * page_size


def _runs(idle: Int64s, passed: Int64s, request: Asked, page_size: int) -> tuple[Int64s, Int64s, Int64s]:
    """The ends of a request's runs, in tokens, and since when each is idle and its states are saved, three times [runs].

    Args:
        idle, passed: the same of each block, [blocks], up to the first that was not seen before.
    """
    size = request.block_tokens
    in_page = page_size // size
    if in_page > 1 and page_size % size == 0:
        pages = idle.size // in_page
        # A page is there with its last block. Its state is saved with that, which may be of an answer behind a prompt.
        idle = idle[: pages * in_page].reshape(pages, in_page).min(axis=1)
        passed, size = passed[in_page - 1 : pages * in_page : in_page], page_size
    grid = page_size if size % page_size == 0 else 1
    most = (request.prompt_tokens - 1) // grid * grid
    count = min(idle.size, -(-most // size))
    if count <= 0:
        return idle[:0], idle[:0], idle[:0]
    is_last = np.ones(count, np.bool_)
    is_last[:-1] = (idle[1:count] != idle[: count - 1]) | (passed[1:count] != passed[: count - 1])
    lasts = is_last.nonzero()[0]
    return np.minimum((lasts + 1) * size, most), idle[lasts], passed[lasts]


def most_path_hits(idle: Idle, room_tokens: Room) -> Int64s:
    """The most prompt tokens that can be hit from so much room for paths, by request, int64 [moments].

    The optimum is exact where paths alone decide. Which tokens to keep is a choice among intervals, one for each use of a token
    that was used before. All tokens take the same room, so the rule is that of Belady (1966), farthest next use: go through
    time, and whenever the kept intervals do not fit, give up those that end last. A token's ancestors are used whenever it is,
    so their intervals end no later: what is given up never has anything kept behind it, and what is kept is a tree.

    Cost: O(runs log runs).
    """
    room = np.maximum(0, np.broadcast_to(room_tokens, idle.count)).tolist()
    kept = (idle.end - idle.begin).tolist()
    owner, since = idle.owner.tolist(), idle.since.tolist()
    first = np.searchsorted(idle.owner, np.arange(idle.count + 1)).tolist()
    begins = np.argsort(idle.since, kind="stable")
    opening = np.searchsorted(idle.since[begins], np.arange(idle.count + 1)).tolist()
    order = begins.tolist()
    latest: list[tuple[int, int]] = []  # runs that are kept, those that end last in front; ended ones are left in it
    used = 0
    hits = np.zeros(idle.count, np.int64)
    for now in range(idle.count):
        for run in order[opening[now] : opening[now + 1]]:
            if owner[run] >= now:
                heappush(latest, (-owner[run], run))
                used += kept[run]
        while used > room[now]:
            run = latest[0][1]
            given_up = min(kept[run], used - room[now])
            kept[run] -= given_up
            used -= given_up
            if not kept[run]:
                heappop(latest)
        for run in range(first[now], first[now + 1]):
            hits[now] += kept[run]
            if since[run] <= now:
                used -= kept[run]
                kept[run] = 0
    return hits
