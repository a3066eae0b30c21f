"""The scheduler side of the stores: which prompts are fetched to host, and which boundaries are written.

It is the library's `StorageController`, whose jobs are messages to the workers: single flight, time-outs, the share of the host
pages for fetches, the queue of boundaries, and the locks on what is written are its own. The store it was given keeps nothing;
it only describes the pools.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unified_tree.components import Composition
from unified_tree.controllers.adapters.vllm.remote_jobs import RemoteStoreJobs, StepJobs
from unified_tree.controllers.pools.formats import formats_of
from unified_tree.controllers.ranks.rank_agreement import SingleRank
from unified_tree.controllers.storage.memory_storage import NullStorage
from unified_tree.controllers.storage_tier.mapped_pages import mapped_pages
from unified_tree.controllers.storage_tier.policies import PersistPolicy, PrefetchPolicy
from unified_tree.controllers.storage_tier.storage_controller import StorageController
from unified_tree.controllers.storage_tier.storage_tier import StorageTier
from unified_tree.controllers.storage_tier.stored_composition import layout_of, stored_pools
from unified_tree.declare.page_format import WHOLE

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.vllm.host_index import HostIndex
    from unified_tree.controllers.adapters.vllm.store_messages import Answer, StoreMessage
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
        self._controller = StorageController(
            index.tree, index.host, _described(index, weights_version, prefetch), index.counters, index.weights,
            SingleRank(), self._workers,
        )  # fmt: skip
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
        totals = self._controller.totals
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
