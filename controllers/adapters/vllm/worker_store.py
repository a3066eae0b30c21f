"""One worker's store: reads into its host pages and writes from them, in threads beside the model."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.adapters.vllm.messages import (
    Answer,
    LookedUp,
    LookUp,
    ReadPages,
    StoreMessage,
    WritePages,
    Written,
)
from unified_tree.controllers.storage.checked_storage import CheckedStorage, FailedReads
from unified_tree.controllers.storage.key_chain import KeyChain, pool_keys
from unified_tree.controllers.storage_tier.fetch import read_pages
from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
from unified_tree.controllers.storage_tier.jobs import Job, Steps
from unified_tree.controllers.storage_tier.persist_job import PersistJob
from unified_tree.controllers.storage_tier.policies import PrefetchMode
from unified_tree.controllers.storage_tier.storage_tier import StorageTier
from unified_tree.controllers.storage_tier.stored_composition import StoredComposition
from unified_tree.controllers.storage_tier.stored_digests import StoredDigests

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.adapters.vllm.block_pages import BlockPages
    from unified_tree.controllers.storage_tier.store_settings import StoreSettings
    from unified_tree.declare.page_format import Shard

READ_BATCH_PAGES = 64


class WorkerStore:
    """Answers the messages of the scheduler side.

    The scheduler side keeps the pages of a message locked, or out of the tree, until it is answered.

    Args:
        composition: the model, its formats with this worker's shard.
        tier: the opened store.
        pages: the host pages by component.
    """

    def __init__(self, composition: Composition, tier: StorageTier, pages: Mapping[str, BlockPages]) -> None:
        self._page_size = composition.page_size
        self._tier = tier
        self._pages = pages
        self._composition = StoredComposition(composition.components, composition.page_size, tier.pools, tier.memory)
        self._access = {access.name: access for access in (*self._composition.paths, *self._composition.trailing)}
        prefetch = tier.prefetch
        self._store = CheckedStorage(tier.engine, FailedReads(prefetch.max_failed_pages, prefetch.failed_pause_s, tier.clock))
        self._stored_digests = StoredDigests(tier.persist.known_pages, tier.persist.recheck_s, tier.clock)
        self._lock = threading.Lock()
        self._contents: dict[int, Any] = {}
        self._tickets: dict[Job, int] = {}
        self._errors = 0
        self._outages = 0

    @classmethod
    def open(cls, composition: Composition, pages: Mapping[str, BlockPages], store: StoreSettings, shard: Shard) -> WorkerStore:
        """Open the store of one of several workers as the settings ask for. Raises as `StorageTier.open`."""
        tier = StorageTier.open(
            store.engine,
            composition,
            memory={name: each.pool for name, each in pages.items()},
            weights_version="",  # every message has its own
            options=store.options_for(shard),
            prefetch=store.prefetch_policy(PrefetchMode.TIMEOUT.value),
        )
        return cls(composition, tier, pages)

    def start(self, message: StoreMessage) -> None:
        """Begin what a message asks for; never blocks."""
        chain = KeyChain(page_size=self._page_size, weights_version=message.weights_version)
        jobs = self._tier.writing if isinstance(message, WritePages) else self._tier.reading
        self._tickets[jobs.start(self._steps(message, chain))] = message.ticket

    def take_answers(self) -> dict[int, Answer]:
        """The answers since the last call, by ticket."""
        answers = {}
        for job in (*self._tier.reading.ended(), *self._tier.writing.ended()):
            ticket = self._tickets.pop(job)
            with self._lock:
                content = self._contents.pop(ticket, None)
            answers[ticket] = Answer(content=content, error=job.error)
        return answers

    def take_counters(self) -> dict[str, float]:
        """What the store failed at since the last call; empty if nothing did."""
        errors = self._store.errors[0] + sum(self._store.faults.counts.values())
        new, self._errors = errors - self._errors, errors
        return {"store_errors": new} if new else {}

    def close(self) -> None:
        """Break off what runs between two calls of the store, and close it."""
        self._tier.reading.close()
        self._tier.writing.close()
        self._tier.engine.close()

    def _steps(self, message: StoreMessage, chain: KeyChain) -> Steps:
        if isinstance(message, LookUp):
            return self._look_up(message, chain)
        if isinstance(message, ReadPages):
            return self._read(message, chain)
        assert isinstance(message, WritePages)
        return self._write(message, chain)

    def _look_up(self, message: LookUp, chain: KeyChain) -> Steps:
        found = FoundPrefix(message.key, message.base_pages, message.limit_pages, message.resumable_pages)
        yield from found.look_up(self._store, self._composition, chain, self._stored_digests)
        found.is_over = True
        if not found.is_unanswered:
            self._stored_digests.discard(found.digests[found.reach_pages :])
        self._forget_after_outage()
        self._answer(
            message,
            LookedUp(
                lengths=found.lengths,
                listed_pages=found.listed_pages,
                silent_pages=found.silent_pages,
                is_unanswered=found.is_unanswered,
                is_away=self._store.is_away,
                outages=self._store.outages,
            ),
        )

    def _forget_after_outage(self) -> None:
        """A store that was away may have lost what it had."""
        outages = self._store.outages
        if outages != self._outages:
            self._outages = outages
            self._stored_digests.clear()

    def _read(self, message: ReadPages, chain: KeyChain) -> Steps:
        digests, counts = chain.digests(message.key), {}
        for name, ids in message.pages.items():
            access, begin, counts[name] = self._access[name], message.begin[name], 0
            for first in range(0, ids.size, READ_BATCH_PAGES):
                batch = ids[first : first + READ_BATCH_PAGES]
                keys = pool_keys(digests[begin + first : begin + first + batch.size], access.stored.format_digest)
                arrived = read_pages(self._store, access, keys, batch)
                self._pages[name].written(batch[:arrived].tolist())
                counts[name] += arrived
                yield 0.0
                if arrived < batch.size:
                    self._stored_digests.discard(digests[begin + first + arrived :])
                    break
        self._answer(message, counts)

    def _write(self, message: WritePages, chain: KeyChain) -> Steps:
        job = PersistJob(self._composition, message.key, message.pages)
        corrupt = sum(len(self._pages[name].corrupt(job.page_ids(name).tolist())) for name in job.pages)
        if corrupt:
            self._answer(message, Written(pages=0, size_bytes=0, failure="page changed in memory", is_done=False))
            return
        self._forget_after_outage()
        yield from job.store(self._store, chain, self._stored_digests, self._tier.persist)
        self._answer(
            message,
            Written(pages=job.written_pages, size_bytes=job.written_bytes, failure=job.failure, is_done=job.is_done),
        )

    def _answer(self, message: StoreMessage, content: Any) -> None:
        with self._lock:
            self._contents[message.ticket] = content
