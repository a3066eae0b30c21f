"""Eviction that follows a plan: what the plan keeps is kept until it is used, what it does not keep goes first."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.runs.clairvoyance import Clairvoyance, Clairvoyant, last_token
from unified_tree.controllers.workbench.runs.foresight import NEVER, Foresight

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.workbench.runs.resumptions import Resumptions, Saves
    from unified_tree.controllers.workbench.traces.workload import Request, Workload
    from unified_tree.nodes.node import Value
    from unified_tree.policies.tree_view import TreeView


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

    def __call__(self, view: TreeView) -> Clairvoyant:
        """The policy of the cache that is made with this factory."""
        self._policy = Planned(self, view)
        return self._policy

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
        """Who resumes next at exactly this length."""
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
