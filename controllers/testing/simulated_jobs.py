"""Jobs in virtual time, on the caller's thread. One seed decides how long every step takes, so every run is reproducible."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from unified_tree.controllers.storage_tier.jobs import Job, Steps
from unified_tree.terms.errors import words_of

if TYPE_CHECKING:
    from unified_tree.controllers.transfer_engines import VirtualClock


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
