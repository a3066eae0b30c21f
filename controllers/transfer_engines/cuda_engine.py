"""Transfers between a GPU and pinned host memory: two side streams, events, and no thread.

Work on a stream cannot be withdrawn, and a launch into a full queue blocks. So a Schedule holds the work, and each direction's
lane gets at most a window of steps, refilled by every call of the engine. An event follows each step; events complete in order,
so only the oldest is polled. `wait_layer` launches all steps that its layer needs and makes the current stream wait for the
event of the last one. Rejected: launching all steps at submission, because a cancel would come too late and a long load would
block the launching thread. A lane is all that the engine knows of a stream, so its scheduling is tested without a GPU.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, cast

from unified_tree.controllers.transfer_engines.guarded_engine import GuardedEngine
from unified_tree.controllers.transfer_engines.ledger import REMEMBERED
from unified_tree.controllers.transfer_engines.schedule import CHUNK_BLOCKS, Schedule
from unified_tree.inputs.arguments import integer
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import ConfigurationError, words_of

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.transfer_engines.schedule import Step
    from unified_tree.controllers.transfer_engines.transfer import Transfer

WINDOW_STEPS = 64
"""On a lane at a time. A step is some ten launches; about a thousand fit into a stream before launching blocks."""

LOADS_FIRST = (EffectKind.LOAD, EffectKind.BACKUP)


class Mark(Protocol):
    """A point in the work of a stream."""

    def has_passed(self) -> bool:
        """Whether all work before it is done; does not wait. May raise RuntimeError if the device has failed."""
        ...

    def make_caller_wait(self) -> None:
        """Let later work of the caller's current stream wait for this point; returns at once."""
        ...

    def wait(self) -> None:
        """Block until all work before it is done. May raise RuntimeError if the device has failed."""
        ...


class Lane(Protocol):
    """A side stream: work given to it runs in order, beside the caller's."""

    def entered(self) -> AbstractContextManager[object]:
        """Within, this is the current stream."""
        ...

    def mark(self) -> Mark:
        """The point after all work given to this lane so far."""
        ...

    def mark_caller(self) -> Mark:
        """The point after all work given to the caller's current stream so far."""
        ...

    def follow(self, mark: Mark) -> None:
        """Let later work of this lane wait for a point of another stream; returns at once."""
        ...


class CudaEngine(GuardedEngine):
    """A TransferEngine on streams; all calls from one thread.

    Call `submit` while the stream that used the pages last is current: transfers wait for the work on it. It also launches up
    to a window of steps. `wait_layer` does not block the host: later work of the current stream waits. It does not make the
    bytes visible to the host; `wait`, `drain` and `close` do, and block. A cancelled transfer ends when its launched steps have
    completed. Transfers progress only while methods of the engine are called. If the device fails, all open and later transfers
    end with that error.

    Args:
        movers: by component; they put their copies on the current stream.
        lanes: one a direction, from `cuda_lanes`.
        window_steps: maximum number of steps on a lane.
        chunk_blocks: maximum number of blocks of one step, for all components or by component; see CpuEngine.
        remembered: see CpuEngine.

    Raises ConfigurationError for numbers that are not positive integers.
    """

    def __init__(
        self,
        movers: Mapping[str, PageMover],
        lanes: Mapping[EffectKind, Lane],
        window_steps: int = WINDOW_STEPS,
        chunk_blocks: int | Mapping[str, int] = CHUNK_BLOCKS,
        remembered: int = REMEMBERED,
    ) -> None:
        self._schedule = Schedule(movers, chunk_blocks, remembered)
        super().__init__(self._schedule.ledger)
        self._lanes = dict(lanes)
        self._window_steps = integer(window_steps, "window_steps", ConfigurationError, minimum=1)
        self._flying: dict[EffectKind, deque[tuple[Step, Mark]]] = {kind: deque() for kind in LOADS_FIRST}
        self._followed: dict[EffectKind, object] = {}
        self._gates: dict[int, list[Mark]] = {}
        self._death: str | None = None
        weakref.finalize(self, _outlast, self._flying).atexit = False

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """See TransferEngine.wait_layer; the current stream waits, the host does not."""
        progress = self._ledger.find(ticket)
        needed = progress.stages_through(layer_id)
        while True:
            gates = self._gates.get(ticket, [])
            if 0 < needed <= len(gates):
                try:
                    gates[needed - 1].make_caller_wait()
                    return
                except RuntimeError as error:
                    self._die(error)
            if self._ledger.has_landed(ticket, layer_id):
                return
            launched = self._launch(EffectKind.LOAD)
            assert launched or progress.has_ended, "a load lacks a layer, but nothing is left to launch"

    def _begin(self, transfers: Sequence[Transfer]) -> None:
        after = None
        if self._death is None:
            try:
                after = self._lanes[EffectKind.LOAD].mark_caller()
            except RuntimeError as error:
                self._die(error)
        self._schedule.submit(transfers, after)
        self._advance()

    def _cancel(self, ticket: int, reason: str) -> None:
        self._schedule.cancel(ticket, reason)
        self._gates.pop(ticket, None)

    def _advance(self) -> None:
        self._pass(blocking=False)

    def _await_change(self) -> None:
        self._pass(blocking=True)

    def _pass(self, *, blocking: bool) -> None:
        """Account for completed steps and refill the lanes; if `blocking`, wait until at least one step has completed."""
        if self._death is not None:
            self._schedule.abandon(self._death)
            return
        try:
            if blocking:
                self._refill()
                for flying in self._flying.values():
                    if flying:
                        flying[0][1].wait()
                        break
            for flying in self._flying.values():
                while flying and flying[0][1].has_passed():
                    self._finish(flying.popleft()[0])
        except RuntimeError as error:
            self._die(error)
        self._refill()

    def _refill(self) -> None:
        """Loads first: a backup gets onto its lane only when all loads are on theirs."""
        for kind in LOADS_FIRST:
            while len(self._flying[kind]) < self._window_steps and self._launch(kind):
                pass
            if self._schedule.has_waiting(kind):
                return

    def _launch(self, kind: EffectKind) -> bool:
        """Put one step on its lane; False if there is none, or if the device fails."""
        step = self._schedule.begin(kind)
        if step is None:
            return False
        lane = self._lanes[kind]
        try:
            if step.after is not self._followed.get(kind):
                lane.follow(cast("Mark", step.after))
                self._followed[kind] = step.after
            with lane.entered():
                self._schedule.fail(step, step.run())
            mark = lane.mark()
        except RuntimeError as error:
            self._die(error)
            return False
        self._flying[kind].append((step, mark))
        if kind is EffectKind.LOAD:
            assert step.through is not None
            for progress in step.lands:
                gates = self._gates.setdefault(progress.ticket, [])
                gates += [mark] * (progress.stages_through(step.through) - len(gates))
        return True

    def _finish(self, step: Step) -> None:
        self._schedule.finish(step)
        for piece in step.pieces:
            if piece.progress.has_ended:
                self._gates.pop(piece.progress.ticket, None)

    def _die(self, error: RuntimeError) -> None:
        self._death = f"the device failed: {words_of(error)}"
        for flying in self._flying.values():
            flying.clear()
        self._gates.clear()
        self._schedule.abandon(self._death)


def _outlast(flying: Mapping[EffectKind, deque[tuple[Step, Mark]]]) -> None:
    """Keep the pools alive until the lanes have completed the steps that a collected engine left on them."""
    for steps in flying.values():
        if steps:
            steps[-1][1].wait()
