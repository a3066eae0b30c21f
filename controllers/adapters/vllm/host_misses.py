"""Why vLLM computes the tokens of a prompt that neither its own cache nor the host tier has, booked once a request.

The host tier is given what every request computes, so its tree and what that remembers of evictions know the causes: not seen,
evicted from a host pool, no window or state saved there, another namespace. Of vLLM's own cache it knows only how many tokens
that had, and what was not saved, because there was no room, it has never seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from unified_tree.controllers.cache.miss_ledger import MissLedger
from unified_tree.controllers.counters.observers import AdmittedRequest
from unified_tree.misses.causes import LOAD_FAILED, LOAD_REFUSED, Miss
from unified_tree.misses.miss_cause import MissCause

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.vllm.engine_request import TrackedRequest
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.declare.keys import Key
    from unified_tree.tree import UnifiedTree

TOO_SHORT: Final[tuple[int, str | None]] = (LOAD_REFUSED, "cost")
"""A hit below `min_load_tokens`."""


class HostMisses:
    """Books the misses of the requests of one engine.

    Args:
        tree: of the host tier; it must remember evictions.
        counters: count the requests, and have the watcher who is told of them.

    Attributes:
        ledger: where they are booked.
    """

    def __init__(self, tree: UnifiedTree, counters: CacheCounters) -> None:
        self._components = tree.components
        self._counters = counters
        self.ledger = MissLedger(tree.state)
        self._told: dict[str, int] = {}

    def scheduled(self, tracked: TrackedRequest) -> None:
        """A request is about to compute what it has not. Books it the first time. Cost: O(prompt), to read its tokens."""
        found = tracked.found
        if found is None or tracked.is_booked:
            return
        tracked.found, tracked.is_booked = None, True
        resumed, count = max(tracked.local_tokens, tracked.loaded_tokens), tracked.prompt_tokens
        key = tracked.key(count)
        booked = self.ledger.book(key, key.namespace, count, found, resumed, TOO_SHORT, tracked.due_tokens, tracked.loss)
        failed = []
        if not tracked.may_load:
            failed = [Miss(LOAD_FAILED, tracked.local_tokens, resumed, None, None)]
            self.ledger.add(failed[0])
        tracked.known_tokens = max(found.known.length, resumed)
        tracked.flight = self.ledger.in_flight.begin(key, count, tracked.known_tokens)
        self._count(key, tracked, resumed, failed, booked)

    def _count(self, key: Key, tracked: TrackedRequest, resumed: int, failed: list[Miss], booked: Miss | None) -> None:
        """Count a request, and tell the watcher of it."""
        counters, count = self._counters, tracked.prompt_tokens
        hits = tracked.local_tokens if failed else resumed
        loaded = hits - tracked.local_tokens
        counters.requests += 1
        counters.prompt_tokens += count
        counters.hit_tokens += hits
        counters.host_hit_tokens += loaded
        if counters.observers.all:
            misses = [*failed, *self.ledger.parts(booked, count, resumed)]
            tracked.admitted = AdmittedRequest(count, hits, loaded, misses)
            counters.observers.tell("acquired", tracked.admitted, key)

    def published(self, tracked: TrackedRequest, length: int) -> None:
        """The tree has so many of its tokens now. Cost: O(1)."""
        flight = tracked.flight
        if flight is not None and not self.ledger.in_flight.move(flight, max(length, tracked.known_tokens)):
            tracked.flight = None

    def finished(self, tracked: TrackedRequest) -> None:
        """vLLM has ended a request. Cost: O(answer) with observers, else O(1)."""
        admitted, tracked.admitted = tracked.admitted, None
        if admitted is not None:
            self._counters.observers.tell("finished", admitted, list(tracked.request.all_token_ids[tracked.prompt_tokens :]))

    def ended(self, tracked: TrackedRequest) -> None:
        """Nothing more of it will come into the tree. Cost: O(1)."""
        if tracked.flight is not None:
            self.ledger.in_flight.end(tracked.flight)
            tracked.flight = None

    def take_counters(self) -> dict[str, int]:
        """What was booked since the last call: the label of a counter stands behind a `/`."""
        totals = {"prompt_tokens": self._counters.prompt_tokens}
        if totals["prompt_tokens"] == self._told.get("prompt_tokens", 0):
            return {}
        for cause in MissCause:
            totals[f"miss_tokens/{cause.label}"] = self.ledger.tokens[cause]
        for (component, _), tokens in self.ledger.evicted.items():
            totals[f"evicted_miss_tokens/{self._components[component].name}"] = tokens
        new = {name: total - self._told.get(name, 0) for name, total in totals.items()}
        self._told = totals
        return {name: count for name, count in new.items() if count}
