"""The scheduler side of the stores: which prompts are fetched to host, and which boundaries are written.

It is the library's `StorageController`, whose jobs send messages to the workers and wait for the answers of all: single flight,
time-outs, the share of the host pages for fetches, the queue of boundaries, and the locks on what is written are its own. The
store it was given keeps nothing; it only describes the pools.

A length counts as stored, and a page as read, only where that is so in every worker, for each of them keeps its own shard under
keys of its own. The jobs run in the scheduler's thread and block nothing: each is a generator that is resumed with every engine
step, until its answers have come.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.components import Composition
from unified_tree.controllers.adapters.vllm.messages import Answer, LookUp, ReadPages, StoreMessage, WritePages
from unified_tree.controllers.pools.formats import formats_of
from unified_tree.controllers.ranks.rank_agreement import SingleRank
from unified_tree.controllers.storage.memory_storage import NullStorage
from unified_tree.controllers.storage_tier.jobs import Job
from unified_tree.controllers.storage_tier.mapped_pages import mapped_pages
from unified_tree.controllers.storage_tier.policies import PersistPolicy, PrefetchPolicy
from unified_tree.controllers.storage_tier.storage_controller import StorageController
from unified_tree.controllers.storage_tier.storage_tier import StorageTier
from unified_tree.controllers.storage_tier.stored_composition import layout_of, stored_pools
from unified_tree.controllers.storage_tier.tier_store import TierStore
from unified_tree.declare.page_format import WHOLE
from unified_tree.terms.errors import StorageError

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.vllm.host_index import HostIndex
    from unified_tree.controllers.storage.key_chain import KeyChain
    from unified_tree.controllers.storage_tier.fetch import Fetch
    from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
    from unified_tree.controllers.storage_tier.jobs import Steps
    from unified_tree.controllers.storage_tier.persist_job import PersistJob
    from unified_tree.declare.keys import Key
    from unified_tree.misses.causes import StoreLoss
    from unified_tree.terms.results import Boundary


WRITES_AT_A_TIME = 16
"""Boundaries; each needs a step of the engine or two."""


class SchedulerStore:
    """Fetches prompts that arrive from the workers' stores, and has them write what was saved.

    Args:
        index: the host tier.
        worker_count: workers, each with a store of its own.
        weights_version: of the model.
        prefetch: when and how long a request waits.
    """

    def __init__(self, index: HostIndex, worker_count: int, weights_version: str, prefetch: PrefetchPolicy) -> None:
        self._index = index
        self._workers = RemoteStoreJobs(worker_count)
        tier = _described(index, weights_version, prefetch)
        shared = TierStore(index.tree, index.host, tier, index.counters, index.weights, SingleRank(), self._workers)
        self._controller = StorageController(shared)
        index.weights.attached(weights_version)
        self._policy = prefetch
        self._counted: dict[str, int] = {}

    @property
    def is_busy(self) -> bool:
        """Whether anything is fetched or written, or waits for it."""
        return self._controller.is_busy

    def fetch(self, request_id: str, key: Key, had_tokens: int) -> bool:
        """Begin to fetch a prompt of which the engine itself has `had_tokens`; whether the request has to wait."""
        page_size = self._index.tree.page_size
        limit = (key.length - 1) // page_size * page_size
        if limit - had_tokens < max(page_size, self._policy.min_tokens):
            return False
        return self._controller.prefetch(request_id, key)

    def waits(self, request_id: str) -> bool:
        """Whether a request goes on waiting; once it does not, it waits no more."""
        requests = self._controller.prefetcher.requests
        if not requests.is_ready(request_id):
            return True
        requests.stop_waiting(request_id)
        return False

    def due_tokens(self, request_id: str) -> int:
        """How long a prefix the stores would still bring for a request, as far as is known; 0 if it waits for nothing."""
        return self._controller.prefetcher.requests.due_pages(request_id) * self._index.tree.page_size

    def loss(self, request_id: str) -> StoreLoss | None:
        """What a fault of a store kept from a request's prompt, as far as is known; None for nothing."""
        return self._controller.prefetcher.requests.loss_of(request_id)

    def cancel(self, request_id: str) -> None:
        """The request is gone."""
        self._controller.prefetcher.requests.cancel(request_id)

    def saved(self, boundary: Boundary) -> None:
        """A boundary has come into the tree."""
        self._controller.backed_up(boundary)

    def take_messages(self) -> tuple[StoreMessage, ...]:
        """What the workers are to do with the next step."""
        self._controller.poll()
        return self._workers.take_messages()

    def take(self, answers: dict[int, list[Answer]]) -> None:
        """Workers have answered: what they have fetched comes into the tree, what they have written is unlocked."""
        self._workers.take(answers)
        self._controller.poll()

    def close(self) -> None:
        """Break off what is under way. The workers must have been closed, for they read into pages that are free now."""
        self._controller.close()

    def take_counters(self) -> dict[str, int]:
        """What was fetched and stored since the last call."""
        totals = self._controller.shared.totals
        counts = {
            "fetched_tokens": totals.prefetched_tokens,
            "fetched_pages": totals.prefetched_pages,
            "stored_pages": totals.persisted_pages,
            "dropped_stores": sum(self._index.counters.drops.values()),
        }
        new = {name: counted - self._counted.get(name, 0) for name, counted in counts.items()}
        self._counted = counts
        return new


def _described(index: HostIndex, weights_version: str, prefetch: PrefetchPolicy) -> StorageTier:
    """A tier with the pools of the index, of which only the sizes matter here."""
    plain = Composition(name="vllm", page_size=index.tree.page_size, components=index.tree.components)
    model = plain.with_formats({name: replace(page_format, shard=WHOLE) for name, page_format in formats_of(plain).items()})
    memory = mapped_pages(model, {component.name: 1 for component in model.components})
    pools = stored_pools(model, layout=layout_of(memory))
    return StorageTier(
        engine=NullStorage(pools),
        pools={pool.name: pool for pool in pools},
        memory=memory,
        weights_version=weights_version,
        prefetch=prefetch,
        persist=PersistPolicy(max_open=WRITES_AT_A_TIME),
        reading=StepJobs(),
        writing=StepJobs(),
    )


class StepJobs:
    """Jobs that are resumed with every step of the engine, in its own thread. See `unified_tree.controllers.storage_tier.Jobs`.

    Cost: O(open jobs) a step.
    """

    def __init__(self) -> None:
        self._open: list[Job] = []
        self._ended: list[Job] = []
        self._is_closed = False

    def start(self, steps: Steps) -> Job:
        """See Jobs.start. Runs the first step."""
        job = Job(steps)
        self._open.append(job)
        if self._is_closed:
            job.error = "closed"
        self._resume(job)
        return job

    def ended(self) -> list[Job]:
        """See Jobs.ended. Runs a step of every job that is open."""
        for job in list(self._open):
            self._resume(job)
        ended, self._ended = self._ended, []
        return ended

    def wait(self) -> None:
        """Nothing: only further engine steps end a job."""

    def close(self) -> None:
        """See Jobs.close."""
        self._is_closed = True
        for job in list(self._open):
            job.error = "closed"
            self._resume(job)

    def _resume(self, job: Job) -> None:
        try:
            if job.error is None:
                next(job.steps)
                return
            job.steps.close()
        except StopIteration:
            pass
        except StorageError as error:
            job.error = str(error)
        self._open.remove(job)
        self._ended.append(job)


class RemoteStoreJobs:
    """Makes the jobs of a storage controller by messages to the workers; see `StoreJobs`.

    Args:
        worker_count: how many answer every message.

    Attributes:
        is_away, outages: see StoreJobs; of any worker's store, as of the last look-up.
    """

    def __init__(self, worker_count: int) -> None:
        self._workers = worker_count
        self._tickets = count()
        self._messages: list[StoreMessage] = []
        self._answers: dict[int, list[Answer]] = {}
        self.is_away = False
        self.outages = 0

    def take_messages(self) -> tuple[StoreMessage, ...]:
        """What is to be sent with the next step."""
        messages, self._messages = self._messages, []
        return tuple(messages)

    def take(self, answers: dict[int, list[Answer]]) -> None:
        """Workers have answered."""
        for ticket, given in answers.items():
            self._answers[ticket] += given

    def look_up(self, found: FoundPrefix, chain: KeyChain) -> Steps:
        """See StoreJobs.look_up."""
        if found.is_stopped():
            return
        answers: list[Any] = yield from self._asked(
            lambda ticket: LookUp(
                ticket=ticket, key=found.key, weights_version=chain.weights_version,
                base_pages=found.base_pages, limit_pages=found.limit_pages, resumable_pages=found.resumable_pages,
            )
        )  # fmt: skip
        self.is_away = any(each.is_away for each in answers)
        self.outages = sum(each.outages for each in answers)
        shortest = min(each.lengths.size for each in answers)
        found.found_elsewhere(
            np.logical_and.reduce([each.lengths[:shortest] for each in answers]),
            chain,
            listed_pages=max(each.listed_pages for each in answers),
            believed_pages=max(each.silent_pages for each in answers),
            is_unanswered=any(each.is_unanswered for each in answers),
        )

    def read_paths(self, fetch: Fetch) -> Steps:
        """See StoreJobs.read_paths."""
        if fetch.found.is_stopped() or fetch.arrived_pages == fetch.allocated_pages:
            return
        start, base = fetch.arrived_pages, fetch.found.base_pages
        ids = {name: fetch.claim.pages[name][start - base : fetch.allocated_pages - base] for name in fetch.path_names}
        counts = yield from self._read(fetch, dict.fromkeys(ids, start), ids)
        fetch.arrived_pages = start + min(counts.values())

    def read_trailing(self, fetch: Fetch, length_pages: int) -> Steps:
        """See StoreJobs.read_trailing."""
        needs = fetch.trailing_pages(length_pages)
        ids = {name: fetch.claim.pages[name][:needed] for name, needed in needs.items()}
        fetch.trailing_arrived(())
        counts = yield from self._read(fetch, {name: length_pages - needed for name, needed in needs.items()}, ids)
        fetch.trailing_arrived(name for name, needed in needs.items() if counts[name] == needed)

    def persist(self, job: PersistJob, chain: KeyChain) -> Steps:
        """See StoreJobs.persist."""
        written: list[Any] = yield from self._asked(
            lambda ticket: WritePages(ticket=ticket, key=job.key, weights_version=chain.weights_version, pages=dict(job.pages))
        )
        job.written_pages = sum(each.pages for each in written)
        job.written_bytes = sum(each.size_bytes for each in written)
        job.failure = next((each.failure for each in written if each.failure is not None), None)
        job.is_done = all(each.is_done for each in written)

    def _read(self, fetch: Fetch, begin: dict[str, int], pages: dict[str, Any]) -> Generator[float, None, dict[str, int]]:
        """Read pages in all workers; how many came everywhere, by component."""
        found = fetch.found
        assert found.chain is not None, "a prompt is looked up before it is read"
        version = found.chain.weights_version
        counts: list[Any] = yield from self._asked(
            lambda ticket: ReadPages(ticket=ticket, key=found.key, weights_version=version, begin=begin, pages=pages)
        )
        return {name: min(each[name] for each in counts) for name in pages}

    def _asked(self, message: Callable[[int], StoreMessage]) -> Generator[float, None, list[Any]]:
        """Send a message, and return what every worker has answered. Raises StorageError if one of them broke off."""
        ticket = next(self._tickets)
        answers: list[Answer] = []
        self._answers[ticket] = answers
        self._messages.append(message(ticket))
        while len(answers) < self._workers:
            yield 0.0
        del self._answers[ticket]
        for answer in answers:
            if answer.error is not None:
                raise StorageError(answer.error)
        return [answer.content for answer in answers]
