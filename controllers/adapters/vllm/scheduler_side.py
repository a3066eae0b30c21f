"""The scheduler side of the connector: hits, loads and saves of every request, and when the tree learns of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unified_tree.controllers.adapters.vllm.engine_request import EngineRequest, Fetching, ScheduledRequest, TrackedRequest
from unified_tree.controllers.adapters.vllm.host_index import HostEvent, HostEvents
from unified_tree.controllers.adapters.vllm.host_misses import HostMisses
from unified_tree.controllers.adapters.vllm.host_sessions import HostSessions
from unified_tree.controllers.adapters.vllm.messages import Job, PageCopies, StepPlan, StepReport
from unified_tree.controllers.adapters.vllm.save_planner import Piece, Save, SavePlanner
from unified_tree.controllers.inspector.inspected import EngineCache
from unified_tree.terms.errors import InsertError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.adapters.vllm.host_index import HostIndex
    from unified_tree.controllers.adapters.vllm.scheduler_store import SchedulerStore
    from unified_tree.controllers.counters.observers import CacheObserver
    from unified_tree.controllers.inspector.inspector import Inspector
    from unified_tree.controllers.inspector.inspector_settings import InspectorSettings
    from unified_tree.locks.locks import Receipt

__all__ = ["EngineRequest", "ScheduledRequest", "SchedulerSide"]


@dataclass(slots=True, kw_only=True)
class Load:
    """A load in flight, and the lock on what it reads; None if that was gone when vLLM told the blocks."""

    tracked: TrackedRequest
    receipt: Receipt | None
    tokens: int


@dataclass(slots=True, kw_only=True)
class Reset:
    """Resets, of which the workers have not yet said whether vLLM slept, and the weights stayed: then nothing is forgotten.

    Attributes:
        job_id: by which they are asked.
        count: how many.
        is_asked: whether a plan went to the workers since.
    """

    job_id: int
    count: int = 1
    is_asked: bool = False


@dataclass(slots=True, kw_only=True)
class OpenJob:
    """A job that some workers have not reported yet."""

    work: Load | Save | Reset
    waiting_workers: int
    has_failed: bool = False


class SchedulerSide:
    """The tree's caller inside vLLM's scheduler.

    Args:
        index: what the host tier holds.
        worker_count: how many workers report every job.
        min_load_tokens: a shorter hit is computed anew.
        hash_tokens: tokens a block hash of the engine; None where nobody follows its events.
        store: the stores of the workers; None without.
        inspector: where the inspector's page is; None for none.
        observers: are told of the requests, and closed with the cache.
        asks_after_sleep: vLLM resets the cache when it goes to sleep, and the workers can tell whether it did.
        infers: see `HostSessions`.
        has_paired_keys: what a block holds depends on the token behind it, too.

    Attributes:
        sessions: of the requests.
        misses: why tokens had to be computed; None if the index keeps no memory of evictions.
        page: the address of the inspector's page; None without one.
    """

    def __init__(
        self,
        index: HostIndex,
        *,
        worker_count: int = 1,
        min_load_tokens: int = 0,
        hash_tokens: int | None = None,
        store: SchedulerStore | None = None,
        inspector: InspectorSettings | None = None,
        observers: Sequence[CacheObserver] = (),
        asks_after_sleep: bool = False,
        infers: bool = False,
        has_paired_keys: bool = False,
    ) -> None:
        self.index = index
        self._asks_after_sleep = asks_after_sleep
        self._has_paired_keys = has_paired_keys
        self._reset: Reset | None = None
        self.store = store
        self._workers = worker_count
        self._min_load_tokens = max(1, min_load_tokens)
        self._hash_tokens = hash_tokens
        self._planner = SavePlanner(index)
        self._tracked: dict[str, TrackedRequest] = {}
        self._jobs: dict[int, OpenJob] = {}
        self._loads: list[Job] = []
        self._next_job = 0
        self._events = HostEvents()
        self._counters: dict[str, int] = {}
        self.sessions = HostSessions(index, infers=infers)
        self.misses = None if index.tree.state.ghosts is None else HostMisses(index.tree, index.counters)
        for observer in observers:
            assert self.misses is not None, "settings with observers have memory for misses"
            index.counters.observers.add(observer)
        self._inspector: Inspector | None = None
        self.page: str | None = None
        if inspector is not None:
            assert self.misses is not None, "settings with an inspector have memory for misses"
            inspected = EngineCache(index.counters, self.misses.ledger)
            self._inspector = inspector.open(inspected.follow(index.tree, None, index))
            self.page = self._inspector.url

    @property
    def open_jobs(self) -> int:
        """How many jobs some worker has not reported."""
        return len(self._jobs)

    @property
    def has_work(self) -> bool:
        """Whether the store has anything to do, for which further steps are needed."""
        return self.store is not None and self.store.is_busy

    def begin(
        self,
        request: EngineRequest,
        namespace: str,
        *,
        is_storable: bool = True,
        session: str | None = None,
        given: object = None,
    ) -> None:
        """Serve a new request; one that is not begun is neither loaded nor saved. The store has only storable ones.

        Args:
            session, given: see `said_of`.
        """
        tracked = TrackedRequest(request=request, namespace=namespace, prompt_tokens=request.num_tokens)
        self.sessions.begin(tracked, session, given)
        tracked.is_storable = is_storable and self.store is not None
        tracked.is_paired = self._has_paired_keys
        self._tracked[request.request_id] = tracked

    def end(self, request_id: str) -> None:
        """The request finished, or was aborted. What it has in flight goes on: the workers report it all the same."""
        tracked = self._tracked.pop(request_id, None)
        if self.misses is not None and tracked is not None:
            self.misses.finished(tracked)
        if tracked is not None and not tracked.open_saves:
            self._ended(tracked)
        if self.store is not None and tracked is not None:
            self.store.cancel(request_id)
        if self._inspector is not None and not self._tracked:  # vLLM makes no steps while it has nothing to do
            self._inspector.tell()

    def matched_tokens(self, request: EngineRequest, local_tokens: int) -> int | None:
        """How many tokens beyond `local_tokens` can be loaded: up to a length where all groups resume, the last token left to
        compute. None while the request has to wait: for the store, or for what the workers say of a sleep.
        """
        tracked = self._tracked.get(request.request_id)
        if tracked is None or not tracked.may_load:
            return 0
        if self._reset is not None or self._waits(tracked, local_tokens):
            return None
        tracked.local_tokens = local_tokens
        match = self.index.tree.match_prefix(tracked.key(request.num_tokens), limit=max(0, request.num_tokens - 1))
        tracked.save_points = match.save_at
        tracked.found = match if self.misses is not None else None
        hit = match.reachable.length - local_tokens
        return hit if hit >= self._min_load_tokens else 0

    def load(self, request_id: str, blocks: Sequence[Sequence[int]], tokens: int) -> None:
        """Load `tokens` of the last match into the request's blocks, with the next plan. What is read is locked.

        vLLM may tell the blocks some steps after the match. If what was promised has gone since, the load fails, and vLLM does
        what it does for every failed load.
        """
        tracked, page_size = self._tracked[request_id], self.index.tree.page_size
        length = tracked.local_tokens + tokens
        boundary = self.index.longest(tracked.key(length), length)
        self._count(hit_tokens=tokens, loads=1)
        if self._reset is not None or boundary.length != length:
            tracked.loaded_tokens = length
            self._lose(tracked, blocks, length)
            return
        receipt, copies = self.index.lock(boundary), []
        for group in self.index.groups:
            first = group.coverage.first_page(length, page_size)
            pages = self.index.pages(receipt.boundary, group.name).tolist()
            assert len(pages) == length // page_size - first
            skip = max(0, tracked.local_tokens // page_size - first)
            targets = tuple(blocks[group.index][first + skip : length // page_size])
            assert all(targets), f"group {group.index} has no block for a page that it needs"
            copies.append(PageCopies(group=group.index, blocks=targets, pages=tuple(pages[skip:])))
        tracked.window_tokens = tracked.loaded_tokens = length
        self._loads.append(self._open(Load(tracked=tracked, receipt=receipt, tokens=tokens), request_id, tuple(copies)))

    def plan(self, step: Iterable[ScheduledRequest]) -> StepPlan:
        """The copies of an engine step."""
        saves = []
        self.sessions.turns.hints.poll()
        if self.index.tree.state.rooms:
            self.index.host.hold_caps()
        for scheduled in step:
            tracked = self._tracked.get(scheduled.request_id)
            if tracked is not None:
                self.sessions.scheduled(tracked)
                if self.misses is not None:
                    self.misses.scheduled(tracked)
            save = self._planner.plan(tracked, scheduled) if tracked is not None else None
            self._tell_removed()
            if save is not None:
                saves.append(self._open(save, scheduled.request_id, save.copies(self.index)))
                self._count(saves=1, saved_pages=sum(len(copies.pages) for copies in saves[-1].copies))
        loads, self._loads = self._loads, []
        messages = () if self.store is None else self.store.take_messages()
        self._tell_removed()
        if self.index.counters.observers.all:
            self.index.counters.observers.tell("polled")
        plan = StepPlan(saves=tuple(saves), loads=tuple(loads), messages=messages)
        if self._reset is None or self._reset.is_asked:
            return plan
        self._reset.is_asked = True
        return replace(plan, reset_job=self._reset.job_id, resets=self._reset.count)

    def complete(self, report: StepReport) -> None:
        """Workers have ended jobs. What all of them have ended comes into the tree, or is unlocked."""
        for job_id, count in sorted(report.finished.items()):
            job = self._jobs[job_id]
            job.waiting_workers -= count
            job.has_failed |= job_id in report.failed
            assert job.waiting_workers >= 0
            if job.waiting_workers:
                continue
            del self._jobs[job_id]
            if isinstance(job.work, Load):
                self._loaded(job.work, has_failed=job.has_failed)
            elif isinstance(job.work, Reset):
                self._answered(job.work, has_slept=not job.has_failed)
            else:
                self._saved(job.work, has_failed=job.has_failed)
        if self.store is not None:
            self.store.take(report.answers)

    def reset(self) -> None:
        """Forget everything. Requests that run are not saved any more; what is in flight is dropped when it ends.

        Where vLLM may be going to sleep, nothing is offered until the workers have said whether it did. Everything stays if
        each reset was that of a sleep, and the weights are those of before.
        """
        for tracked in self._tracked.values():
            tracked.may_save = False
            tracked.hold(None)
        if not self._asks_after_sleep:
            self._forget()
            return
        if self._reset is not None and not self._reset.is_asked:
            self._reset.count += 1
            return
        self._reset = Reset(job_id=self._next_job)
        self._jobs[self._next_job] = OpenJob(work=self._reset, waiting_workers=self._workers)
        self._next_job += 1

    def close(self) -> None:
        """The engine ends, and its workers have."""
        self.sessions.close()
        if self._inspector is not None:
            self._inspector.close()
        observers = self.index.counters.observers
        observers.tell("closed")
        for observer in observers.all:
            observers.remove(observer)
        if self.store is not None:
            self.store.close()

    def take_events(self) -> list[HostEvent]:
        """What came and went since the last call; nothing without `hash_tokens`."""
        events = self._events.take()
        return events if self._hash_tokens is not None else []

    def take_counters(self) -> dict[str, int]:
        """The counters since the last call; empty if nothing happened."""
        self._count(dropped_saves=self._planner.dropped, evicted_pages=self.index.counters.evicted_pages)
        self._planner.dropped = self.index.counters.evicted_pages = 0
        if self.store is not None:
            self._count(**self.store.take_counters())
        if self.misses is not None:
            self._count(**self.misses.take_counters())
        self._count(**self.sessions.take_counters())
        counters, self._counters = self._counters, {}
        return {name: count for name, count in counters.items() if count}

    def _waits(self, tracked: TrackedRequest, local_tokens: int) -> bool:
        """Whether a request waits for the store, which is asked once for what neither host nor the engine's own cache has."""
        if self.store is None or not tracked.is_storable or tracked.fetch is Fetching.OVER:
            return False
        request = tracked.request
        if tracked.fetch is Fetching.UNASKED:
            is_asked = self.store.fetch(request.request_id, tracked.sought(), local_tokens)
            tracked.fetch = Fetching.WAITED_FOR if is_asked else Fetching.OVER
            if not is_asked:
                return False
        due_tokens, loss = self.store.due_tokens(request.request_id), self.store.loss(request.request_id)
        if self.store.waits(request.request_id):
            return True
        tracked.due_tokens, tracked.loss = due_tokens, loss
        tracked.fetch = Fetching.OVER
        self._tell_path(tracked)
        return False

    def _open(self, work: Load | Save, request_id: str, copies: tuple[PageCopies, ...]) -> Job:
        is_lost = isinstance(work, Load) and work.receipt is None
        made = tuple(copy for copy in copies if copy.pages or is_lost)
        job = Job(job_id=self._next_job, request_id=request_id, copies=made, is_lost=is_lost)
        self._next_job += 1
        self._jobs[job.job_id] = OpenJob(work=work, waiting_workers=self._workers)
        return job

    def _answered(self, reset: Reset, *, has_slept: bool) -> None:
        """All workers have said whether resets were those of sleeps over which the weights stayed."""
        if reset is self._reset:  # and no later one waits for its answer
            self._reset = None
        if has_slept:
            self._count(kept_sleeps=reset.count)
        else:
            self._forget()

    def _forget(self) -> None:
        self.index.invalidate()
        self.index.take_given_back()
        self._events.cleared()

    def _lose(self, tracked: TrackedRequest, blocks: Sequence[Sequence[int]], length: int) -> None:
        """Have a load fail that cannot be made any more."""
        first, last = tracked.local_tokens // self.index.tree.page_size, length // self.index.tree.page_size
        copies = tuple(
            PageCopies(group=group.index, blocks=tuple(blocks[group.index][first:last]), pages=())
            for group in self.index.groups
            if group.coverage.is_path
        )
        load = Load(tracked=tracked, receipt=None, tokens=length - tracked.local_tokens)
        self._loads.append(self._open(load, tracked.request.request_id, copies))

    def _loaded(self, load: Load, *, has_failed: bool) -> None:
        if load.receipt is None:
            self._count(lost_loads=1)
            load.tracked.may_load = False
            return
        load.receipt.release()
        if has_failed:  # a page is not what it should be: nothing that stands on it may be offered again
            self._count(failed_loads=1)
            load.tracked.may_load = False
            self.index.invalidate(load.tracked.namespace)
            self._tell_removed()
        else:
            self._count(loaded_tokens=load.tokens)

    def _saved(self, save: Save, *, has_failed: bool) -> None:
        tracked = save.tracked
        tracked.open_saves -= 1
        key = tracked.key(save.pieces[-1].length)
        if has_failed or save.epoch != self.index.epoch or key.length < save.pieces[-1].length:
            self._discard(save.pieces)  # the last: tokens of a step whose output vLLM threw away
        else:
            for number, piece in enumerate(save.pieces):
                self.sessions.turns.inserting(tracked.turn)
                try:
                    result = self.index.publish(key.prefix(piece.length), piece.pages)
                except InsertError:  # what it stands on was invalidated, or an earlier save of the request failed
                    self._discard(save.pieces[number:])
                    break
                finally:
                    self.sessions.turns.inserting(None)
                self.sessions.published(tracked, result.boundary)
                if self.misses is not None:
                    self.misses.published(tracked, piece.length)
                if tracked.open_saves:
                    tracked.hold(self.index.lock_path(result.boundary))
                if tracked.is_storable and self.store is not None and self.index.trailing <= piece.pages.keys():
                    self.store.saved(result.boundary)
                self._tell_stored(tracked, piece, result.unused)
        if not tracked.open_saves:
            tracked.hold(None)
            if self._tracked.get(tracked.request.request_id) is not tracked:
                self._ended(tracked)

    def _ended(self, tracked: TrackedRequest) -> None:
        """Nothing more of a request will come into the tree."""
        if self.misses is not None:
            self.misses.ended(tracked)
        self.sessions.ended(tracked)

    def _discard(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self.index.free(piece.pages)
        self._count(discarded_saves=1)

    def _tell_stored(self, tracked: TrackedRequest, piece: Piece, unused: Mapping[str, NDArray[np.int64]]) -> None:
        """The pages of the first path that the tree took are new to those who follow its events."""
        name = self.index.paths[0]
        if name in piece.pages:
            refused = set(unused[name].tolist()) if name in unused else set()
            pages = piece.pages[name].tolist()
            self._tell_pages(tracked, piece.length // self.index.tree.page_size - len(pages), pages, refused)

    def _tell_path(self, tracked: TrackedRequest) -> None:
        """So are those that a fetch brought; the path is told as far as it is not yet."""
        if self._hash_tokens is not None:
            key = tracked.key(tracked.request.num_tokens)
            path = self.index.path_end(key, key.length)
            pages = self.index.pages(path, self.index.paths[0]).tolist()
            self._tell_pages(tracked, 0, pages, self._events.known(pages))

    def _tell_pages(self, tracked: TrackedRequest, first: int, pages: Sequence[int], but: set[int]) -> None:
        hash_tokens, page_size, hashes = self._hash_tokens, self.index.tree.page_size, tracked.request.block_hashes
        for index, page in enumerate(pages, first):
            start = index * page_size
            if hash_tokens is not None and page not in but and (start + page_size) // hash_tokens <= len(hashes):
                parent = hashes[start // hash_tokens - 1] if start else None
                tokens = tracked.request.all_token_ids[start : start + page_size]
                self._events.stored([page], [hashes[(start + page_size) // hash_tokens - 1]], parent, tokens)

    def _tell_removed(self) -> None:
        pages = self.index.take_given_back()
        if self._hash_tokens is not None:
            self._events.removed(pages)

    def _count(self, **counts: int) -> None:
        for name, count in counts.items():
            self._counters[name] = self._counters.get(name, 0) + count
