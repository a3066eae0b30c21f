"""The stores of all workers, as the scheduler side sees them: jobs that send messages and wait for the answers of all.

A length counts as stored, and a page as read, only where that is so in every worker, for each of them keeps its own shard under
keys of its own. The jobs run in the scheduler's thread and block nothing: each is a generator that is resumed with every engine
step, until its answers have come.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.adapters.vllm.store_messages import Answer, LookUp, ReadPages, StoreMessage, WritePages
from unified_tree.controllers.storage_tier.jobs import Job
from unified_tree.terms.errors import StorageError

if TYPE_CHECKING:
    from unified_tree.controllers.storage.key_chain import KeyChain
    from unified_tree.controllers.storage_tier.fetch import Fetch
    from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
    from unified_tree.controllers.storage_tier.jobs import Steps
    from unified_tree.controllers.storage_tier.persist_job import PersistJob


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
