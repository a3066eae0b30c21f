"""Causes of misses: prompts under way, namespaces that are gone, and requests that are tried again."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
from kinds import FULL, MAMBA

from unified_tree import Key, MissCause
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.weights.generations import Generations
from unified_tree.controllers.workbench.runs.row_counters import RowCounters
from unified_tree.controllers.workbench.traces.workload import Request, Workload


@pytest.mark.parametrize("committed", [0, 2, 4, 6, 8, 10])
def test_a_prompt_in_flight_is_found_behind_what_the_tree_knows(committed: int) -> None:
    """A prompt whose path the tree knows, and which computes it again for want of a state, was lost from the prompts under way
    with its first chunk: it was filed under the length of that chunk, where no other prompt looks. What the other computed
    behind the path counted as never seen instead of in flight.
    """
    cache = PrefixCache([FULL, MAMBA], 2)
    with cache.acquire(Key(range(8)), reserve_tokens=8) as lease:  # an engine that saves no state
        cache.commit(lease, 8)
    first = cache.acquire(Key(range(13)))
    if committed:
        cache.allocate(first, committed)
        cache.commit(first, committed)
    known = max(8, committed)
    second = cache.acquire(Key(range(13)))
    found = {miss.cause: (miss.begin, miss.end) for miss in second.misses}
    assert found[MissCause.IN_FLIGHT] == (known, 12)
    assert found[MissCause.NEVER_SAVED] == (0, known)
    cache.release(first)
    cache.release(second)
    assert cache.ledger.in_flight.count == 0


# The name of every namespace that was ever invalidated stayed with the cache, at 160 bytes each.


def test_names_of_namespaces_that_ended_do_not_stay() -> None:
    generations = Generations()
    held = generations.current("held")
    counts = generations.count(100)
    tracemalloc.start()
    for i in range(20_000):
        generations.current(f"tenant {i}")
        generations.end(f"tenant {i}")
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 64 << 10
    assert not held.has_ended
    assert generations.current("held") is held
    assert counts.of("held") != (0, 0), "beyond the bound all count as invalidated"


def test_a_lease_knows_that_its_namespace_was_invalidated() -> None:
    cache = PrefixCache([FULL], 2)
    tokens = np.arange(6)
    for name in ("tenant", None):
        lease, other = cache.acquire(Key(tokens, "tenant")), cache.acquire(Key(tokens, "other"))
        for each in (lease, other):
            cache.allocate(each, 6)
        cache.invalidate("tenant")
        cache.invalidate(name)
        later = cache.acquire(Key(tokens, "tenant"))
        cache.allocate(later, 6)
        for each in (lease, other, later):
            cache.commit(each, tokens)
            cache.release(each)
        assert cache.acquire(Key(tokens, "tenant")).cached_tokens == 4, "what was computed after it counts"
        assert cache.acquire(Key(tokens, "other")).cached_tokens == (4 if name else 0)
    assert cache.stats().drops["commit of what was invalidated"] == 3


def test_a_request_that_lost_its_load_is_counted_once() -> None:
    """A request of a replay that is put back while it waits for its load is admitted again: its misses count once."""
    prompt: dict[str, Any] = {"runs": np.array([0, 3]), "block_tokens": 4, "prompt_tokens": 13}
    request = Request(index=0, arrival_s=0.0, output_tokens=1, **prompt)
    cache = PrefixCache([FULL], 4, {"full": 64})
    counters = RowCounters(cache, Workload(name="w", requests=(request,), block_count=3))
    for now_s in (0.0, 1.0):
        counters.offered(request)
        with cache.acquire(Key(request.tokens()[: request.prompt_tokens])) as lease:
            counters.admitted(request, lease, now_s, 0)
    [counted] = counters.requests
    assert counted["hit_tokens"] + counted["miss_tokens"].sum() == request.prompt_tokens
    assert (counted["admission"], counted["admitted_s"]) == (1, 1.0)
