"""The worker side of the connector: host memory, and the copies that the scheduler side planned."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from unified_tree.controllers.adapters.vllm.block_group import NO_LAYER, NO_LAYER_BYTES
from unified_tree.controllers.adapters.vllm.block_pages import BlockPages, grouped_blocks
from unified_tree.controllers.adapters.vllm.messages import Job, PageCopies, StepReport
from unified_tree.controllers.pools.host_layout import host_page_bytes
from unified_tree.controllers.pools.host_memory import check_host_memory
from unified_tree.declare.page_format import WHOLE
from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.vllm.block_group import BlockGroup
    from unified_tree.controllers.adapters.vllm.messages import StoreMessage
    from unified_tree.controllers.adapters.vllm.worker_store import WorkerStore
    from unified_tree.declare.page_format import Shard

logger = logging.getLogger(__name__)


class WorkerSide:
    """One worker's host pages and copies. Loads run in a thread of their own, saves in the caller's.

    Args:
        groups: as the scheduler side has them.
        counts: host pages by component, likewise.
        verify: compare checksums when a page is loaded.
        loads: runs the loads, one after another; by default a thread.
        shard: which part of the state this worker holds.
        open_store: opens its store over the host pages; None without one.
        weights: a digest of the model's weights, by which the worker tells whether they stayed the same over a sleep; it gives
            None where that cannot be told.
    """

    def __init__(
        self,
        groups: Sequence[BlockGroup],
        counts: Mapping[str, int],
        *,
        verify: bool = False,
        loads: Executor | None = None,
        shard: Shard = WHOLE,
        open_store: Callable[[Mapping[str, BlockPages]], WorkerStore] | None = None,
        weights: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        self._groups = tuple(groups)
        self._counts = counts
        self._verify = verify
        self._shard = shard
        self._open_store = open_store
        self._digest = weights
        self._weights: bytes | None = None
        """The digest under which the host pages were computed."""
        self._sleeps = 0
        self._is_asleep = False
        self._caches: Mapping[str, torch.Tensor] = {}
        self._block_count = 0
        self._open_loads = 0
        self.store: WorkerStore | None = None
        self._pages: dict[int, BlockPages] = {}
        self._loads = loads or ThreadPoolExecutor(1, thread_name_prefix="unified-tree-load")
        self._lock = threading.Lock()
        self._load_ended = threading.Condition(self._lock)
        self._report = StepReport()
        self._loaded: list[tuple[Job, set[int]]] = []
        """The loads that ended and were not told, with the blocks that were not loaded."""
        self._bad_blocks: set[int] = set()
        self._seconds = {"save": 0.0, "load": 0.0}
        self._bytes = {"save": 0, "load": 0}
        self._stream: torch.cuda.Stream | None = None

    @property
    def pages(self) -> dict[int, BlockPages]:
        """The host pages by group."""
        return self._pages

    def register(self, caches: Mapping[str, torch.Tensor], block_count: int) -> None:
        """Take vLLM's KV cache by layer, and allocate the host pages; a second time, take another cache behind the same pages.

        Raises ConfigurationError for an unsupported format, and if the host pages of all groups do not fit.
        """
        self._caches, self._block_count = caches, block_count
        if self._pages:
            self._drain()
            self.restore()
            return
        check_host_memory(
            sum(self._counts[group.name] * host_page_bytes(group.block_bytes) for group in self._groups),
            component=", ".join(group.name for group in self._groups),
            remedy="give a smaller host_gib; on CPU vLLM's own cache (--gpu-memory-utilization) takes from the same memory",
        )
        for group in self._groups:
            views = self._views(group)
            self._pages[group.index] = BlockPages(
                group, views, self._counts[group.name], verify=self._verify, shard=self._shard
            )
            device = next(iter(views.values())).device
            if device.type == "cuda" and self._stream is None:
                self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        if self._open_store is not None:
            self.store = self._open_store({group.name: self._pages[group.index] for group in self._groups})
        self._weights = self._digest()

    def give_back(self) -> None:
        """vLLM goes to sleep, and its KV cache loses its memory. The host pages stay. Idempotent. Waits for loads."""
        self._drain()
        for pages in self._pages.values():
            pages.give_back()
        self._sleeps += not self._is_asleep
        self._is_asleep = True

    def restore(self) -> None:
        """vLLM has woken up: its KV cache has memory again, and holds anything. Idempotent."""
        for group in self._groups:
            self._pages[group.index].take(self._views(group))
        self._is_asleep = False

    def answer_reset(self, job_id: int, resets: int) -> None:
        """Report whether the resets that a job asks about were those of sleeps since the last answer, and the weights stayed.

        Cost: a pass over the weights.
        """
        weights = self._digest()
        is_kept = self._sleeps == resets and weights is not None and weights == self._weights
        self._weights, self._sleeps = weights, 0
        with self._lock:
            self._report.add(job_id, failed=not is_kept)

    def save(self, jobs: Sequence[Job]) -> None:
        """Copy blocks that the step computed; done when this returns."""
        begin = perf_counter()
        for job in jobs:
            is_failed = not self._copied(job, BlockPages.save)
            with self._lock:
                self._report.add(job.job_id, failed=is_failed)
        self._timed("save", jobs, begin)

    def start_loads(self, jobs: Sequence[Job]) -> None:
        """Begin copies into blocks, in the order given."""
        for job in jobs:
            event: Any = torch.cuda.current_stream().record_event() if self._stream is not None else None
            with self._lock:
                self._open_loads += 1
            self._loads.submit(self._load_job, job, event)

    def start_store(self, messages: Sequence[StoreMessage]) -> None:
        """Begin what the scheduler side asks of the store."""
        for message in messages:
            assert self.store is not None, "the scheduler side has a store, this worker has none"
            self.store.start(message)

    def take_report(self) -> StepReport | None:
        """The jobs that ended since the last call, those of the store too; None if there are none."""
        with self._lock:
            report, self._report = self._report, StepReport()
        if self.store is not None:
            report.answers = {ticket: [answer] for ticket, answer in self.store.take_answers().items()}
        return report if report.finished or report.answers else None

    def take_received(self) -> tuple[set[str], set[str]]:
        """The requests whose load ended since the last call, and those of them that failed.

        Their jobs and bad blocks are told from now on, so whoever asks for this first hears of a load in one step. Otherwise
        the job would be over in one, and vLLM would keep the blocks of an aborted request until the next.
        """
        with self._lock:
            loaded, self._loaded = self._loaded, []
            for job, bad in loaded:
                self._report.add(job.job_id, failed=bool(bad))
                self._bad_blocks |= bad
        return {job.request_id for job, _ in loaded}, {job.request_id for job, bad in loaded if bad}

    def take_bad_blocks(self) -> set[int]:
        """The blocks that were not loaded, since the last call."""
        with self._lock:
            bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_counters(self) -> dict[str, float]:
        """Bytes and seconds of the copies since the last call; empty if there were none."""
        with self._lock:
            found: dict[str, float] = {}
            for kind in ("save", "load"):
                if self._bytes[kind]:
                    found[f"{kind}_bytes"] = self._bytes[kind]
                    found[f"{kind}_seconds"] = self._seconds[kind]
                self._bytes[kind], self._seconds[kind] = 0, 0.0
        return found if self.store is None else found | self.store.take_counters()

    def close(self) -> None:
        """Wait for the loads that run; those that wait are dropped. Close the store."""
        self._loads.shutdown(cancel_futures=True)
        if self.store is not None:
            self.store.close()

    def _views(self, group: BlockGroup) -> dict[str, torch.Tensor]:
        if group.layer_names == (NO_LAYER,):
            device = next(iter(self._caches.values())).device
            return {NO_LAYER: torch.zeros(self._block_count, NO_LAYER_BYTES, dtype=torch.uint8, device=device)}
        return {name: grouped_blocks(self._caches[name], self._block_count) for name in group.layer_names}

    def _drain(self) -> None:
        """Wait until no load runs. vLLM sleeps only when all were reported."""
        with self._load_ended:
            self._load_ended.wait_for(lambda: not self._open_loads)

    def _load_job(self, job: Job, after: torch.cuda.Event | None) -> None:
        begin = perf_counter()
        bad = self._load_blocks(job, after)
        self._timed("load", [job], begin)
        with self._lock:
            self._loaded.append((job, bad))
            self._open_loads -= 1
            self._load_ended.notify_all()

    def _load_blocks(self, job: Job, after: torch.cuda.Event | None) -> set[int]:
        """Load all of a job or nothing; the blocks that were not loaded."""
        every = {block for copies in job.copies for block in copies.blocks}
        if job.is_lost:
            return every
        corrupt = sum(len(self._pages[copies.group].corrupt(copies.pages)) for copies in job.copies)
        if corrupt:
            logger.error("%d pages of request %s are not what was saved; it is not loaded", corrupt, printable(job.request_id))
            return every
        if self._stream is None:
            is_copied = self._copied(job, BlockPages.load)
        else:
            with torch.cuda.stream(self._stream):
                if after is not None:
                    self._stream.wait_event(after)
                is_copied = self._copied(job, BlockPages.load)
                self._stream.synchronize()
        return set() if is_copied else every

    def _copied(self, job: Job, copy: Callable[[BlockPages, PageCopies], None]) -> bool:
        """Whether a job's copies were made. An error of the device fails the job, not the engine."""
        try:
            for copies in job.copies:
                copy(self._pages[copies.group], copies)
        except (RuntimeError, IndexError):
            logger.exception("the copies of request %s failed", printable(job.request_id))
            return False
        return True

    def _timed(self, kind: str, jobs: Sequence[Job], begin: float) -> None:
        size = sum(len(copies.pages) * self._pages[copies.group].block_bytes for job in jobs for copies in job.copies)
        with self._lock:
            self._bytes[kind] += size
            self._seconds[kind] += perf_counter() - begin
