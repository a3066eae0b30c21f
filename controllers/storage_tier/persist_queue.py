"""The queue of boundaries that were copied to host and are to be written to the store, some at a time, first in first out.

A boundary is a length one can resume from. Only those being written are locked. A waiting boundary may be evicted; it is then
dropped and counted. So a slow store reduces what is stored, but never blocks requests. A boundary is written with its
ancestors' pages, unless the store is known to hold them.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final

from unified_tree.controllers.storage_tier.persist_job import PersistJob
from unified_tree.lookup.matching import collect_at, key_of
from unified_tree.terms.errors import StaleBoundaryError
from unified_tree.terms.tier import PAGE_ID_BYTES, Tier

if TYPE_CHECKING:
    from unified_tree.controllers.storage_tier.jobs import Job
    from unified_tree.controllers.storage_tier.tier_store import TierStore
    from unified_tree.locks.locks import Receipt
    from unified_tree.nodes.node import Node
    from unified_tree.terms.results import Boundary

HOST: Final = Tier.HOST
LOOKS: Final = 4
"""So many boundaries that wait for a retry are looked at in a poll: whether they are still there."""


class OpenPersist:
    """A boundary that is being written, the lock on its pages, and its number for the ranks."""

    __slots__ = ("job", "number", "receipt")

    def __init__(self, job: PersistJob, receipt: Receipt, number: int) -> None:
        self.job = job
        self.receipt = receipt
        self.number = number


class PersistQueue:
    """Writes boundaries to the store."""

    def __init__(self, shared: TierStore) -> None:
        self._shared = shared
        self._policy = shared.tier.persist
        self._jobs = shared.tier.writing
        self._ranks = shared.ranks
        self._is_single_rank = shared.ranks.is_single_rank
        self._state, self._locks = shared.tree.state, shared.tree.locks
        composition, index_of = shared.composition, self._state.layout.index_of
        self._paths = [(access.name, index_of(access.name)) for access in composition.paths]
        self._required = [(name, i) for name, i in self._paths if i in self._state.layout.required_paths]
        self._windows = [(access.name, index_of(access.name), access.need) for access in composition.trailing]
        self._waiting: OrderedDict[Boundary, None] = OrderedDict()
        self._open: dict[Job, OpenPersist] = {}
        self._failed: OrderedDict[Boundary, None] = OrderedDict()
        self._unlooked: list[Boundary] = []
        self._retry_at = inf

    @property
    def retry_count(self) -> int:
        """How many boundaries a fault kept from the store, and are tried again."""
        return len(self._failed)

    @property
    def waiting_count(self) -> int:
        """How many boundaries wait."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether adding another boundary drops the oldest."""
        return len(self._waiting) >= self._policy.max_waiting

    @property
    def is_busy(self) -> bool:
        """Whether anything is to be written."""
        return bool(self._waiting or self._open)

    def add(self, boundary: Boundary) -> None:
        """Queue a boundary on host for writing. Cost: O(1)."""
        if boundary.length == 0 or boundary in self._waiting:
            return
        if self.is_full:
            oldest, _ = self._waiting.popitem(last=False)
            self._shared.count_drop("persist queue full", oldest)
        self._waiting[boundary] = None

    def poll(self) -> None:
        """Account for ended writes, and start the next. Cost: a lock on the boundary that starts, and a copy of the tokens and
        page ids behind the longest prefix of it that was written lately. While boundaries wait for a retry, also LOOKS look-ups
        of a boundary.
        """
        if self._open:
            ended = self._jobs.ended()
            if ended:
                self._note(ended)
        while self._waiting and len(self._open) < self._policy.max_open:
            boundary, _ = self._waiting.popitem(last=False)
            self._begin(boundary)
        if self._failed:
            self._drop_stale()
        if self._failed and not self._waiting and len(self._open) < self._policy.max_open:
            self._retry()

    def _begin(self, boundary: Boundary) -> bool:
        """Start to write a boundary. False, and it is dropped, if it cannot be written any more."""
        shared = self._shared
        try:
            receipt = self._locks.lock(boundary, HOST, None)
        except StaleBoundaryError:
            shared.count_drop("persist stale", boundary)
            return False
        try:
            refusal = self._start(receipt)
        except BaseException:
            receipt.release()
            raise
        if refusal is not None:
            receipt.release()
            shared.count_drop(refusal, receipt.boundary)
        return refusal is None

    def _start(self, receipt: Receipt) -> str | None:
        """Start to write a locked boundary; why not, if it cannot be. Ranks decide alike, whatever each one's store holds."""
        shared, state, boundary = self._shared, self._state, receipt.boundary
        node, length = self._locks.find(boundary)
        assert node is not None and node.root is not None
        chain = shared.chain(node.root.name[0])
        if chain is None:
            return "persist before the ranks have met"
        known, first_page = shared.known_prefixes.longest(node, length, chain.weights_version), 0
        if self._is_single_rank and shared.stored_digests.is_believed(known.seen):
            first_page = known.seen.page_count
        pages = self._pages(node, length, first_page)
        for name, i in self._required:
            if name not in pages or node.host[i] is None:  # its ancestors have theirs if it has its own
                return "persist not on host"
        key = key_of(node, length, len(known.digests) * state.page_size)
        job = PersistJob(shared.composition, key, pages, known, first_page)
        number = 0 if self._is_single_rank else self._ranks.begin("persist")
        self._open[self._jobs.start(shared.jobs.persist(job, chain))] = OpenPersist(job, receipt, number)
        return None

    def _pages(self, node: Node, length: int, first_page: int) -> dict[str, bytes]:
        """The host pages of every component that has all that a boundary, of a length in a node, needs there; of paths those
        from `first_page` on.
        """
        page_size = self._state.page_size
        found: dict[str, bytes] = {}
        for name, i in self._paths:
            self._collect(found, node, length, name, i, first_page * page_size)
        for name, i, need in self._windows:
            self._collect(found, node, length, name, i, need.first_page(length, page_size) * page_size)
        return found

    def _collect(self, found: dict[str, bytes], node: Node, length: int, name: str, i: int, begin: int) -> None:
        """Add a component's pages of the tokens [begin, length), if it has all of them."""
        pages = b"".join(collect_at(self._state, node, length, i, HOST, begin=begin))
        if len(pages) == (length - begin) // self._state.page_size * PAGE_ID_BYTES:
            found[name] = pages

    def _note(self, ended: list[Job]) -> None:
        """Report ended writes to the other ranks; a lock is released when its write has ended on all of them."""
        for job in ended:
            opened = self._open[job]
            if opened.job.prefix is not None:
                self._shared.known_prefixes.add(opened.receipt.boundary, opened.job.prefix)
            if opened.job.is_to_begin_earlier:
                self.add(opened.receipt.boundary)
            else:
                self._count(job.error, opened.job)
                self._note_failure(opened.receipt.boundary, failed=job.error not in (None, "closed") or _is_fault(opened.job))
            if self._is_single_rank:
                self._release(job)
            else:
                self._ranks.end("persist", opened.number, None, self._release, job)

    def _release(self, job: Job, error: str | None = None) -> None:
        del error
        opened = self._open.pop(job, None)
        if opened is not None:
            opened.receipt.release()

    def _note_failure(self, boundary: Boundary, *, failed: bool) -> None:
        """Whether the store failed to take a boundary. What it failed to take is tried again, one after another: after a pause
        while it goes on to fail, then as soon as the queue has time.
        """
        retry_s = self._policy.retry_s
        if retry_s is None or not self._is_single_rank:
            return
        if not failed:
            self._retry_at = 0.0
            return
        self._retry_at = self._shared.tier.clock() + retry_s
        self._failed[boundary] = None
        self._failed.move_to_end(boundary)
        if len(self._failed) > self._policy.max_waiting:
            oldest, _ = self._failed.popitem(last=False)
            self._shared.count_drop("persist not tried again", oldest)

    def _drop_stale(self) -> None:
        """Drop boundaries that wait for a retry and were evicted meanwhile. Each of n is looked at every n / LOOKS polls."""
        if not self._unlooked:
            self._unlooked = [*self._failed]
        for boundary in self._unlooked[-LOOKS:]:
            if boundary in self._failed:
                try:
                    self._locks.locate(boundary, HOST, None)
                except StaleBoundaryError:
                    del self._failed[boundary]
                    self._shared.count_drop("persist stale", boundary)
        del self._unlooked[-LOOKS:]

    def _retry(self) -> None:
        """Try one boundary again that the store failed to take, if it is time; the next one when that has ended. One that
        cannot be written any more costs no pause: it says nothing of the store, and the next poll tries the next.
        """
        now = self._shared.tier.clock()
        if now >= self._retry_at:
            boundary, _ = self._failed.popitem(last=False)
            if self._begin(boundary):
                assert self._policy.retry_s is not None
                self._retry_at = now + self._policy.retry_s

    def store_is_back(self) -> None:
        """The store answers again, so what it failed to take can be tried now."""
        self._retry_at = 0.0

    def _count(self, error: str | None, job: PersistJob) -> None:
        shared, totals = self._shared, self._shared.totals
        totals.persisted_pages += job.written_pages
        totals.persisted_bytes += job.written_bytes
        if job.is_done:
            totals.persisted_boundaries += 1
            return
        if error is not None:
            shared.broke_off("persist", error, job.key)
        reason = job.failure if error is None else error.split(":")[0]
        shared.count_drop(f"persist incomplete: {reason or 'window or state not on host'}", job.key)

    def close(self) -> None:
        """Release everything; the jobs have been closed."""
        self._note(self._jobs.ended())
        for job in list(self._open):
            self._release(job)
        self._waiting.clear()
        self._failed.clear()
        self._unlooked.clear()


def _is_fault(job: PersistJob) -> bool:
    """Whether a write ended early because the store failed."""
    return job.failure is not None and job.failure.startswith("store ")
