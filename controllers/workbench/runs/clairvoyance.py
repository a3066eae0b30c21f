"""Eviction that knows the future: what is needed again last goes first (Belady, 1966).

Belady's rule is optimal for pages of one size, each fetched on its own. A hybrid's values depend on each other and a path can
only be cut from its end, so here it is a reference and not a bound. Requests are foreseen in arrival order, whatever the
scheduler makes of them; `PlannedClairvoyance` knows the scheduler, too.

A use that passes a value by (its request branched off before, or had no need of that window) is not seen by the value's
pool. So every value is noted under the request expected to need it, and ranked anew when that request has arrived.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from sys import byteorder
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.workload import OWN_TOKENS, Workload, cut_runs, pack_runs
from unified_tree.policies.eviction_policy import EvictionPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.components import Composition
    from unified_tree.controllers.workbench.traces.workload import Int64s, Request
    from unified_tree.nodes.node import Value
    from unified_tree.policies.eviction_policy import Rank
    from unified_tree.policies.tree_view import TreeView


TOKEN_BYTES = 8


class Clairvoyance:
    """The factory of one cache's clairvoyant policy, and who tells it what has arrived."""

    def __init__(self, workload: Workload, composition: Composition) -> None:
        self._foresight = Foresight([request.runs for request in workload.requests], workload.block_count)
        self._page_size = composition.page_size
        self._paths = frozenset(i for i, c in enumerate(composition.components) if c.coverage.is_path)
        self._policy: Clairvoyant | None = None
        self._arriving: Request | None = None

    def __call__(self, view: TreeView) -> Clairvoyant:
        """The policy of the cache that is made with this factory."""
        self._policy = Planned(self, view) if isinstance(self, PlannedClairvoyance) else Clairvoyant(self, view)
        return self._policy

    def offered(self, request: Request) -> None:
        """A request is offered to the cache: its use of its blocks is no longer in the future."""
        self._arriving = request
        self._foresight.arrived(request.index)
        self._revise(request.index)

    def admitted(self, request: Request) -> None:
        """A request got its place."""

    def _revise(self, number: int) -> None:
        if self._policy is not None:
            self._policy.revise(number)

    def need(self, value: Value) -> tuple[int, int]:
        """The request after which a value is to be ranked anew, and the one that needs it next; NEVER for none.

        A path value is needed when the first page that it covers is asked for again. A window or a state is needed by a request
        that shares its prefix and no more, so not by one that will pass it by.
        """
        if value.component in self._paths:
            use = self._foresight.next_use(self._first_token(value))
            return use, use
        token = last_token(value)
        use = self._foresight.next_use(token)
        return use, NEVER if use != NEVER and self._passes_by(value.node.end, token) else use

    def _first_token(self, value: Value) -> int:
        """A token of the first page that a value covers."""
        node = value.node
        page_bytes = len(node.edge) // (node.end - node.start) * self._page_size
        return _token(value, len(node.edge) - max(0, value.page_count - 1) * page_bytes)

    def _passes_by(self, length_tokens: int, block: int) -> bool:
        """Whether the next request to list `block`, which ends at `length_tokens`, shares more than that with the one
        arriving now. It will then resume behind that length, from what the one arriving now leaves.
        """
        if self._arriving is None:
            return False
        arriving, size = self._arriving.blocks(), self._arriving.block_tokens
        last, following = (length_tokens - 1) // size, length_tokens // size
        if following >= arriving.size or arriving[last] != block:
            return False
        return self._foresight.next_use(int(arriving[following])) == self._foresight.next_use(block)


class Clairvoyant(EvictionPolicy):
    """Ranks a value by when it is needed again; never comes first, then latest, among equals the least recently used."""

    compares_across_pools = True

    def __init__(self, clairvoyance: Clairvoyance, view: TreeView) -> None:
        self._clairvoyance = clairvoyance
        self._view = view
        self._due: dict[int, set[Value]] = {}

    def rank(self, value: Value) -> Rank:
        """Minus the number of the next request to need it. Notes the value under the request that may change that."""
        revised_at, use = self._clairvoyance.need(value)
        if revised_at != NEVER:
            self._due.setdefault(revised_at, set()).add(value)
        return (-use, value.touched)

    def revise(self, number: int) -> None:
        """The request has arrived: rank anew what it was expected to need. Cost: O(log n) a value."""
        for value in sorted(self._due.pop(number, ()), key=lambda value: (value.node.id, value.component, int(value.tier))):
            self._view.reorder(value)


def last_token(value: Value) -> int:
    """The last token before a value's end."""
    return _token(value, len(value.node.edge))


def _token(value: Value, end: int) -> int:
    """The token of the value's edge that ends at this byte."""
    return int.from_bytes(value.node.edge[end - TOKEN_BYTES : end], byteorder)


NEVER = np.iinfo(np.int32).max
"""The next use of a block that nobody to come uses."""


class Foresight:
    """For every block, the number of the next request that uses it.

    Requests may arrive in another order than that of their numbers: the next use is the lowest number that has not arrived.

    Args:
        uses: of each request, by number, the blocks that it uses, as runs.
        block_count: ids of blocks are below it.

    Memory: four bytes a block, and the changes of the next use along each request's blocks, which are few.
    Cost to make: one pass over all runs, backwards.
    """

    def __init__(self, uses: Sequence[Int64s], block_count: int) -> None:
        self._next_use = np.full(block_count, NEVER, np.int32)
        self._changes: list[list[tuple[int, int, int]]] = [[] for _ in uses]
        self._has_arrived = np.zeros(len(uses), np.bool_)
        for number in range(len(uses) - 1, -1, -1):
            for first, count in uses[number].reshape(-1, 2).tolist():
                self._changes[number] += self._uses(first, count)
                self._next_use[first : first + count] = number

    def _uses(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """The next uses of a run's blocks as (first, end, next use)."""
        uses = self._next_use[first : first + count]
        cuts = [0, *(np.flatnonzero(uses[1:] != uses[:-1]) + 1).tolist(), count]
        return [(first + low, first + high, int(uses[low])) for low, high in pairwise(cuts)]

    def arrived(self, number: int) -> None:
        """This request's use of its blocks is no longer in the future. No effect the second time."""
        if not self._has_arrived[number]:
            self._has_arrived[number] = True
            self._pass_on(number, 0, self._next_use.size)

    def _pass_on(self, number: int, low: int, high: int) -> None:
        """Of the blocks from `low` to before `high` that a request was to use next, which has arrived: who comes after it."""
        for first, end, following in self._changes[number]:
            first, end = max(first, low), min(end, high)
            if first < end:
                uses = self._next_use[first:end]
                uses[uses == number] = following
                if following != NEVER and self._has_arrived[following]:
                    self._pass_on(following, first, end)

    def next_use(self, token: int) -> int:
        """The request that next uses the block of this token id; NEVER for a token that is one request's own."""
        return NEVER if token >= OWN_TOKENS else int(self._next_use[token])


class PlannedClairvoyance(Clairvoyance):
    """Requests are foreseen in the order of a plan, and each at the depth where it is to resume.

    A path is needed by the next request that is to resume from it, unless another one comes before that computes it again. A
    window or state is needed if the next request with its text needs it for itself or for later ones; see Saves.
    """

    def __init__(self, workload: Workload, composition: Composition, planned: Resumptions, saves: Saves) -> None:
        super().__init__(workload, composition)
        requests = [workload.requests[index] for index in planned.order.tolist()]
        self._number_of = np.argsort(planned.order).tolist()
        self._depths = planned.depths[planned.order].tolist()
        self._needed = [saves.needed[index] for index in planned.order.tolist()]
        self._foresight = Foresight([request.runs for request in requests], workload.block_count)
        self._back_of = {
            i: -(-window // self._page_size) * self._page_size
            for i, component in enumerate(composition.components)
            if (window := component.coverage.window_tokens) is not None
        }
        self._resumed_from = {
            back: Foresight([planned.runs(request, back) for request in requests], workload.block_count)
            for back in {None, *self._back_of.values()}
        }
        self._resumed_at: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for number in range(len(requests) - 1, -1, -1):
            depth, request = self._depths[number], requests[number]
            if depth:
                self._resumed_at[int(request.blocks()[(depth - 1) // request.block_tokens]), depth].append(number)
        self._is_over = [False] * len(requests)

    def offered(self, request: Request) -> None:
        """Nothing to do: it may have to wait, and is to find what it resumes from."""

    def admitted(self, request: Request) -> None:
        """A request got its place: its use of its blocks is no longer in the future."""
        number = self._number_of[request.index]
        self._is_over[number] = True
        self._foresight.arrived(number)
        for foresight in self._resumed_from.values():
            foresight.arrived(number)
        self._revise(number)

    def need(self, value: Value) -> tuple[int, int]:
        """See Clairvoyance."""
        end = value.node.end
        if value.component in self._paths:
            token, begin = self._first_token(value), end - value.page_count * self._page_size
            use, listed = self._resumed_from[None].next_use(token), self._foresight.next_use(token)
            return min(listed, use), NEVER if listed < use and self._depths[listed] <= begin else use
        token = last_token(value)
        listed = self._foresight.next_use(token)
        back = self._back_of.get(value.component)
        if back is None:
            return listed, self._next_at(token, end) if self._is_needed(listed, end, end) else NEVER
        begin = end - value.page_count * self._page_size
        if not self._is_needed(listed, begin + 1, end - 1 + back):
            return listed, NEVER
        foresight = self._resumed_from[back]
        return listed, min(foresight.next_use(token), foresight.next_use(self._first_token(value)))

    def _is_needed(self, number: int, least: int, most: int) -> bool:
        """Whether a request needs a boundary of a length from `least` to `most`."""
        if number == NEVER:
            return False
        needed = self._needed[number]
        at = bisect_left(needed, least)
        return at < len(needed) and needed[at] <= most

    def admits(self, value: Value) -> bool:
        """Whether a window or state is needed at its end."""
        end = value.node.end
        return self._is_needed(self._foresight.next_use(last_token(value)), end, end)

    def _next_at(self, block: int, length_tokens: int) -> int:
        """The next request that resumes at exactly this length."""
        numbers = self._resumed_at.get((block, length_tokens), [])
        while numbers and self._is_over[numbers[-1]]:
            numbers.pop()
        return numbers[-1] if numbers else NEVER


class Planned(Clairvoyant):
    """A clairvoyant policy that keeps no window and no state at which nobody is to resume."""

    def __init__(self, clairvoyance: PlannedClairvoyance, view: TreeView) -> None:
        super().__init__(clairvoyance, view)
        self._planned = clairvoyance

    def admits(self, value: Value) -> bool:
        """See AdmissionPolicy."""
        return self._planned.admits(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumptions:
    """A plan.

    Attributes:
        order: indices of the requests, in the order in which they are expected to be admitted; all of them.
        depths: by index, the tokens that a request is to resume from; 0 for none.
    """

    order: Int64s
    depths: Int64s

    def runs(self, request: Request, back_tokens: int | None = None) -> Int64s:
        """The blocks that a request resumes from, or of these only those of the last `back_tokens` tokens."""
        depth, size = int(self.depths[request.index]), request.block_tokens
        runs = cut_runs(request.runs, -(-depth // size))
        if back_tokens is None:
            return runs
        blocks = max(0, depth - back_tokens) // size
        return pack_runs(request.blocks()[blocks : -(-depth // size)])

    def saves(self, workload: Workload) -> Saves:
        """What this plan keeps of windows and states. Cost: O(blocks listed), in numpy, and O(boundaries that are kept)."""
        needed: dict[int, list[int]] = {}
        saved: dict[int, list[int]] = {}
        wanted: dict[int, list[int]] = {}  # by block: depths in it that the next request with this block needs
        is_wanted = np.zeros(workload.block_count, np.bool_)
        for index in reversed(self.order.tolist()):
            request, depth = workload.requests[index], int(self.depths[index])
            blocks = request.blocks()
            asked = [at for block in blocks[is_wanted[blocks]].tolist() for at in wanted.pop(block)]
            is_wanted[blocks] = False
            needed[index] = sorted({at for at in asked if at <= depth} | ({depth} if depth else set()))
            saved[index] = sorted(asked)
            for at in needed[index]:
                block = int(blocks[(at - 1) // request.block_tokens])
                wanted.setdefault(block, []).append(at)
                is_wanted[block] = True
        return Saves(needed=needed, saved=saved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """The windows and states of a plan.

    Attributes:
        needed: by index, the lengths at which boundaries must be there when a request is admitted: where it resumes, and those
            that it passes by and that later ones need, none of which computes them again.
        saved: likewise, those that the next request with this text needs. It computes them, and saves them then, or finds them.
    """

    needed: dict[int, list[int]]
    saved: dict[int, list[int]]

    def with_checkpoints(self, workload: Workload) -> Workload:
        """The workload, in which each request saves what it is to, or its prompt's end, as any, if that is nothing."""
        requests = tuple(replace(request, checkpoints=tuple(self.saved[request.index])) for request in workload.requests)
        return replace(workload, requests=requests)
