"""Counting what happens during one replay."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.workbench.runs.row_result import REQUEST, Residency
from unified_tree.controllers.workbench.server.timed_cache import PoolsInUse
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.workbench.runs.clairvoyance import Clairvoyance
    from unified_tree.controllers.workbench.runs.row_result import Requests
    from unified_tree.controllers.workbench.server.timed_cache import ServedRequest
    from unified_tree.controllers.workbench.traces.workload import Request, Workload

RESIDENCY_SAMPLES = 200
ALL_POOLS = "all pools"
"""The room of a device whose pools share its memory."""
NOT_ADMITTED = -1


class RowCounters:
    """The server's observer: keeps the figures of each request, and of the pools now and then.

    Args:
        cache: what the server drives.
        clairvoyance: told of each request as it is offered, where eviction is clairvoyant.
        progress: called after each request that ended.
        step_ms: of the server.
        is_linked: whether what is fetched for a request comes to the device, by a linker.

    Attributes:
        requests: an array of REQUEST by index; of rejected ones only the prompt's length counts, and as `admitted_s` when.
        held: what running requests used of the device just before each admission, and at most from there to the next one: by
            component in pages, or where pools share a budget that of ALL_POOLS in blocks.
        preempted_count, peak_pages, peak_host_pages: see RowResult.
    """

    def __init__(
        self,
        cache: PrefixCache,
        workload: Workload,
        clairvoyance: Clairvoyance | None = None,
        progress: Callable[[], None] | None = None,
        step_ms: float = 1.0,
        *,
        is_linked: bool = False,
    ) -> None:
        self.requests: Requests = np.zeros(len(workload.requests), REQUEST)
        self.requests["prompt_tokens"] = [request.prompt_tokens for request in workload.requests]
        self.requests["admission"] = NOT_ADMITTED
        self._column: dict[str, NDArray[Any]] = {name: self.requests[name] for name in REQUEST.names or ()}
        self._preempted: set[int] = set()
        turns: dict[int, int] = {}
        for request in workload.requests:
            if request.chain != NO_CHAIN:
                turns[request.chain] = self.requests["turn"][request.index] = turns.get(request.chain, 0) + 1
        self.preempted_count = 0
        stats = cache.stats()
        self._page_blocks = None if stats.budget is None else stats.budget.pool_page_blocks
        rooms = stats.pools if self._page_blocks is None else [ALL_POOLS]
        self.held: dict[str, list[list[int]]] = {name: [] for name in rooms}
        self.peak_pages = dict.fromkeys(stats.pools, 0)
        self.peak_host_pages = dict.fromkeys(stats.host_pools, 0)
        self._pools = PoolsInUse(cache)
        self._clairvoyance = clairvoyance
        self._progress = progress
        self._is_linked = is_linked
        self._has_host = bool(stats.host_pools)
        self._step_s = step_ms / 1000.0
        self._held_at_offer: dict[str, int] = {}
        self._sample_every = max(1, len(workload.requests) // RESIDENCY_SAMPLES)
        self._samples: list[tuple[float, dict[str, int]]] = []
        self._admissions = 0
        self._at_prompt_end: dict[int, ServedRequest] = {}  # by index: no admission since has found them beyond it

    def offered(self, request: Request) -> None:
        """Note what running requests hold now, before the offer changes anything."""
        if self._clairvoyance is not None:
            self._clairvoyance.offered(request)
        self._held_at_offer = self._held()

    def fetched(self, request: Request, waited_s: float) -> None:
        """Note how long a request waited for a store."""
        self.requests["fetch_wait_s"][request.index] = waited_s

    def admitted(self, request: Request, lease: Lease, now_s: float, fetched_tokens: int) -> None:
        """Note what was resumed, at the first admission, or at the last one before the request ran."""
        if self._clairvoyance is not None:
            self._clairvoyance.admitted(request)
        column, index, compute_from = self._column, request.index, lease.compute_from
        loaded_tokens = lease.host_tokens if lease.is_loading else 0
        column["hit_tokens"][index] = compute_from
        if self._has_host:
            column["host_hit_tokens"][index] = loaded_tokens
            column["storage_hit_tokens"][index] = min(loaded_tokens, fetched_tokens)
        if self._is_linked:
            column["linked_hit_tokens"][index] = min(compute_from - loaded_tokens, fetched_tokens)
        column["rebuilt_tokens"][index] = lease.cached_tokens - compute_from
        column["admitted_s"][index] = now_s
        miss_tokens = column["miss_tokens"]
        if column["admission"][index] != NOT_ADMITTED:  # it lost its place while it waited for its load
            miss_tokens[index] = 0
        for miss in lease.misses:
            miss_tokens[index, miss.code] += miss.tokens
        used = self.look_at_pools()
        if self._admissions % self._sample_every == 0:
            self._samples.append((now_s, used))
        self._look_at_prompt_ends(round(now_s / self._step_s))
        column["admission"][index] = self._admissions
        self._admissions += 1
        held = self._held()
        for name, before in self._held_at_offer.items():
            self.held[name].append([before, held[name]])

    def _look_at_prompt_ends(self, step: int) -> None:
        """Note who has run beyond its prompt by now, before this admission."""
        for index, entry in list(self._at_prompt_end.items()):
            if entry.decoding_from is not None and entry.decoding_from < step:
                self._column["prompt_done"][index] = self._admissions
                del self._at_prompt_end[index]

    def look_at_held(self) -> None:
        """Note the most that running requests hold between two admissions."""
        for name, held in self._held().items():
            latest = self.held[name][-1]
            latest[1] = max(latest[1], held)

    def _held(self) -> dict[str, int]:
        """The pages that running requests use now, as `held`."""
        held = self._pools.held_pages()
        if self._page_blocks is None:
            return held
        return {ALL_POOLS: sum(blocks * held[name] for name, blocks in self._page_blocks.items())}

    def loaded(self, request: Request, waited_s: float) -> None:
        """Note how long a request waited for its load."""
        self.requests["load_wait_s"][request.index] += waited_s

    def first_token(self, entry: ServedRequest) -> None:
        """Note how long it took, part by part."""
        assert entry.decoding_from is not None
        steps = (entry.arrived, entry.queued, entry.started, entry.computing, entry.decoding_from)
        self._column["latency_parts_s"][entry.request.index] = [(end - begin) * self._step_s for begin, end in pairwise(steps)]
        self._at_prompt_end[entry.request.index] = entry

    def preempted(self, request: Request) -> None:
        """A running request was put back; it may have to compute its prompt again."""
        self.preempted_count += 1
        self._preempted.add(request.index)

    def ended(self, request: Request, now_s: float, spent_ns: int, *, rejected: bool) -> None:
        """A request is over; of a rejected one all of the prompt was missed, whatever it had hit before."""
        column, index = self._column, request.index
        column["done"][index] = self._admissions
        is_at_prompt_end = self._at_prompt_end.pop(index, None) is not None
        if is_at_prompt_end or rejected or index in self._preempted:
            column["prompt_done"][index] = self._admissions
        if rejected:
            column["admitted_s"][index] = now_s
        else:
            column["is_served"][index] = True
            column["spent_ns"][index] = spent_ns
        if self._progress is not None:
            self._progress()

    def residency(self) -> Residency:
        """The device pages in use, as they were looked at."""
        return Residency(
            time_s=tuple(now_s for now_s, _ in self._samples),
            pages={name: tuple(used[name] for _, used in self._samples) for name in self.peak_pages},
        )

    def look_at_pools(self) -> dict[str, int]:
        """Note the most pages in use so far. Returns those in use on device now, by component."""
        used, host_used = self._pools.device_pages(), self._pools.host_pages()
        for peaks, now in ((self.peak_pages, used), (self.peak_host_pages, host_used)):
            for name, pages in now.items():
                peaks[name] = max(peaks[name], pages)
        return used
