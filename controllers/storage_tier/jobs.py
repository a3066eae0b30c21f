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

from unified_tree.inputs.arguments import integer
from unified_tree.terms.errors import ConfigurationError, words_of

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
        """Submit a job; never blocks. After `close` it ends at once, with the error "closed" and without a step. So does one
        for which there is nothing to run it, with that as its error.
        """
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

    A thread takes what waits until nothing does. So only a job that finds a thread idle costs its starter the executor's
    submission, of several microseconds: of many that start together, the first `thread_count`. A forked child has no threads,
    and needs jobs of its own.

    Args:
        thread_count: jobs at a time.
    """

    def __init__(self, thread_count: int = 1) -> None:
        thread_count = integer(thread_count, "thread_count", ConfigurationError, minimum=1)
        self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix="unified_tree-storage")
        self._thread_count = self._idle_threads = thread_count
        self._waiting: deque[Job] = deque()
        self._ended: deque[Job] = deque()
        self._closing = threading.Event()
        self._changed = threading.Condition(threading.Lock())
        self._open_count = 0

    def start(self, steps: Steps) -> Job:
        """See Jobs.start."""
        job = Job(steps)
        with self._changed:
            self._open_count += 1
            is_closed = self._closing.is_set()
            if not is_closed:
                self._waiting.append(job)
                if not self._idle_threads:
                    return job
                self._idle_threads -= 1
        if is_closed:
            self._end(job, "closed")
            return job
        try:
            self._pool.submit(self._run_waiting)
        except BaseException as failure:  # no thread can be had, or the interpreter ends: others that wait hang on it, too
            with self._changed:
                self._rest()
            self._end_waiting("closed" if self._closing.is_set() else words_of(failure))
            if not isinstance(failure, RuntimeError):
                raise
        return job

    def _rest(self) -> None:
        """A thread has nothing to do; the lock is held. An executor that found no new thread may send an old one twice."""
        self._idle_threads = min(self._thread_count, self._idle_threads + 1)

    def _end_waiting(self, error: str) -> None:
        """End what waits, if no thread is left that would take it."""
        with self._changed:
            left = list(self._waiting) if self._idle_threads == self._thread_count else []
            if left:
                self._waiting.clear()
        for job in left:
            self._end(job, error)

    def ended(self) -> list[Job]:
        """See Jobs.ended."""
        found = []
        while self._ended:
            found.append(self._ended.popleft())
        return found

    def wait(self) -> None:
        """See Jobs.wait."""
        with self._changed:
            while self._open_count:
                self._changed.wait()

    def close(self) -> None:
        """See Jobs.close."""
        with self._changed:
            self._closing.set()
        self._pool.shutdown(wait=True)
        self._end_waiting("closed")

    def _run_waiting(self) -> None:
        while (job := self._next()) is not None:
            self._run(job)

    def _next(self) -> Job | None:
        with self._changed:
            if self._waiting:
                return self._waiting.popleft()
            self._rest()
            return None

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
            error = words_of(failure)
        self._end(job, error)

    def _end(self, job: Job, error: str | None) -> None:
        job.error = error
        self._ended.append(job)
        with self._changed:
            self._open_count -= 1
            if not self._open_count:
                self._changed.notify_all()
