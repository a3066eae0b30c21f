"""`python -m benches.ledger`: what the ledger of misses costs a chat request: by default, and with `ghost_bytes` of 0.

Question: how much longer does a request of a chat take (acquire, allocate, commit, decode in one piece, commit, release) where
each computed token gets its cause and ages are counted? Silent on: many requests at a time, a host tier, a store, keys of other
lengths. Both ways serve the same chats over full pools, in turn; of each request the fastest of all lives counts.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from random import Random
from time import perf_counter_ns
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from benches.two_ways import parser_of, print_table
from unified_tree import Component, Coverage, Key, Point, Trailing, TreeSettings
from unified_tree import Path as PathCoverage
from unified_tree.controllers import PrefixCache

Chat = tuple[NDArray[np.int64], NDArray[np.int64]]
KINDS: dict[str, tuple[dict[str, Coverage], dict[str, int]]] = {
    "full": ({"full": PathCoverage()}, {"full": 200_000}),
    "full + window": ({"full": PathCoverage(), "swa": Trailing(1024)}, {"full": 200_000, "swa": 120_000}),
    "full + Mamba": ({"full": PathCoverage(), "mamba": Point()}, {"full": 200_000, "mamba": 200}),
}
"""Components by coverage, and what fits on device: tokens, or states."""
SYSTEM_TOKENS = 800
MAX_CHAT_TOKENS = 6_000
"""A chat that has grown longer begins again."""


def chats(count: int, seed: int = 1) -> Iterator[Chat]:
    """Requests: a prompt, and the same with its answer. A chat comes back the sooner the younger it is."""
    random, tokens = Random(seed), np.random.default_rng(seed)
    system = tokens.integers(0, 100_000, SYSTEM_TOKENS)
    open_chats: list[NDArray[np.int64]] = []
    for _ in range(count):
        if not open_chats or random.random() < 0.2:
            open_chats.append(np.concatenate([system, tokens.integers(0, 100_000, random.randint(50, 300))]))
        at = max(0, len(open_chats) - 1 - int(random.expovariate(1 / 60)))
        prompt = open_chats[at] if open_chats[at].size <= MAX_CHAT_TOKENS else system
        answered = np.concatenate([prompt, tokens.integers(0, 100_000, random.randint(100, 400))])
        open_chats[at] = np.concatenate([answered, tokens.integers(0, 100_000, random.randint(20, 200))])
        yield prompt, answered


def new_cache(kinds: str, page_size: int, settings: TreeSettings) -> PrefixCache:
    """An empty cache."""
    coverages, sizes = KINDS[kinds]
    components = [Component(name=name, coverage=coverage) for name, coverage in coverages.items()]
    counts = {name: size if name == "mamba" else size // page_size for name, size in sizes.items()}
    return PrefixCache(components, page_size, counts, settings=settings)


def serve(cache: PrefixCache, requests: list[Chat], fastest: list[int]) -> int:
    """Serve them one after the other, keep the shorter times, and return a checksum of what was found."""
    found = 0
    for at, (prompt, answered) in enumerate(requests):
        begin = perf_counter_ns()
        lease = cache.acquire(Key(prompt))
        cached = lease.cached_tokens
        cache.allocate(lease, prompt.size)
        cache.commit(lease, prompt.size, dict(lease.save_pages))
        cache.allocate(lease, answered.size)
        cache.commit(lease, answered, {length: page for length, page in lease.save_pages.items() if length <= answered.size})
        cache.release(lease)
        fastest[at] = min(fastest[at], perf_counter_ns() - begin)
        found = crc32(cached.to_bytes(8, "little"), found)
    return found


def measure(kinds: str, page_size: int, requests: list[Chat], lives: int) -> dict[str, Any]:
    """One row: both ways, in turn."""
    ways = {"on": TreeSettings(), "off": TreeSettings(ghost_bytes=0)}
    times = {way: [1 << 60] * len(requests) for way in ways}
    found = set()
    for life in range(lives):
        for way in ways if life % 2 else reversed(ways):
            cache = new_cache(kinds, page_size, ways[way])
            gc.collect()
            gc.disable()
            found.add(serve(cache, requests, times[way]))
            gc.enable()
            cache.close()
    assert len(found) == 1, "what is remembered changes no hit"
    on, off = (np.array(times[way][len(requests) // 3 :]) / 1000 for way in ways)  # the first third fills the pools
    stats = cache.stats()
    return {
        "components": kinds,
        "page_size": page_size,
        "hit": stats.hit_tokens / stats.prompt_tokens,
        "evictions": stats.evictions / len(requests),
        "off_us": float(np.median(off)),
        "on_us": float(np.median(on)),
        "median": float(np.median(on) / np.median(off)),
        "total": float(on.sum() / off.sum()),
        "digest": f"{found.pop():08x}",
    }


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print the table, and write the rows."""
    parser = parser_of("benches.ledger", __doc__, lives=8, quick="few requests")
    parser.add_argument("--requests", type=int, default=3_000)
    options = parser.parse_args(arguments)
    quick: bool = options.quick
    requests = list(chats(60 if quick else options.requests))
    rows = (measure(kinds, size, requests, 1 if quick else options.lives) for kinds in KINDS for size in (1, 64))
    print_table(
        "components | page | hit | evictions a request | off | on | median | total",
        "{components} | {page_size} | {hit:.2f} | {evictions:.1f} | {off_us:.1f} µs | {on_us:.1f} µs "
        "| {median:.3f} | {total:.3f}",
        rows,
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
