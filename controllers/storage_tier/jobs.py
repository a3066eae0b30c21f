"""Jobs: work on a store off the caller's thread. A job is a generator that makes one store call per step.

A step yields how many seconds to pause before the next (usually 0), so that the same job runs on a thread or in virtual time. A
job writes its results to its own records, and the caller reads them after `ended` has returned the job. So nothing is shared
while it runs, except an event that asks it to stop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

Steps = Generator[float, None, None]
"""What a job is; yields pauses in seconds."""
Asking = Generator[float, None, bool]
"""Steps within a job that come to a yes or a no."""


class Job:
    """One job.

    Attributes:
        steps: its generator.
        error: why it was aborted, None if it ran to its end.
    """

    __slots__ = ("error", "steps")

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.error: str | None = None


class Jobs(Protocol):
    """A runner of jobs: starts them in order and runs some at a time."""

    def start(self, steps: Steps) -> Job:
        """Submit a job; never blocks. After `close` it ends at once, with the error "closed" and without a step."""
        ...

    def ended(self) -> list[Job]:
        """The jobs that have ended since the last call, each once. Never blocks. Cost: O(ended)."""
        ...

    def wait(self) -> None:
        """Return when every job that was started has ended."""
        ...

    def close(self) -> None:
        """Abort jobs between two steps, and wait for running steps; no further step starts.

        Aborted jobs end with the error "closed". Idempotent.
        """
        ...


class ThreadJobs:
    """Jobs on threads of their own.

    Args:
        thread_count: jobs at a time.
    """

    def __init__(self, thread_count: int = 1) -> None:
        self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix="unified_tree-storage")
        self._ended: deque[Job] = deque()
        self._closing = threading.Event()
        self._idle = threading.Condition()
        self._running = 0

    def start(self, steps: Steps) -> Job:
        """See Jobs.start."""
        job = Job(steps)
        with self._idle:
            self._running += 1
        try:
            self._pool.submit(self._run, job)
        except RuntimeError:
            self._end(job, "closed")
        return job

    def ended(self) -> list[Job]:
        """See Jobs.ended."""
        found = []
        while self._ended:
            found.append(self._ended.popleft())
        return found

    def wait(self) -> None:
        """See Jobs.wait."""
        with self._idle:
            while self._running:
                self._idle.wait()

    def close(self) -> None:
        """See Jobs.close."""
        self._closing.set()
        self._pool.shutdown(wait=True)

    def _run(self, job: Job) -> None:
        error = None
        try:
            while not self._closing.is_set():
                pause_s = next(job.steps)
                if pause_s:
                    self._closing.wait(pause_s)
            error = "closed"
        except StopIteration:
            pass
        except BaseException as failure:  # a thread's edge: the caller's poll sees it, also that a step wants to exit
            error = f"{type(failure).__name__}: {failure}"
        self._end(job, error)

    def _end(self, job: Job, error: str | None) -> None:
        job.error = error
        self._ended.append(job)
        with self._idle:
            self._running -= 1
            if not self._running:
                self._idle.notify_all()
