"""An engine and jobs in virtual time, in which one seed decides latencies, order and faults.

Every transfer draws its whole future at submission from a generator of its own, seeded with the engine's seed and its ticket.
So a history does not depend on when anybody looked, and taking one transfer out of a failing run leaves the others as they
were. Transfers move side by side, as over a bus without limit: the order in which they overtake each other is by latency
alone, harder on a controller than a queue would be. A cancelled one goes on moving bytes until it ends.

Events stand in a heap by time: O(log events) each. Bytes move when an event comes due, by a call of this engine.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from unified_tree.controllers.storage_tier.jobs import Job, Steps
from unified_tree.controllers.transfer_engines.guarded_engine import CANCELLED, GuardedEngine
from unified_tree.controllers.transfer_engines.ledger import REMEMBERED, Ledger
from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer
from unified_tree.nodes.effect import Copy, EffectKind
from unified_tree.terms.errors import ConfigurationError, TransferError, words_of

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.transfer_engines import VirtualClock
    from unified_tree.controllers.transfer_engines.ledger import Progress

    Movers = Mapping[str, PageMover] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Virtual nanoseconds, each drawn evenly from 1 to 1 + `spread` times what is given here.

    Attributes:
        stage_ns: of each layer of a load, and of each component of a backup.
        page_ns: for each page of those, on top.
        cancel_ns: from a cancel to the end of the transfer, if it has not ended by then.
        late_ns: between the last bytes and a completion that is late.
        again_ns: between a completion and its second delivery.
        spread: 0 for the same latency always.

    Raises ConfigurationError for negative values.
    """

    stage_ns: int = 20_000
    page_ns: int = 1_000
    cancel_ns: int = 50_000
    late_ns: int = 1_000_000
    again_ns: int = 1_000_000
    spread: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise ConfigurationError(f"{field.name} must not be negative, as {getattr(self, field.name)!r} is")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities of faults.

    Attributes:
        fails: a stage fails after part of its bytes; the transfer ends with an error.
        late: the completion of a transfer comes `late_ns` after its last bytes; gates do not wait for it.
        twice: a completion is delivered again later, against the contract, to test the caller.

    Raises ConfigurationError for values outside 0 … 1.
    """

    fails: float = 0.0
    late: float = 0.0
    twice: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) <= 1:
                raise ConfigurationError(f"{field.name} must be a probability, which {getattr(self, field.name)!r} is not")


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


@dataclass(frozen=True, slots=True)
class SimulatedStage:
    """One layer of a load, or one component of a backup.

    Attributes:
        copies: what to move.
        layer_id: of a load; None for a backup.
    """

    copies: tuple[Copy, ...]
    layer_id: int | None

    @property
    def page_count(self) -> int:
        """Pages of all its copies."""
        return sum(copy.source.size for copy in self.copies)

    def move(self, movers: Movers, page_count: int) -> None:
        """Move its first `page_count` pages. Raises whatever a mover raises."""
        for copy in self.copies:
            count = min(page_count, copy.source.size)
            page_count -= count
            if movers is None or not count:
                continue
            mover, source, target = movers[copy.component], copy.source[:count], copy.target[:count]
            if self.layer_id is None:
                mover.backup(source, target)
            else:
                mover.load_layers((self.layer_id,), source, target)


def layers_of(transfer: Transfer, movers: Movers) -> tuple[int, ...]:
    """The layers that any of its components keeps, ascending. Raises TransferError for a component without a mover."""
    names = [copy.component for copy in transfer.copies if copy.source.size]
    for name in names:
        if movers is not None and name not in movers:
            raise TransferError(f"transfer {transfer.ticket}: no mover for {name!r}; there are movers for {', '.join(movers)}")
    return tuple(sorted({layer_id for name in names for layer_id in _kept(name, movers)}))


def stages_of(transfer: Transfer, movers: Movers) -> list[SimulatedStage]:
    """Everything it moves, in order; of a backup only the last stage lands it."""
    copies = [copy for copy in transfer.copies if copy.source.size]
    if transfer.kind is EffectKind.BACKUP:
        return [SimulatedStage((copy,), None) for copy in copies]
    return [
        SimulatedStage(tuple(copy for copy in copies if layer_id in _kept(copy.component, movers)), layer_id)
        for layer_id in layers_of(transfer, movers)
    ]


def _kept(component: str, movers: Movers) -> tuple[int, ...]:
    return (0,) if movers is None else movers[component].layer_ids


class SimulatedJobs:
    """Runs the steps that are due when it is asked what has ended; jobs go on side by side, as on threads.

    Args:
        seed: decides the duration of every step.
        clock: advanced by the simulation; `wait` advances it, too.
        step_ns: virtual time of a step, drawn evenly from 1 to 1 + `spread` times this.
        max_concurrent: jobs side by side, others wait for their turn; None for no limit.
    """

    def __init__(
        self,
        seed: int,
        clock: VirtualClock,
        step_ns: int = 50_000,
        spread: float = 2.0,
        max_concurrent: int | None = None,
    ) -> None:
        self._rng = Random(f"jobs {seed}")
        self._clock = clock
        self._step_ns = step_ns
        self._spread = spread
        self._max_concurrent = max_concurrent
        self._running: dict[Job, int] = {}
        self._waiting: deque[Job] = deque()
        self._ended: list[Job] = []
        self._closed = False

    def start(self, steps: Steps) -> Job:
        """See Jobs.start."""
        job = Job(steps)
        if self._closed:
            job.error = "closed"
            self._ended.append(job)
        else:
            self._waiting.append(job)
            self._begin(self._clock.now)
        return job

    def _begin(self, now: int) -> None:
        """Let jobs begin whose turn it is."""
        while self._waiting and (self._max_concurrent is None or len(self._running) < self._max_concurrent):
            self._running[self._waiting.popleft()] = now + self._duration_ns()

    def ended(self) -> list[Job]:
        """See Jobs.ended."""
        while self._running:
            job, due = min(self._running.items(), key=lambda item: item[1])
            if due > self._clock.now:
                break
            self._step(job, due)
        found, self._ended = self._ended, []
        return found

    def wait(self) -> None:
        """See Jobs.wait."""
        while self._running:
            job, due = min(self._running.items(), key=lambda item: item[1])
            self._clock.advance(max(0, due - self._clock.now))
            self._step(job, due)

    def close(self) -> None:
        """See Jobs.close."""
        self._closed = True
        for job in [*self._running, *self._waiting]:
            self._end(job, "closed")
        self._waiting.clear()

    def _duration_ns(self) -> int:
        return int(self._step_ns * (1 + self._rng.random() * self._spread))

    def _step(self, job: Job, due: int) -> None:
        try:
            pause_s = next(job.steps)
        except StopIteration:
            self._end(job, None)
            self._begin(due)
        except Exception as failure:  # as at a thread's edge
            self._end(job, words_of(failure))
            self._begin(due)
        else:
            self._running[job] = due + int(pause_s * 1e9) + self._duration_ns()

    def _end(self, job: Job, error: str | None) -> None:
        self._running.pop(job, None)
        job.error = error
        self._ended.append(job)
