"""Jobs on a store whose calls take as long as one of some rate and latency would, on the replay's virtual clock.

The bytes of all jobs pass one after the other, call by call, in the order in which the calls are due; their latencies pass
side by side. The calls themselves are made at once, on the caller's thread, when their time has come. So a history is the same
in every run in which the store gives the same answers. The library's own stores, in memory and in files, do: they evict by
the order of calls and by the virtual clock. A store with a server may not, since it evicts and gives up by its own clock.
"""

from __future__ import annotations

from heapq import heappop, heappush
from time import perf_counter_ns
from typing import TYPE_CHECKING

from unified_tree.controllers.storage_tier.jobs import Job, Steps
from unified_tree.terms.errors import words_of

if TYPE_CHECKING:
    from unified_tree.controllers.transfer_engines import VirtualClock
    from unified_tree.controllers.workbench.server.metered_storage import MeteredStorage
    from unified_tree.controllers.workbench.server.server_settings import StorageCost

NS_PER_S = 1e9


class PacedJobs:
    """Jobs in virtual time; see Jobs.

    Args:
        clock: shared with the server; `wait` advances it.
        storage: says what a step's calls have moved.
        cost: rate and latency of a call.

    Attributes:
        spent_ns: real nanoseconds in steps, which a server would spend on other threads.
    """

    def __init__(self, clock: VirtualClock, storage: MeteredStorage, cost: StorageCost) -> None:
        self.spent_ns = 0
        self._clock = clock
        self._storage = storage
        self._cost = cost
        self._running: list[tuple[int, int, Job]] = []  # a heap of (due, number of the step, job)
        self._steps = 0
        self._free_ns = 0  # when the bytes of all calls so far have passed
        self._ended: list[Job] = []
        self._is_closed = False

    @property
    def next_event_ns(self) -> int | None:
        """When the next step is due on the clock; None if no job runs."""
        return self._running[0][0] if self._running else None

    def start(self, steps: Steps) -> Job:
        """See Jobs.start."""
        job = Job(steps)
        if self._is_closed:
            job.error = "closed"
            self._ended.append(job)
        else:
            self._go_on(job, self._clock.now)
        return job

    def ended(self) -> list[Job]:
        """See Jobs.ended; does all steps that are due."""
        while self._running and self._running[0][0] <= self._clock.now:
            self._step()
        found, self._ended = self._ended, []
        return found

    def wait(self) -> None:
        """See Jobs.wait."""
        while self._running:
            self._clock.advance(max(0, self._running[0][0] - self._clock.now))
            self._step()

    def close(self) -> None:
        """See Jobs.close."""
        self._is_closed = True
        for _, _, job in sorted(self._running, key=lambda item: item[:2]):
            job.error = "closed"
            self._ended.append(job)
        self._running.clear()

    def _go_on(self, job: Job, due_ns: int) -> None:
        self._steps += 1
        heappush(self._running, (due_ns, self._steps, job))

    def _step(self) -> None:
        due_ns, _, job = heappop(self._running)
        self._storage.take()
        start_ns = perf_counter_ns()
        try:
            pause_s = next(job.steps)
        except StopIteration:
            self._ended.append(job)
            return
        except Exception as failure:  # as at a thread's edge: the caller's poll sees it
            job.error = words_of(failure)
            self._ended.append(job)
            return
        finally:
            self.spent_ns += perf_counter_ns() - start_ns
        calls, moved_bytes = self._storage.take()
        if moved_bytes:
            self._free_ns = max(self._free_ns, due_ns) + round(moved_bytes / self._cost.bytes_per_s * NS_PER_S)
            due_ns = self._free_ns
        self._go_on(job, due_ns + round((calls * self._cost.latency_s + pause_s) * NS_PER_S))
