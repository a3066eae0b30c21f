"""The causes of a miss: for each token of a prompt that has to be computed, exactly one reason.

The tokens behind a hit are divided from the front. What lies on host was not loaded. What could once have been resumed from, in
nodes or behind them in ghosts, was evicted: the *deepest* such length decides, for had it stayed, everything up to there would
have been a hit. What is known behind it was never saved. The rest is new, or known elsewhere, or forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from unified_tree.matching import match, once_boundary, walk
from unified_tree.miss import Miss

if TYPE_CHECKING:
    from unified_tree.ghosts import Eviction, Ghost, Ghosts
    from unified_tree.in_flight import InFlight
    from unified_tree.keys import Key
    from unified_tree.line import Line
    from unified_tree.node import Node, Root
    from unified_tree.receipt import Match
    from unified_tree.state import TreeState

# The codes of MissCause, as constants that cost nothing to compare.
NEVER_SEEN: Final = 0
DIVERGED: Final = 1
EVICTED: Final = 2
NEVER_SAVED: Final = 3
OTHER_NAMESPACE: Final = 4
OTHER_WEIGHTS: Final = 5
PAGE_REMAINDER: Final = 6
SAVE_GRID: Final = 7
LOAD_REFUSED: Final = 8
LOAD_FAILED: Final = 9
IN_FLIGHT: Final = 10
PREFETCH_GIVEN_UP: Final = 11
LAST_TOKEN: Final = 12
UNKNOWN: Final = 13


@mypyc_attr(acyclic=True)
class Known:
    """How far a key is known along one root, in nodes and in ghosts. Cost: O(ghosts passed), and one comparison of tokens.

    Args:
        line, length: where its last node ends.
        limit: how far to look.

    Attributes:
        trail: the ghosts behind the last node, and how far the key agrees with each.
        line, length: where it ends.
        has_faded: more was known, which has faded.
    """

    __slots__ = ("has_faded", "length", "line", "trail")

    def __init__(self, ghosts: Ghosts, key: Key, line: Line, length: int, limit: int, page_size: int) -> None:
        self.trail: list[tuple[Ghost, int]] | None = None
        self.has_faded = False
        self.line = line
        self.length = length
        if length < limit and line.owner(length).has_ghosts:
            self._follow(ghosts, key.data, key.width_bytes, limit, page_size)

    def _follow(self, ghosts: Ghosts, data: bytes | memoryview, width: int, limit: int, page_size: int) -> None:
        page_bytes, stop = page_size * width, limit * width
        length, trail = self.length, []
        ghost: Ghost | None = None
        while length < limit:
            ghost, common = ghosts.find(self.line, length, ghost, data, length * width, stop, page_bytes)
            if ghost is None:
                break
            if ghost.edge is None:
                self.has_faded = True
                break
            length += common // width
            self.line = ghost.line
            trail.append((ghost, length))
        self.trail = trail
        self.length = length


def misses(
    state: TreeState,
    key: Key,
    found: Match,
    resumed: int,
    unloaded: tuple[int, str | None],
    in_store: int,
    in_flight: InFlight | None,
) -> list[Miss]:
    """Why the tokens of a prompt from `resumed` on have to be computed; ascending, without gaps.

    Args: see `misses_in_pages`. Cost: O(1) where little is known behind the hit; else as a match.
    """
    parts = misses_in_pages(state, key, key.length, found, resumed, unloaded, in_store, in_flight)
    add_end(parts, state, key.length, resumed)
    return parts


def add_end(parts: list[Miss], state: TreeState, count: int, resumed: int) -> None:
    """Add what is computed of any prompt, behind the pages that can be resumed from."""
    at = end_of_pages(state, count, resumed)
    if at < count - 1:
        at = _add(parts, PAGE_REMAINDER, at, count - 1, None, None)
    _add(parts, LAST_TOKEN, at, count, None, None)


def end_of_pages(state: TreeState, count: int, resumed: int) -> int:
    """Where the pages of a prompt of `count` tokens end that can be resumed from."""
    return max((count - 1) // state.page_size * state.page_size, resumed)


def misses_in_pages(
    state: TreeState,
    key: Key,
    count: int,
    found: Match,
    resumed: int,
    unloaded: tuple[int, str | None],
    in_store: int,
    in_flight: InFlight | None,
) -> list[Miss]:
    """As `misses`, without the end of the prompt that fills no page, and the last token.

    Args:
        key: the whole prompt, of `count` tokens.
        found: its match, made just before with a limit of its length less one.
        resumed: how many tokens need not be computed.
        unloaded: why what the host has was not loaded, if it was not.
        in_store: up to which length a store was about to bring the prompt when the request waited no longer.
        in_flight: the prompts under way; None if nobody knows.
    """
    ghosts, size = state.ghosts, state.page_size
    assert ghosts is not None
    parts: list[Miss] = []
    whole = (count - 1) // size * size
    at = resumed
    node_id, length = found.known
    node: Node | None = None
    if length:
        node = state.nodes.get(node_id)
        if node is None:  # evicted since, to make room for this very request
            found = match(state, key, count - 1, touch=False)
            node_id, length = found.known
            node = state.nodes.get(node_id) if length else None
    reachable = found.reachable.length
    if at < reachable:
        at = _add(parts, unloaded[0], at, reachable, None, unloaded[1])
    line: Line | None = ghosts.root_line((key.namespace, key.bigram)) if node is None else node.line
    other_roots = ghosts.root_count - (line is not None)
    if at < in_store:
        at = _add(parts, PREFETCH_GIVEN_UP, at, min(in_store, whole), None, None)
    ended, is_forgotten = length, False
    if line is not None and (at < length or line.owner(length).has_ghosts):
        known = Known(ghosts, key, line, length, whole, size)
        ended, line, is_forgotten = known.length, known.line, known.has_faded
        if at < ended:
            at = _known_but_lost(state, node, length, known, at, parts)
    if at >= whole:
        return parts
    if in_flight is not None and in_flight.count:
        computed = min(in_flight.reach(key, ended), whole)
        if at < computed:
            at = _add(parts, IN_FLIGHT, at, computed, None, None)
    if at < whole and (other_roots or ghosts.former):
        at = _elsewhere(state, ghosts, key, at, whole, parts)
    limit = whole if not state.required_points else (count - 1) // state.save_grid_tokens * state.save_grid_tokens
    if at < limit:
        cause = NEVER_SEEN
        if is_forgotten:
            cause = UNKNOWN
        elif ended and line is not None and line.end > ended:
            cause = DIVERGED
        at = _add(parts, cause, at, limit, None, None)
    if at < whole:
        _add(parts, SAVE_GRID, at, whole, None, None)
    return parts


def _add(parts: list[Miss], cause: int, begin: int, end: int, eviction: Eviction | None, detail: str | None) -> int:
    """Append a part; returns its end."""
    parts.append(Miss(cause, begin, end, eviction, detail))
    return end


def _known_but_lost(state: TreeState, node: Node | None, length: int, known: Known, at: int, parts: list[Miss]) -> int:
    """What is known behind a hit was evicted, or never saved. Returns where that ends."""
    once, eviction = _once(state, node, length, known, at)
    end = min(once, length)
    if at < end:
        at = _add(parts, EVICTED, at, end, eviction, None)
    for ghost, reached in known.trail or ():
        end = min(reached, once)
        if at < end:
            at = _add(parts, EVICTED, at, end, ghost.eviction, None)
    if at < known.length:
        grid = known.length
        if state.required_points:
            grid = max(at, known.length // state.save_grid_tokens * state.save_grid_tokens)
        if at < grid:
            at = _add(parts, NEVER_SAVED, at, grid, None, known.line.last_unsaved(at, grid))
        if at < known.length:
            at = _add(parts, SAVE_GRID, at, known.length, None, None)
    return at


def _once(state: TreeState, node: Node | None, length: int, known: Known, at: int) -> tuple[int, Eviction | None]:
    """The deepest length that could be resumed from before something was evicted, and what that was."""
    trail = known.trail
    if not state.is_gated:
        return known.length, None
    once, eviction = at, None
    for ghost, reached in reversed(trail) if trail is not None else ():
        if reached >= ghost.boundary_from:
            once, eviction = reached, ghost.eviction
            break
    once, noted = known.line.last_lost(once, known.length)
    if noted is not None:
        eviction = noted
    if once > length or node is None:
        return once, eviction
    evicted = once_boundary(state, node, length)
    return (evicted, eviction_at(state, node, evicted)) if evicted > once else (once, eviction)


def eviction_at(state: TreeState, node: Node, length: int) -> Eviction | None:
    """The eviction by which a length at or above a node's end ceased to be a boundary. Cost: O(nodes of the windows)."""
    at: Node | None = node
    while at is not None and at.start >= length:
        at = at.parent
    reach = 1
    for _, window in state.required_windows:
        reach = max(reach, window)
    while at is not None and at.end > length - reach:
        lost = at.lost
        if lost is not None:
            last = lost.eviction
            while lost.next is not None:
                lost = lost.next
                if lost.eviction.at_s > last.at_s:
                    last = lost.eviction
            return last
        at = at.parent
    return None


def _elsewhere(state: TreeState, ghosts: Ghosts, key: Key, at: int, whole: int, parts: list[Miss]) -> int:
    """What is known of a prompt under other weights, or in another namespace. Returns where that ends."""
    name = (key.namespace, key.bigram)
    for roots, lines in reversed(ghosts.former):
        root, line = roots.get(name), lines.get(name)
        if line is not None:
            end = _reach(state, ghosts, key, root, line, whole)
            if end > at:
                return _add(parts, OTHER_WEIGHTS, at, end, None, None)
    other = ghosts.other_namespace(name, key, state.page_size)
    if other is not None:
        line = ghosts.root_line(other)
        if line is not None:
            end = _reach(state, ghosts, key, state.roots.get(other), line, whole)
            if end > at:
                return _add(parts, OTHER_NAMESPACE, at, end, None, other[0])
    return at


def _reach(state: TreeState, ghosts: Ghosts, key: Key, root: Root | None, line: Line, limit: int) -> int:
    """How far a key is known under a root."""
    length = 0
    if root is not None:
        node, length = walk(state, key, root, limit)
        if node.line is not None:
            line = node.line
    return Known(ghosts, key, line, length, limit, state.page_size).length
