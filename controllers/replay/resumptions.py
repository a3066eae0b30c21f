"""Where each request of a workload is to resume, as somebody who knows all of it has planned."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.replay.workload import Workload, cut_runs, pack_runs

if TYPE_CHECKING:
    from unified_tree.controllers.replay.workload import Int64s, Request


NOBODY = -1


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

    def with_checkpoints(self, workload: Workload) -> Workload:
        """The workload, in which each request saves where later ones are to resume, and nowhere else.

        Nor does it where the next request with this text is to compute that place again, and can save it: what is saved earlier
        than need be takes room.
        """
        numbers = np.argsort(self.order).tolist()
        depths = self.depths[self.order].tolist()
        wanted: defaultdict[int, dict[int, int]] = defaultdict(dict)
        is_wanted = np.zeros(workload.block_count, np.bool_)
        for index in self.order.tolist():
            request, depth = workload.requests[index], int(self.depths[index])
            if depth:
                block = int(request.blocks()[(depth - 1) // request.block_tokens])
                wanted[block][depth] = numbers[index]  # the last one is noted
                is_wanted[block] = True
        listed = np.full(workload.block_count, NOBODY, np.int64)
        checkpoints: dict[int, tuple[int, ...]] = {}
        for index in reversed(self.order.tolist()):
            blocks, number = workload.requests[index].blocks(), numbers[index]
            some = blocks[is_wanted[blocks]].tolist()
            checkpoints[index] = tuple(
                sorted(
                    depth
                    for block in some
                    for depth, last in wanted[block].items()
                    if last > number and depths[listed[block]] >= depth
                )
            )
            listed[blocks] = number
        requests = tuple(replace(request, checkpoints=checkpoints[request.index]) for request in workload.requests)
        return replace(workload, requests=requests)
