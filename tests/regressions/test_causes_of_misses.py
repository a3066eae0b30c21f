"""Causes of misses: prompts under way, prompts of other namespaces, and requests that are tried again."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
from kinds import FULL, MAMBA
from published import publish

from unified_tree import Key, MissCause
from unified_tree.controllers import Lease, PrefixCache
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


# The cause `other_namespace` looked into one namespace alone, the last one with the same first page; and when the later of
# two equal prompts under way left, the earlier one was found no more.

PAGE = 16


def text(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


A = text(0, 700)


def serve(cache: PrefixCache, tokens: list[int], namespace: str) -> list[tuple[str, int, int, str | None]]:
    return parts(publish(cache, tokens, namespace))


def parts(lease: Lease) -> list[tuple[str, int, int, str | None]]:
    return [(miss.cause.label, miss.begin, miss.end, miss.detail) for miss in lease.misses if miss.cause.label != "last_token"]


def test_the_namespace_that_came_first_is_named_if_it_has_most() -> None:
    cache = PrefixCache([FULL], PAGE)
    serve(cache, A, "first")
    serve(cache, A[:64] + text(5000, 300), "second")
    assert serve(cache, A, "third")[0] == ("other_namespace", 0, 688, "first")


@pytest.mark.parametrize("count", [1, 9, 60])
def test_the_namespace_that_has_most_is_named_among_many_that_begin_alike(count: int) -> None:
    """Whichever came last."""
    cache = PrefixCache([FULL], PAGE)
    for i in range(count):
        serve(cache, A[:64] + text(5000 + 1000 * i, 300), f"before {i}")
    serve(cache, A[:400], "less")
    serve(cache, A, "most")
    for i in range(count):
        serve(cache, A[: 16 * (i % 30 + 1)], f"between {i}")
        serve(cache, A[:64] + text(90_000 + 1000 * i, 300), f"after {i}")
    assert serve(cache, A, "asks")[0] == ("other_namespace", 0, 688, "most")
    assert serve(cache, A[:400] + text(7000, 32), "asks, too")[0][:3] == ("other_namespace", 0, 400)


def test_what_a_namespace_adds_behind_what_others_have_is_found() -> None:
    cache = PrefixCache([FULL], PAGE)
    for end, namespace in ((160, "first"), (320, "second"), (480, "first"), (640, "second")):
        serve(cache, A[:end], namespace)
    assert serve(cache, A, "third")[0] == ("other_namespace", 0, 640, "second")


def test_an_earlier_one_of_equal_prompts_under_way_is_found_when_the_later_one_leaves() -> None:
    cache = PrefixCache([FULL], PAGE)
    first, second = cache.acquire(Key(A)), cache.acquire(Key(A))
    assert parts(second)[0] == ("in_flight", 0, 688, None)
    cache.release(second)
    third = cache.acquire(Key(A))
    assert parts(third)[0] == ("in_flight", 0, 688, None)
    cache.release(first)
    fourth = cache.acquire(Key(A))
    assert parts(fourth)[0] == ("in_flight", 0, 688, None)
    for lease in (third, fourth):
        cache.release(lease)
    assert parts(cache.acquire(Key(A)))[0] == ("never_seen", 0, 688, None)


def test_a_prompt_under_way_is_found_though_another_one_was_published_meanwhile() -> None:
    cache = PrefixCache([FULL], PAGE)
    slow = cache.acquire(Key(A))
    serve(cache, A[:320] + text(9000, 64), "")
    last = cache.acquire(Key(A[:640] + text(8000, 64)))
    assert parts(last)[0] == ("in_flight", 320, 640, None)
    for lease in (slow, last):
        cache.release(lease)


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
    prompt: dict[str, Any] = {"runs": np.array([0, 3]), "block_tokens": PAGE, "prompt_tokens": 3 * PAGE + 1}
    request = Request(index=0, arrival_s=0.0, output_tokens=1, **prompt)
    cache = PrefixCache([FULL], PAGE, {"full": 64})
    counters = RowCounters(cache, Workload(name="w", requests=(request,), block_count=3))
    for now_s in (0.0, 1.0):
        counters.offered(request)
        with cache.acquire(Key(request.tokens()[: request.prompt_tokens])) as lease:
            counters.admitted(request, lease, now_s, 0)
    [counted] = counters.requests
    assert counted["hit_tokens"] + counted["miss_tokens"].sum() == request.prompt_tokens
    assert (counted["admission"], counted["admitted_s"]) == (1, 1.0)
