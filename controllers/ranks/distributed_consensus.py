"""The consensus of several processes, over torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from os import urandom
from time import monotonic_ns
from typing import TYPE_CHECKING

from unified_tree.controllers.ranks.gloo_reduction import GlooReduction
from unified_tree.controllers.ranks.message_shape import MessageShape
from unified_tree.controllers.ranks.ticked_consensus import TickedConsensus

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from unified_tree.controllers.ranks.rank_watch import RankWatch


class DistributedConsensus(TickedConsensus):
    """A Consensus of all ranks of a process group: one asynchronous all-reduce of a fixed number of bytes a tick.

    All ranks create theirs, with the same shape, at the same point in their use of the group; that never waits. A dead rank is
    noticed as soon as its connections close, a stopped or late one after the time-out. Pending gloo operations end by
    themselves within the time-out, or at once with `destroy_process_group`.

    Cost of a tick, idle or not: 0.7 µs of bookkeeping (40 with all slots voted in) and what gloo needs. `python -m
    benches.ranks` measures it: two processes on two cores of an AMD EPYC took 0.2 ms at best over loopback, and 0.3 to 0.7 in
    the median while others kept these cores busy; four processes on them took 1.5 at best, as gloo's threads wait for a core.

    Args:
        group: a gloo group on CPU, best created for this purpose with `torch.distributed.new_group(backend="gloo")`.
        shape: how much a message holds.
        timeout_s: how long after it was sent a message may wait for those of the others: more than the largest difference
            between the ranks' steps.
        join_timeout_s: the same for what is sent when this is made, as ranks start at different times.
        clock: monotonic nanoseconds.
        watch: of the same ranks, so that errors name the late one; it is not closed here.
        draw: see TickedConsensus.

    Raises ConfigurationError for invalid time-outs, and RankError if the group has lost a rank already.
    """

    def __init__(
        self,
        group: ProcessGroup,
        shape: MessageShape | None = None,
        *,
        timeout_s: float = 30.0,
        join_timeout_s: float = 300.0,
        clock: Callable[[], int] = monotonic_ns,
        watch: RankWatch | None = None,
        draw: Callable[[int], bytes] = urandom,
    ) -> None:
        reduction = GlooReduction(group, timeout_s=timeout_s, join_timeout_s=join_timeout_s, clock=clock, watch=watch)
        super().__init__(shape or MessageShape(), reduction, draw)
