"""Persists: boundaries that came to host go on to the store, one at a time, in the order they came.

Only the boundary being written is pinned; those that wait are not, and one that is gone when its turn comes is dropped and
counted. So a slow store costs persists, never requests. A boundary brings its ancestors' pages along as far as the store is
not known to hold them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from unified_tree.controllers.storage_tier.persist_job import PersistJob
from unified_tree.errors import StaleBoundaryError
from unified_tree.node import Tier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.storage_tier.jobs import Job
    from unified_tree.controllers.storage_tier.storage_controller import StorageController
    from unified_tree.receipt import Boundary


class PersistQueue:
    """All persists of a cache."""

    def __init__(self, controller: StorageController) -> None:
        self._controller = controller
        self._policy = controller.tier.persist
        self._jobs = controller.tier.writing
        self._waiting: dict[Boundary, None] = {}
        self._jobs_open: dict[Job, tuple[int, PersistJob]] = {}
        self._open: dict[int, PersistJob] = {}
        self.done = 0
        self.pages = 0
        self.size_bytes = 0

    @property
    def waiting_count(self) -> int:
        """Boundaries not begun yet."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether another boundary would push the oldest out."""
        return len(self._waiting) >= self._policy.max_waiting

    @property
    def is_busy(self) -> bool:
        """Whether anything is to be written."""
        return bool(self._waiting or self._open)

    def add(self, boundary: Boundary) -> None:
        """Ask for a persist of what is on host. Cost: O(1)."""
        if boundary.length == 0 or boundary in self._waiting:
            return
        if self.is_full:
            del self._waiting[next(iter(self._waiting))]
            self._controller.counters.drop("persist queue full")
        self._waiting[boundary] = None

    def poll(self) -> None:
        """Take in what has been written, and begin the next. Cost: O(pages of the boundary that begins)."""
        self._take_ended()
        while self._waiting and not self._open:
            boundary = next(iter(self._waiting))
            del self._waiting[boundary]
            self._begin(boundary)

    def _begin(self, boundary: Boundary) -> None:
        controller = self._controller
        tree = controller.tree
        try:
            receipt = tree.lock(boundary, Tier.HOST)
        except StaleBoundaryError:
            controller.counters.drop("persist stale")
            return
        key = tree.key_of(boundary)
        pages = self._pages(boundary)
        chain = controller.chain(key.namespace)
        if chain is None or any(name not in pages for name in controller.path_names):
            receipt.release()
            controller.counters.drop("persist before the ranks have met" if chain is None else "persist not on host")
            return
        persist = PersistJob(controller.composition, key, pages, receipt)
        steps = persist.store(controller.store, chain, controller.known, self._policy)
        number = controller.ranks.begin("persist")
        self._open[number] = persist
        self._jobs_open[self._jobs.start(steps)] = number, persist

    def _pages(self, boundary: Boundary) -> dict[str, NDArray[np.int64]]:
        """The host pages of every component that has all that the boundary needs there."""
        controller = self._controller
        length = boundary.length // controller.tree.page_size
        found = {}
        for access in (*controller.composition.paths, *controller.composition.trailing):
            ids = controller.tree.pages(boundary, access.name, Tier.HOST)
            if ids.size == access.window_pages(length, controller.tree.page_size):
                found[access.name] = ids
        return found

    def _take_ended(self) -> None:
        """Tell the ranks what has ended here; what it pins is let go when it has ended everywhere."""
        for job in self._jobs.ended():
            number, persist = self._jobs_open.pop(job)
            self._count(job, persist)
            self._controller.ranks.end("persist", number, None, partial(self._let_go, number))

    def _let_go(self, number: int, error: str | None) -> None:
        del error
        persist = self._open.pop(number, None)
        if persist is not None:
            persist.receipt.release()

    def _count(self, job: Job, persist: PersistJob) -> None:
        self.pages += persist.written_pages
        self.size_bytes += persist.written_bytes
        if job.error not in (None, "closed"):
            self._controller.store.failed(f"persist: {job.error}")
        if persist.is_done:
            self.done += 1
        else:
            reason = job.error.split(":")[0] if job.error is not None else persist.failure
            self._controller.counters.drop(f"persist incomplete: {reason or 'window or state not on host'}")

    def close(self) -> None:
        """Let go of everything; the jobs have been closed."""
        self._take_ended()
        for number in list(self._open):
            self._let_go(number, None)
        self._waiting.clear()
