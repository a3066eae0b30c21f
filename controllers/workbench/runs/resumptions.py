"""Where each request of a workload is to resume, as somebody who knows all of it has planned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.workload import Workload, cut_runs, pack_runs

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.traces.workload import Int64s, Request


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
