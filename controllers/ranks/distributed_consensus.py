"""The consensus of several processes, over torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from os import urandom
from time import monotonic_ns
from typing import TYPE_CHECKING

import torch
from torch.distributed import AllreduceOptions, ProcessGroup, ReduceOp

from unified_tree.controllers.ranks.message import Message, MessageShape
from unified_tree.controllers.ranks.ticked_consensus import TickedConsensus
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError, RankError, RankTimeoutError

if TYPE_CHECKING:
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


LONGEST_WAIT_NS = 1_000_000_000
"""Of one wait in torch, which no signal interrupts."""


class GlooReduction:
    """A Reduction over a process group that can reduce CPU tensors by bitwise AND, as gloo can and NCCL cannot.

    gloo's own limit for an operation is set to the time-out too. So operations left behind by a lost rank end by themselves,
    and the group can be destroyed.

    Args:
        group: all ranks, best used for nothing else. It is neither aborted nor destroyed here.
        timeout_s: how long after it was sent a message may wait for those of the others.
        join_timeout_s: the same for the first, when ranks may start at different times.
        clock: monotonic nanoseconds.
        watch: says in errors which rank is late; None if that is not known.
    """

    def __init__(
        self,
        group: ProcessGroup,
        *,
        timeout_s: float,
        join_timeout_s: float,
        clock: Callable[[], int],
        watch: RankWatch | None = None,
    ) -> None:
        for name, value in (("timeout_s", timeout_s), ("join_timeout_s", join_timeout_s)):
            if not 0.001 <= value <= 86_400:
                raise ConfigurationError(f"{name} must be from a millisecond to a day, not {repr_of(value)}")
        if not callable(getattr(group, "allreduce", None)):
            raise ConfigurationError(f"not a process group that this rank is in: {group!r}")
        self.rank: int = group.rank()
        self.ranks: int = group.size()
        self._group: ProcessGroup | None = group
        self._timeout_s = timeout_s
        self._limit_s = join_timeout_s
        self._clock = clock
        self._watch = watch
        self._deadline = 0
        self._message: torch.Tensor | None = None
        self._work: torch.distributed.Work | None = None

    def start(self, message: Message) -> None:
        """See Reduction.start. Cost: one submission to a gloo thread."""
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.BAND)
        options.timeout = timedelta(seconds=self._limit_s)
        self._deadline = self._clock() + round(self._limit_s * 1e9)
        # A copy in torch's own memory: a gloo thread may be the last to let go of it, when there is no Python any more.
        self._message = torch.frombuffer(bytearray(message), dtype=torch.uint8).clone()
        assert self._group is not None, "closed"
        try:
            self._work = self._group.allreduce([self._message], options)
        except RuntimeError as error:
            raise self._gone(error) from error
        if self._watch is not None:
            self._watch.sent += 1

    def finish(self) -> Message:
        """See Reduction.finish."""
        work, message = self._work, self._message
        assert work is not None and message is not None, "nothing was started"
        while not work.is_completed():
            left = self._deadline - self._clock()
            if left <= 0:
                raise self._late()
            # Rounded up: torch counts milliseconds, and takes 0 for ever.
            wait = timedelta(milliseconds=min(left, LONGEST_WAIT_NS) // 1_000_000 + 1)
            with suppress(RuntimeError):  # it waited in vain, or failed; that it came meanwhile is possible too
                work.wait(wait)
        try:
            work.wait()
        except RuntimeError as error:
            raise self._late() if self._clock() >= self._deadline else self._gone(error) from error
        self._work = self._message = None
        self._limit_s = self._timeout_s
        return message.numpy().tobytes()

    def close(self) -> None:
        """See Reduction.close. gloo ends pending operations by itself, in memory that it keeps."""
        self._group = self._work = self._message = None

    def _late(self) -> RankTimeoutError:
        return RankTimeoutError(
            f"rank {self.rank} of {self.ranks} sent a message, and after the time-out of {self._limit_s} s those of the others "
            f"are not all there: a rank hangs, is gone, or is too slow.{self._late_ranks()} Start the ranks anew together, "
            "with a longer time-out if one was slow"
        )

    def _gone(self, error: RuntimeError) -> RankError:
        return RankError(
            f"rank {self.rank} of {self.ranks} lost another one, which died, was closed, or gave up after its time-out of "
            f"{self._limit_s} s; or the group cannot reduce bytes on the CPU by AND, as gloo can.{self._late_ranks()} Start "
            f"the ranks anew together. The error of torch: {error}"
        )

    def _late_ranks(self) -> str:
        late = "" if self._watch is None else self._watch.late()
        return f" {late[0].upper()}{late[1:]}." if late else ""
