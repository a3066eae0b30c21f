"""Counting what happens during one replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.replay.latency import LatencyTally
from unified_tree.controllers.replay.row_result import Timeline
from unified_tree.keys import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.replay.clairvoyance import Clairvoyance
    from unified_tree.controllers.replay.served_request import ServedRequest
    from unified_tree.controllers.replay.workload import Int64s, Request, Workload

RESIDENCY_SAMPLES = 200
NOT_ADMITTED = -1.0


class Tally:
    """The server's observer: keeps the figures of each request, and of the pools now and then.

    Args:
        cache: what the server drives.
        pools: the components whose device pages are watched.
        clairvoyance: told of each request as it is offered, where eviction is clairvoyant.
        progress: called after each request that ended.
        step_ms: of the server.
    """

    def __init__(
        self,
        cache: PrefixCache,
        workload: Workload,
        pools: Sequence[str],
        clairvoyance: Clairvoyance | None = None,
        progress: Callable[[], None] | None = None,
        step_ms: float = 1.0,
    ) -> None:
        count = len(workload.requests)
        self.hit_tokens = np.zeros(count, np.int64)
        self.host_hit_tokens = np.zeros(count, np.int64)
        self.storage_hit_tokens = np.zeros(count, np.int64)
        self.linked_hit_tokens = np.zeros(count, np.int64)
        self.rebuilt_tokens = np.zeros(count, np.int64)
        self.reachable_tokens = np.zeros(count, np.int64)
        self.path_tokens = np.zeros(count, np.int64)
        self.load_wait_s = np.zeros(count)
        self.fetch_wait_s = np.zeros(count)
        self.spent_ns = np.zeros(count, np.int64)
        self.served = np.zeros(count, np.bool_)
        self.latency = LatencyTally(workload)
        self._step_s = step_ms / 1000.0
        self.lost_tokens: dict[str, int] = {}
        self.preempted_count = 0
        self.peak_pages = dict.fromkeys(pools, 0)
        self.peak_host_pages = dict.fromkeys(cache.stats().host_pools, 0)
        self._prompt_tokens = np.array([request.prompt_tokens for request in workload.requests], np.int64)
        self._admitted_s = np.full(count, NOT_ADMITTED)
        self.cache = cache
        self._clairvoyance = clairvoyance
        self._progress = progress
        self._lost_at_offer: dict[str, int] = {}
        self._lost: dict[int, dict[str, int]] = {}
        self._sample_every = max(1, count // RESIDENCY_SAMPLES)
        self._residency_s: list[float] = []
        self._resident: dict[str, list[int]] = {name: [] for name in pools}
        self._admissions = 0

    def offered(self, request: Request, prompt: Int64s) -> None:
        """Note what is there and what is missing now, before the offer changes anything."""
        if self._clairvoyance is not None:
            self._clairvoyance.arrived(request)
        self._lost_at_offer = {}
        explanation = self.cache.explain(Key(prompt))
        self.reachable_tokens[request.index] = explanation.reachable_length
        self.path_tokens[request.index] = explanation.path_length
        for loss in explanation.losses:
            if loss.kept_on is None:  # what the host still has is not lost
                self._lost_at_offer[loss.component] = self._lost_at_offer.get(loss.component, 0) + loss.tokens

    def fetched(self, request: Request, waited_s: float) -> None:
        """Note how long a request waited for a store."""
        self.fetch_wait_s[request.index] = waited_s

    def admitted(self, request: Request, lease: Lease, now_s: float, fetched_tokens: int) -> None:
        """Note what was resumed, at the first admission."""
        i = request.index
        self.hit_tokens[i] = lease.compute_from
        self.host_hit_tokens[i] = lease.load.tokens if lease.load is not None else 0
        self.storage_hit_tokens[i] = min(self.host_hit_tokens[i], fetched_tokens)
        self.linked_hit_tokens[i] = min(lease.compute_from - self.host_hit_tokens[i], fetched_tokens)
        self.rebuilt_tokens[i] = lease.cached_tokens - lease.compute_from
        self._admitted_s[i] = now_s
        self._lost[i] = self._lost_at_offer
        self._look_at_pools(now_s)

    def loaded(self, request: Request, waited_s: float) -> None:
        """Note how long a request waited for its load."""
        self.load_wait_s[request.index] += waited_s

    def first_token(self, entry: ServedRequest) -> None:
        """Note how long it took."""
        self.latency.note(entry, self._step_s)

    def preempted(self) -> None:
        """A running request was put back."""
        self.preempted_count += 1

    def ended(self, request: Request, spent_ns: int, *, rejected: bool) -> None:
        """A request is over; a rejected one counts in nothing but the number of rejected."""
        lost = self._lost.pop(request.index, {})
        if not rejected:
            self.served[request.index] = True
            self.spent_ns[request.index] = spent_ns
            for name, tokens in lost.items():
                self.lost_tokens[name] = self.lost_tokens.get(name, 0) + tokens
        if self._progress is not None:
            self._progress()

    def prompt_tokens_served(self) -> Int64s:
        """The prompt lengths of the served requests."""
        return self._prompt_tokens[self.served]

    def timeline(self) -> Timeline:
        """Figures over time."""
        order = np.flatnonzero(self.served & (self._admitted_s != NOT_ADMITTED))
        order = order[np.argsort(self._admitted_s[order], kind="stable")]
        return Timeline(
            time_s=tuple(self._admitted_s[order].tolist()),
            prompt_tokens=tuple(self._prompt_tokens[order].tolist()),
            hit_tokens=tuple(self.hit_tokens[order].tolist()),
            host_hit_tokens=tuple(self.host_hit_tokens[order].tolist()),
            residency_s=tuple(self._residency_s),
            resident_pages={name: tuple(pages) for name, pages in self._resident.items()},
        )

    def _look_at_pools(self, now_s: float) -> None:
        stats = self.cache.stats()
        for name, host_pool in stats.host_pools.items():
            self.peak_host_pages[name] = max(self.peak_host_pages[name], host_pool.used)
        pools = stats.pools
        used = {name: pools[name].used for name in self._resident}
        for name, pages in used.items():
            self.peak_pages[name] = max(self.peak_pages[name], pages)
        if self._admissions % self._sample_every == 0:
            self._residency_s.append(now_s)
            for name, pages in used.items():
                self._resident[name].append(pages)
        self._admissions += 1
