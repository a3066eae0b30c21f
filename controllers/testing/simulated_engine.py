"""An engine in virtual time, in which one seed decides latencies, order and faults.

Every transfer draws its whole future at submission from a generator of its own, seeded with the engine's seed and its ticket.
So a history does not depend on when anybody looked, and taking one transfer out of a failing run leaves the others as they
were. Transfers move side by side, as over a bus without limit: the order in which they overtake each other is by latency
alone, harder on a controller than a queue would be. A cancelled one goes on moving bytes until it ends.

Events stand in a heap by time: O(log events) each. Bytes move when an event comes due, by a call of this engine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from unified_tree.controllers.testing.simulated_conditions import Faults, Latencies
from unified_tree.controllers.testing.simulated_stage import SimulatedStage, layers_of, stages_of
from unified_tree.controllers.transfer_engines.guarded_engine import CANCELLED, GuardedEngine
from unified_tree.controllers.transfer_engines.ledger import REMEMBERED, Ledger
from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer
from unified_tree.terms.errors import words_of

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.transfer_engines.progress import Progress
    from unified_tree.controllers.transfer_engines.virtual_clock import VirtualClock


class SimulatedEngine(GuardedEngine):
    """A TransferEngine on a virtual clock. Waiting advances the clock to the event that is waited for.

    Args:
        seed: same seed, same calls at the same virtual times: same history.
        clock: shared with whatever else is simulated.
        latencies: of moving, cancelling and telling.
        faults: how often what goes wrong.
        movers: by component, to move real bytes; None to move none, and then every component keeps one layer, 0.
        remembered: see CpuEngine.
    """

    def __init__(
        self,
        seed: int,
        clock: VirtualClock,
        latencies: Latencies | None = None,
        faults: Faults | None = None,
        movers: Mapping[str, PageMover] | None = None,
        remembered: int = REMEMBERED,
    ) -> None:
        self._seed = seed
        self._clock = clock
        self._latencies = Latencies() if latencies is None else latencies
        self._faults = Faults() if faults is None else faults
        self._movers = None if movers is None else dict(movers)
        super().__init__(Ledger(remembered))
        self._random: dict[int, Random] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_count = 0
        self._repeated: list[Completion] = []

    @property
    def next_event_ns(self) -> int | None:
        """When something happens next on the clock; None if nothing will without another call."""
        return self._events[0][0] if self._events else None

    def poll(self) -> list[Completion]:
        """See TransferEngine.poll; with `Faults.twice` a completion may come once more."""
        self._advance()
        completions, repeated = self._ledger.pop_completions(), self._repeated
        self._repeated = []
        for completion in completions:
            random = self._random.pop(completion.ticket)
            if random.random() < self._faults.twice:
                delay_ns = self._draw(random, self._latencies.again_ns)
                self._at(delay_ns, partial(self._repeat, completion))
        return completions + repeated

    def _begin(self, transfers: Sequence[Transfer]) -> None:
        self._advance()
        layers = partial(layers_of, movers=self._movers)
        for transfer, progress in zip(transfers, self._ledger.enter(transfers, layers), strict=True):
            self._random[transfer.ticket] = Random(f"{self._seed} {transfer.ticket}")
            if not progress.has_ended:
                self._plan(progress, transfer)

    def _cancel(self, ticket: int, reason: str) -> None:
        self._advance()
        progress = self._ledger.moving(ticket)
        if progress is None or progress.is_cancelled:
            return
        progress.fail(reason)
        progress.is_cancelled = True
        self._at(self._draw(self._random[ticket], self._latencies.cancel_ns), partial(self._end, progress))

    def _stop(self) -> None:
        """Takes no virtual time."""
        for progress in self._ledger.open():
            self._end(progress)

    def _plan(self, progress: Progress, transfer: Transfer) -> None:
        """Put the stages of a transfer into the heap, up to one that fails, and its end."""
        random, latencies = self._random[transfer.ticket], self._latencies
        due_ns = 0
        for stage in stages_of(transfer, self._movers):
            due_ns += self._draw(random, latencies.stage_ns + stage.page_count * latencies.page_ns)
            if random.random() < self._faults.fails:
                self._at(due_ns, partial(self._fail, progress, stage, random.randrange(stage.page_count + 1)))
                break
            self._at(due_ns, partial(self._land, progress, stage))
        if random.random() < self._faults.late:
            due_ns += self._draw(random, latencies.late_ns)
        self._at(due_ns, partial(self._end, progress))

    def _land(self, progress: Progress, stage: SimulatedStage) -> None:
        if self._move(progress, stage, stage.page_count):
            progress.landed += 1

    def _fail(self, progress: Progress, stage: SimulatedStage, page_count: int) -> None:
        if self._move(progress, stage, page_count):
            progress.fail("a simulated fault")

    def _move(self, progress: Progress, stage: SimulatedStage, page_count: int) -> bool:
        """Whether so many pages were moved; a transfer that has ended or failed moves none."""
        if progress.has_ended or progress.error not in {None, CANCELLED}:
            return False
        try:
            stage.move(self._movers, page_count)
        except Exception as error:
            progress.fail(words_of(error))
            return False
        return True

    def _repeat(self, completion: Completion) -> None:
        self._repeated.append(completion)

    def _end(self, progress: Progress) -> None:
        if not progress.has_ended:
            self._ledger.end(progress)

    def _draw(self, random: Random, duration_ns: int) -> int:
        return round(duration_ns * random.uniform(1, 1 + self._latencies.spread))

    def _at(self, delay_ns: int, event: Callable[[], None]) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (self._clock.now + delay_ns, self._event_count, event))

    def _advance(self) -> None:
        """Let everything happen that is due."""
        while self._events and self._events[0][0] <= self._clock.now:
            heapq.heappop(self._events)[2]()

    def _await_change(self) -> None:
        assert self._events, "a transfer is open, but nothing will happen"
        self._clock.advance(max(0, self._events[0][0] - self._clock.now))
        self._advance()
