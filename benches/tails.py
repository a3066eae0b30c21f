"""Tails: how long is the longest of a thousand calls, over a million requests at constant capacity, collections included?

Question: p99.9 beside the median of every call that a scheduler makes, when pages have long run out and each request evicts.
Not: long prompts (their calls are long because much is new), other tiers, requests that overlap.

The time of a call is the processor's, or the wall clock's where that says less: what other programs do does not count. The
garbage collector runs as it does for any user; collections of the oldest generation are counted.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np

from benches.ours import SETS
from benches.slope import percentile
from benches.subject import LOOK_NS
from unified_tree import Key
from unified_tree.controllers import PrefixCache

PAGE_TOKENS = 16
HEADS, HEAD_TOKENS, TAIL_TOKENS, OUTPUT_TOKENS = 4000, 64, 32, 16
CAPACITY_PAGES = {"full": 24_000, "swa": 24_000, "mamba": 6_000}
WARM_UP = 12_000
"""Requests after which every pool has run out."""
NEAR = 20.0
"""The library aims at a p99.9 of up to so many medians."""
HEAD = f"{'tails':<12}{'call':<12}{'calls':>12} |{'median':>9}{'p99':>9}{'p99.9':>9}{'worst':>10} µs |{'p99.9/median':>13}"


@dataclass(slots=True, kw_only=True)
class Tails:
    """The times of every call by its name, and what the collector did meanwhile."""

    components: str
    times_ns: dict[str, array[int]] = field(default_factory=dict)
    full_collections: int = 0
    longest_collection_ns: int = 0

    def timed(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call and note its time."""
        processor = thread_time_ns()
        wall = perf_counter_ns()
        result = call(*arguments)
        wall = perf_counter_ns() - wall
        processor = thread_time_ns() - processor - LOOK_NS
        self.times_ns.setdefault(name, array("q")).append(min(wall, max(0, processor)))
        return result

    def rows(self) -> Iterator[dict[str, Any]]:
        """One a call, in microseconds."""
        for name, times in self.times_ns.items():
            ascending: list[float] = (np.sort(np.frombuffer(times, np.int64)) / 1000).tolist()
            median, p99, p999 = (percentile(ascending, share) for share in (0.5, 0.99, 0.999))
            yield {
                "operation": "tails",
                "components": self.components,
                "page_size": PAGE_TOKENS,
                "call": name,
                "samples": len(times),
                "ours_us": median,
                "p99_us": p99,
                "p999_us": p999,
                "worst_us": ascending[-1],
                "p999_to_median": round(p999 / median, 2) if median else None,
                "full_collections": self.full_collections,
                "longest_collection_us": self.longest_collection_ns / 1000,
            }


def measure_tails(components: str, requests: int) -> Tails:
    """Serve so many requests, after those that fill the cache, which are not timed."""
    tails = Tails(components=components)
    counts = {component.name: CAPACITY_PAGES[component.name] for component in SETS[components]}
    cache = PrefixCache(SETS[components], PAGE_TOKENS, counts)
    random = np.random.RandomState(20240)
    heads = random.randint(0, 1000, (HEADS, HEAD_TOKENS), dtype=np.int64)
    gc.collect()
    first = min(WARM_UP, 10 * requests)
    for turn in range(first):
        _serve(Tails(components=components), cache, heads, random, turn)
    watch = _watch(tails)
    gc.callbacks.append(watch)
    try:
        for turn in range(first, first + requests):
            _serve(tails, cache, heads, random, turn)
    finally:
        gc.callbacks.remove(watch)
    return tails


def _serve(tails: Tails, cache: PrefixCache, heads: np.ndarray[Any, Any], random: Any, turn: int) -> None:
    """A request whose head may be cached and whose tail is new."""
    tokens = np.empty(HEAD_TOKENS + TAIL_TOKENS + OUTPUT_TOKENS, np.int64)
    tokens[:HEAD_TOKENS] = heads[random.randint(HEADS)]
    tokens[HEAD_TOKENS:] = turn + (1 << 20)
    prompt = tokens[:-OUTPUT_TOKENS]
    key = tails.timed("Key", Key, prompt)
    lease = tails.timed("acquire", cache.acquire, key)
    start = lease.compute_from
    while start < prompt.size:
        end = lease.next_stop(start) or prompt.size
        tails.timed("allocate", cache.allocate, lease, end)
        pages = lease.save_pages
        tails.timed("commit", cache.commit, lease, end, {end: pages[end]} if end in pages else None)
        start = end
    tails.timed("allocate", cache.allocate, lease, tokens.size)
    tails.timed("advance", cache.advance, lease, tokens.size)
    tails.timed("commit", cache.commit, lease, tokens, dict(lease.save_pages))
    tails.timed("release", cache.release, lease)
    tails.timed("poll", cache.poll)


def _watch(tails: Tails) -> Callable[[str, dict[str, int]], None]:
    """Counts full collections and keeps the longest."""
    started = 0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if info["generation"] < 2:  # the oldest
            return
        if phase == "start":
            started = thread_time_ns()
        else:
            tails.full_collections += 1
            tails.longest_collection_ns = max(tails.longest_collection_ns, thread_time_ns() - started)

    return watch


def lines_of(rows: list[dict[str, Any]]) -> str:
    """One a call, and what the collector did."""
    lines = [
        f"{row['components']:<12}{row['call']:<12}{row['samples']:>12,} |{row['ours_us']:>9.2f}{row['p99_us']:>9.1f}"
        f"{row['p999_us']:>9.1f}{row['worst_us']:>10.0f}    |{row['p999_to_median'] or 0:>13.1f}"
        for row in rows
    ]
    first = rows[0]
    collections = f"{first['full_collections']} full collections, the longest {first['longest_collection_us']:.0f} µs"
    return "\n".join([*lines, f"{first['components']:<12}{collections}"])
