"""Misses and their causes: for each token of a prompt that has to be computed, exactly one reason.

The tokens behind a hit are divided from the front. What lies on host was not loaded. What could once have been resumed from, in
nodes or behind them in ghosts, was evicted: the *deepest* such length decides, for had it stayed, everything up to there would
have been a hit. A spare one is named only for what the length before it did not serve when it went. What is known behind it was
never saved. The rest is new, or known elsewhere, or forgotten, or was in a store that did not answer.

The misses of one prompt are a chain: naming them makes no object besides, and few requests are asked for them.

Behind the tree's end another request may be computing the same tokens. The prompts under way (`InFlight`) stand in the order of
their namespaces and tokens, so the one that agrees longest with a prompt is its neighbour there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from unified_tree.lookup.matching import match, once_boundary, walk
from unified_tree.misses.miss_cause import MissCause
from unified_tree.native.chosen import agreement
from unified_tree.nodes.order import SPARE, STRANDED

if TYPE_CHECKING:
    from unified_tree.declare.keys import Key
    from unified_tree.memory.ghosts import Ghosts
    from unified_tree.nodes.line import Eviction, Ghost, Line
    from unified_tree.nodes.node import Node, Root
    from unified_tree.state.tree_state import TreeState
    from unified_tree.terms.results import Match

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
STORE_FAILED: Final = 14


CAUSES: Final = tuple(MissCause)


@mypyc_attr(acyclic=True, free_list_len=1)
class Miss:
    """The tokens [begin, end) of a prompt, computed for one reason.

    Attributes:
        code: of the cause, as an integer.
        eviction: for EVICTED.
        detail: for NEVER_SAVED why nothing was saved, None if nothing was due; for STORE_FAILED one of those of StoreLoss; for
            LOAD_REFUSED and OTHER_NAMESPACE see there.
        next: the one behind it; None for the last that was found.
    """

    __slots__ = ("begin", "code", "detail", "end", "eviction", "next")

    def __init__(self, code: i64, begin: i64, end: i64, eviction: Eviction | None, detail: str | None) -> None:
        self.code = code
        self.begin = begin
        self.end = end
        self.eviction = eviction
        self.detail = detail
        self.next: Miss | None = None

    @property
    def cause(self) -> MissCause:
        """The reason."""
        return CAUSES[self.code]

    @property
    def tokens(self) -> int:
        """How many tokens."""
        return self.end - self.begin

    def __repr__(self) -> str:
        detail = "" if self.detail is None else f", {self.detail}"
        return f"Miss({self.cause.name}, [{self.begin}, {self.end}){detail})"


NOT_GIVEN: Final = "not given"
NO_ANSWER: Final = "no answer"


@mypyc_attr(acyclic=True)
class StoreLoss:
    """What a fault of a store kept from a prompt, as lengths of it in tokens.

    Attributes:
        listed: up to here the store listed the prompt, and did not give it: NOT_GIVEN. 0 for nowhere.
        believed: up to here the store had the prompt when it last answered, but now did not say: NO_ANSWER. 0 for nowhere.
        unanswered: up to here the store might have had it, but did not say: NO_ANSWER. 0 for nowhere.
    """

    __slots__ = ("believed", "listed", "unanswered")

    def __init__(self, listed: i64, believed: i64, unanswered: i64) -> None:
        self.listed = listed
        self.believed = believed
        self.unanswered = unanswered

    def __repr__(self) -> str:
        return f"StoreLoss(listed={self.listed}, believed={self.believed}, unanswered={self.unanswered})"


@mypyc_attr(acyclic=True)
class Misses:
    """The misses of one prompt, as they are found, from the front on.

    Attributes:
        first, last: of the chain; None for an empty one.
    """

    __slots__ = ("first", "last")

    def __init__(self) -> None:
        self.first: Miss | None = None
        self.last: Miss | None = None

    def add(self, code: i64, begin: i64, end: i64, eviction: Eviction | None, detail: str | None) -> i64:
        """Append one; returns its end."""
        miss = Miss(code, begin, end, eviction, detail)
        last = self.last
        if last is None:
            self.first = miss
        else:
            last.next = miss
        self.last = miss
        return end

    def take(self) -> Miss | None:
        """The first of the chain, which is empty then."""
        first, self.first, self.last = self.first, None, None
        return first


def listed(first: Miss | None) -> list[Miss]:
    """A chain as a list."""
    found = []
    while first is not None:
        found.append(first)
        first = first.next
    return found


def misses(
    state: TreeState,
    key: Key,
    found: Match,
    resumed: int,
    unloaded: tuple[int, str | None],
    in_flight: InFlight | None,
) -> list[Miss]:
    """Why the tokens of a prompt from `resumed` on have to be computed; ascending, without gaps.

    Args: see `find_misses`; no store was about to bring any. Cost: O(1) where little is known behind the hit; else as a match.
    """
    parts = Misses()
    at = find_misses(parts, state, key, key.length, found, resumed, unloaded, 0, in_flight, None)
    add_end(parts, at, key.length)
    return listed(parts.first)


def add_end(parts: Misses, at: i64, count: i64) -> None:
    """Add what is computed of any prompt of `count` tokens, behind the pages that can be resumed from."""
    if at < count - 1:
        at = parts.add(PAGE_REMAINDER, at, count - 1, None, None)
    parts.add(LAST_TOKEN, at, count, None, None)


def end_of_pages(state: TreeState, count: int, resumed: int) -> int:
    """Where the pages of a prompt of `count` tokens end that can be resumed from."""
    return max((count - 1) // state.page_size * state.page_size, resumed)


def find_misses(
    parts: Misses,
    state: TreeState,
    key: Key,
    count: i64,
    found: Match,
    resumed: i64,
    unloaded: tuple[int, str | None],
    in_store: i64,
    in_flight: InFlight | None,
    loss: StoreLoss | None,
) -> i64:
    """As `misses`, without the end of the prompt that fills no page, and the last token. Returns where these begin.

    Args:
        parts: takes them; empty.
        key: the whole prompt, of `count` tokens.
        found: its match, made just before with a limit of its length less one.
        resumed: how many tokens need not be computed.
        unloaded: why what the host has was not loaded, if it was not.
        in_store: up to which length a store was about to bring the prompt when the request waited no longer.
        in_flight: the prompts under way; None if nobody knows.
        loss: the part of the prompt that a fault of a store withheld; None for nothing. Tokens that the store had listed, now
            or before, are lost to the fault, whatever else is known of them. Any other token for which the store did not answer
            is lost to the fault where nothing else is known.
    """
    ghosts = state.ghosts
    assert ghosts is not None
    size: i64 = state.page_size
    whole: i64 = (count - 1) // size * size
    at: i64 = resumed
    found, node = _still_known(state, ghosts, key, count, found)
    length: i64 = 0 if node is None else found.known.length
    reachable: i64 = found.reachable.length
    if at < reachable:
        at = parts.add(unloaded[0], at, reachable, None, unloaded[1])
    if at < in_store:
        at = parts.add(PREFETCH_GIVEN_UP, at, min(in_store, whole), None, None)
    if loss is not None and at < min(loss.listed, whole):
        at = parts.add(STORE_FAILED, at, min(loss.listed, whole), None, NOT_GIVEN)
    if loss is not None and at < min(loss.believed, whole):
        at = parts.add(STORE_FAILED, at, min(loss.believed, whole), None, NO_ANSWER)
    line: Line | None = ghosts.root_line((key.namespace, key.bigram)) if node is None else node.line
    ended: i64 = length
    is_rooted, is_forgotten = line is not None, False
    trail: list[Ghost] | None = None
    if ghosts.archive is not None:
        trail = ghosts.archive.trail(key, length, whole)
    elif line is not None and length < whole and line.owner(length).has_ghosts:
        trail = ghosts.trail(line, length, whole, key.data, key.width_bytes)
        if trail and trail[-1].edge is None:
            trail.pop()
            is_forgotten = True
    if trail:
        ended, line = trail[-1].reached, trail[-1].line
    if line is not None and at < ended:
        at = _known_but_lost(parts, state, key, node, length, line, ended, trail, at)
    if at >= whole:
        return max(whole, resumed)
    if in_flight is not None and in_flight.count:
        computed: i64 = min(in_flight.reach(key, ended), whole)
        if at < computed:
            at = parts.add(IN_FLIGHT, at, computed, None, None)
    if at < whole and (ghosts.root_count > is_rooted or ghosts.former):
        at = _elsewhere(parts, state, ghosts, key, at, whole)
    cause: i64 = NEVER_SEEN
    if is_forgotten:
        cause = UNKNOWN
    elif ended and line is not None and line.end > ended:
        cause = DIVERGED
    _add_unknown(parts, state, at, count, whole, cause, loss)
    return whole


def _still_known(state: TreeState, ghosts: Ghosts, key: Key, count: i64, found: Match) -> tuple[Match, Node | None]:
    """A prompt's match and the node in which it ends, None for none: matched again if that node was evicted since, or cut, to
    make room for this very request.
    """
    if not found.known.length:
        return found, None
    node_id = found.known.node
    node = ghosts.matched
    if node is None or node.id != node_id or node.parent is None:
        node = state.nodes.get(node_id)
    if node is None or node.end < found.known.length:
        found = match(state, key, count - 1, touch=False)
        node = state.nodes.get(found.known.node) if found.known.length else None
    return found, node


def _add_unknown(parts: Misses, state: TreeState, at: i64, count: i64, whole: i64, cause: i64, loss: StoreLoss | None) -> None:
    """Add the tokens up to the end of a prompt's pages of which nothing is known, for a cause."""
    limit: i64 = whole
    if state.layout.required_points:
        grid: i64 = state.layout.save_grid_tokens
        limit = (count - 1) // grid * grid
    if loss is not None and at < min(loss.unanswered, limit):
        at = parts.add(STORE_FAILED, at, min(loss.unanswered, limit), None, NO_ANSWER)
    if at < limit:
        at = parts.add(cause, at, limit, None, None)
    if at < whole:
        parts.add(SAVE_GRID, at, whole, None, None)


def _known_but_lost(
    parts: Misses,
    state: TreeState,
    key: Key,
    node: Node | None,
    length: i64,
    line: Line,
    ended: i64,
    trail: list[Ghost] | None,
    at: i64,
) -> i64:
    """What is known behind a hit was evicted, or never saved. Returns where that ends.

    Args:
        node, length: where the nodes of the prompt end.
        line, ended: where all ends that is known of it.
        trail: the ghosts between.
    """
    once: i64 = ended
    eviction: Eviction | None = None
    if state.layout.is_gated:
        once, eviction = _once(state, key, node, length, line, ended, trail, at)
    end: i64 = min(once, length)
    if at < end:
        at = _add_evicted(parts, state, node, length, once, at, end, eviction)
    if trail is not None:
        for ghost in trail:
            end = min(ghost.reached, once)
            if at < end:
                at = parts.add(EVICTED, at, end, ghost.eviction, None)
    if at < ended:
        saved_end: i64 = ended
        if state.layout.required_points:
            grid: i64 = state.layout.save_grid_tokens
            saved_end = max(at, ended // grid * grid)
        if at < saved_end:
            at = parts.add(NEVER_SAVED, at, saved_end, None, line.last_unsaved(at, saved_end))
        if at < ended:
            at = parts.add(SAVE_GRID, at, ended, None, None)
    return at


def _once(
    state: TreeState,
    key: Key,
    node: Node | None,
    length: i64,
    line: Line,
    ended: i64,
    trail: list[Ghost] | None,
    at: i64,
) -> tuple[i64, Eviction | None]:
    """The deepest length that could be resumed from before something was evicted, and what that was."""
    once: i64 = at
    eviction: Eviction | None = None
    if trail is not None:
        for i in range(len(trail) - 1, -1, -1):
            ghost = trail[i]
            if ghost.reached >= ghost.boundary_from:
                once, eviction = ghost.reached, ghost.eviction
                break
        grid: i64 = state.layout.free_grid_tokens
        if grid and trail and trail[-1].reached // grid * grid > once:  # no window is needed there
            once = trail[-1].reached // grid * grid
            eviction = next(ghost.eviction for ghost in trail if ghost.reached >= once)
    archive = None if state.ghosts is None else state.ghosts.archive
    once, noted = line.last_lost(once, ended) if archive is None else archive.last_lost(key, once, ended)
    if noted is not None:
        eviction = noted
    if once >= length or node is None:
        return once, eviction
    evicted: i64 = once_boundary(state, node, length, once)
    return (evicted, eviction_at(state, node, evicted)) if evicted > once else (once, eviction)


def _add_evicted(
    parts: Misses, state: TreeState, node: Node | None, length: i64, once: i64, at: i64, end: i64, eviction: Eviction | None
) -> i64:
    """Add the tokens [at, end) in nodes, which an eviction of the boundary `once` took. Returns `end`.

    When a spare boundary went, the one before it still served almost as much. If that one went later, its loss cost what lies
    before it. Cost: O(1); for a spare boundary as a match for each one before it, up to the first that was not spare.

    Args:
        node, length: where the nodes of the prompt end.
    """
    later: list[tuple[int, Eviction]] = []
    before: i64 = once
    while eviction is not None and eviction.urgency == SPARE:
        while node is not None and length >= before:
            length = node.start
            node = node.parent
        if node is None:
            break
        before = once_boundary(state, node, length, at)
        if before <= at:
            break
        lost = eviction_at(state, node, before)
        if lost is not None and lost is not eviction and lost.clock >= eviction.clock:
            if before < end:
                later.append((int(end), eviction))
                end = before
            eviction = lost
    at = parts.add(EVICTED, at, end, eviction, None)
    for other_end, other in reversed(later):
        at = parts.add(EVICTED, at, other_end, other, None)
    return at


def eviction_at(state: TreeState, node: Node, length: i64) -> Eviction | None:
    """The eviction by which a length at or above a node's end ceased to be a boundary: the last one there that did not take
    what another one had stranded. Cost: O(nodes of the windows).
    """
    at: Node | None = node
    while at is not None and at.start >= length:
        at = at.parent
    reach = 1
    for _, window in state.layout.required_windows:
        reach = max(reach, window.most_tokens)
    while at is not None and at.end > length - reach:
        lost = at.lost
        if lost is not None:
            last = lost.eviction
            while lost.next is not None:
                lost = lost.next
                this = lost.eviction
                if last.urgency == STRANDED or (this.urgency != STRANDED and this.at_s > last.at_s):
                    last = this
            return last
        at = at.parent
    return None


def _elsewhere(parts: Misses, state: TreeState, ghosts: Ghosts, key: Key, at: i64, whole: i64) -> i64:
    """What is known of a prompt under other weights, or in another namespace. Returns where that ends."""
    name = (key.namespace, key.bigram)
    for roots, lines in reversed(ghosts.former):
        root, line = roots.get(name), lines.get(name)
        if line is not None:
            end = _reach(state, ghosts, key, root, line, whole)
            if end > at:
                return parts.add(OTHER_WEIGHTS, at, end, None, None)
    other, end = _furthest_namespace(state, ghosts, key, at, whole)
    return at if other is None else parts.add(OTHER_NAMESPACE, at, end, None, other)


def _furthest_namespace(state: TreeState, ghosts: Ghosts, key: Key, at: int, whole: int) -> tuple[str | None, int]:
    """The other namespace in which a key is known furthest beyond `at`, and how far; None if there is none.

    Cost: O(nodes passed there, and stretches), and where namespaces have forgotten what they had some times as much.
    """
    name = (key.namespace, key.bigram)
    known = ghosts.elsewhere.beginning(key)
    best = at
    furthest: str | None = None
    if known is None:
        return furthest, best
    if known.first != name:
        end = _reach_in(state, ghosts, key, known.first, whole)
        if end > best:
            best, furthest = end, known.first[0]
    later = known.later
    if later is None:
        return furthest, best
    for stretch, end in reversed(ghosts.elsewhere.passed(later, key, whole)):
        if end <= best:
            break
        for other in reversed(stretch.names):
            if other != name:
                reached = _reach_in(state, ghosts, key, other, whole)
                if reached > best:
                    best, furthest = reached, other[0]
                    if best >= end:
                        return furthest, best
    return furthest, best


def _reach_in(state: TreeState, ghosts: Ghosts, key: Key, name: tuple[str, bool], limit: int) -> int:
    """How far a key is known under the root of a name."""
    line = ghosts.root_line(name)
    return 0 if line is None else _reach(state, ghosts, key, state.roots.get(name), line, limit)


def _reach(state: TreeState, ghosts: Ghosts, key: Key, root: Root | None, line: Line, limit: int) -> int:
    """How far a key is known under a root."""
    length = 0
    if root is not None:
        node, length = walk(state, key, root, limit)
        if node.line is not None:
            line = node.line
    if length < limit and line.owner(length).has_ghosts:
        for ghost in ghosts.trail(line, length, limit, key.data, key.width_bytes):
            if ghost.edge is not None:
                length = ghost.reached
    return length


@mypyc_attr(acyclic=True, free_list_len=1)
class Flight:
    """One prompt under way.

    Attributes:
        key: whose first `length` tokens are the prompt.
        is_found: it is under way.
    """

    __slots__ = ("is_found", "key", "length")

    def __init__(self, key: Key, length: int) -> None:
        self.key = key
        self.length = length
        self.is_found = False


class InFlight:
    """The prompts under way."""

    __slots__ = ("_agreed", "_flights", "_page_size", "_place", "_sought")

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._flights: list[Flight] = []
        self._sought: Key | None = None  # which belongs at `_place`, and agrees so far with a neighbour there
        self._place: i64 = 0
        self._agreed: i64 = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._flights)

    def reach(self, key: Key, length: int) -> int:
        """How far another prompt under way agrees with a key that the tree knows up to `length`; 0 if none does beyond that.

        Cost: O(log n) comparisons of what neighbours have in common.
        """
        if not self._flights or length + self._page_size > key.length:
            return 0
        self._seek(key, key.length)
        return self._agreed if self._agreed > length else 0

    def begin(self, key: Key, count: int, length: int) -> Flight | None:
        """A prompt of `count` tokens will be computed from `length` on; None if it fills no whole page there."""
        flight = Flight(key, count)
        return flight if self.move(flight, length) else None

    def move(self, flight: Flight, length: int) -> bool:
        """The tree knows a prompt up to `length` now; whether it is still under way.

        Cost: O(1); as `reach` when it begins, and as `end` when it is over.
        """
        if length + self._page_size > flight.length:
            if flight.is_found:
                self.end(flight)
            return False
        if not flight.is_found:
            key = flight.key
            if key is not self._sought or key.length != flight.length:
                self._seek(key, flight.length)
            self._flights.insert(self._place, flight)
            self._sought = None
            flight.is_found = True
        return True

    def end(self, flight: Flight) -> None:
        """A prompt is under way no more. Cost: O(n) comparisons of references."""
        flight.is_found = False
        self._sought = None
        flights = self._flights
        for i in range(len(flights)):
            if flights[i] is flight:
                del flights[i]
                return

    def _seek(self, key: Key, count: i64) -> None:
        """Find the place of a key's first `count` tokens, behind its equals, and how far it agrees with a neighbour there."""
        flights = self._flights
        data, width = key.data, key.width_bytes
        page: i64 = self._page_size * width
        end: i64 = count * width
        low: i64 = 0
        high: i64 = len(flights)
        low_agreed: i64 = 0
        high_agreed: i64 = 0
        best: i64 = 0
        while low < high:
            middle = (low + high) // 2
            flight = flights[middle]
            other = flight.key
            agreed: i64 = 0
            if other.namespace != key.namespace:
                is_before = other.namespace < key.namespace
            elif other.bigram != key.bigram:
                is_before = key.bigram
            else:
                its_end: i64 = flight.length * width
                stop: i64 = min(end, its_end)
                agreed = min(low_agreed, high_agreed)  # so far all agree that stand between the two
                if agreed:
                    agreed += agreement(data, memoryview(other.data)[agreed:], agreed, stop, page)
                else:
                    agreed = agreement(data, other.data, 0, stop, page)
                best = max(best, agreed)
                after: i64 = agreed + page
                if after > its_end or after > end:
                    is_before = after > its_end
                else:
                    is_before = bytes(other.data[agreed:after]) < bytes(data[agreed:after])
            if is_before:
                low, low_agreed = middle + 1, agreed
            else:
                high, high_agreed = middle, agreed
        self._sought, self._place, self._agreed = key, low, best // width
