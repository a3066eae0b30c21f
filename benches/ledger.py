"""`python -m benches.ledger`: what the ledger of misses costs a chat request: by default, and with `ghost_bytes` of 0.

Question: how much longer does a request of a chat take (acquire, allocate, commit, decode in one piece, or with `--steps` token
by token, commit, release) where each computed token gets its cause and ages are counted? Silent on: many requests at a time, a
host tier, a store, keys of other lengths.

Chats are served by two caches in turn, over full pools. Both caches live as long as the measurement, as a server's does: in
each life all requests come with other tokens, so what is evicted, remembered and forgotten goes on as it would, in memory that
has been used before. The first life fills the pools. Of each request the fastest of the other lives counts.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from random import Random
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benches.rounds import LIVES, options_of, print_table
from unified_tree import Component, Coverage, Key, Point, Trailing, TreeSettings
from unified_tree import Path as PathCoverage
from unified_tree.controllers import PrefixCache


def measure(kinds: str, page_size: int, requests: list[Chat], lives: int, *, in_steps: bool = False) -> dict[str, Any]:
    """One row: both ways, in turn."""
    on, off = new_cache(kinds, page_size), new_cache(kinds, page_size, TreeSettings(ghost_bytes=0))
    times = in_turn({"on": on, "off": off}, requests, lives, in_steps=in_steps)
    stats = on.stats()
    assert stats.hit_tokens == off.stats().hit_tokens, "what is remembered changes no hit"
    return {
        "components": kinds,
        "page_size": page_size,
        "hit": stats.hit_tokens / stats.prompt_tokens,
        "evictions": stats.evictions / stats.requests,
        "off_us": float(np.median(times["off"])),
        "on_us": float(np.median(times["on"])),
        "median": float(np.median(times["on"]) / np.median(times["off"])),
        "total": float(times["on"].sum() / times["off"].sum()),
    }


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print the table, and write the rows."""
    parser = options_of("ledger", __doc__, quick="few requests", rounds=20, what=LIVES)
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--steps", action="store_true", help="the answer is decoded a token at a time, not in one piece")
    options = parser.parse_args(arguments)
    quick: bool = options.quick
    requests = list(chats(12 if quick else options.requests))
    lives = 1 if quick else options.lives
    rows = (measure(kinds, size, requests, lives, in_steps=options.steps) for kinds in KINDS for size in (1, 64))
    print_table(
        "components | page | hit | evictions a request | off | on | median | total",
        "{components} | {page_size} | {hit:.2f} | {evictions:.1f} | {off_us:.1f} µs | {on_us:.1f} µs "
        "| {median:.3f} | {total:.3f}",
        rows,
        options.json,
    )
    return 0


Chat = tuple[NDArray[np.int64], NDArray[np.int64]]
KINDS: dict[str, tuple[dict[str, Coverage], dict[str, int]]] = {
    "full": ({"full": PathCoverage()}, {"full": 200_000}),
    "full + window": ({"full": PathCoverage(), "swa": Trailing(1024)}, {"full": 200_000, "swa": 120_000}),
    "full + Mamba": ({"full": PathCoverage(), "mamba": Point()}, {"full": 200_000, "mamba": 200}),
}
"""Components by coverage, and what fits on device: tokens, or states."""
SYSTEM_TOKENS = 800
VOCABULARY = 100_000
MAX_CHAT_TOKENS = 6_000
"""A chat that has grown longer begins again."""


def chats(count: int, seed: int = 1) -> Iterator[Chat]:
    """Requests: a prompt, and the same with its answer. A chat comes back the sooner the younger it is."""
    random, tokens = Random(seed), np.random.default_rng(seed)
    system = tokens.integers(0, VOCABULARY, SYSTEM_TOKENS)
    open_chats: list[NDArray[np.int64]] = []
    for _ in range(count):
        if not open_chats or random.random() < 0.2:
            open_chats.append(np.concatenate([system, tokens.integers(0, VOCABULARY, random.randint(50, 300))]))
        at = max(0, len(open_chats) - 1 - int(random.expovariate(1 / 60)))
        prompt = open_chats[at] if open_chats[at].size <= MAX_CHAT_TOKENS else system
        answered = np.concatenate([prompt, tokens.integers(0, VOCABULARY, random.randint(100, 400))])
        open_chats[at] = np.concatenate([answered, tokens.integers(0, VOCABULARY, random.randint(20, 200))])
        yield prompt, answered


def new_cache(kinds: str, page_size: int, settings: TreeSettings | None = None, policy: str = "lru") -> PrefixCache:
    """An empty cache."""
    coverages, sizes = KINDS[kinds]
    components = [Component(name=name, coverage=coverage) for name, coverage in coverages.items()]
    counts = {name: size if name == "mamba" else size // page_size for name, size in sizes.items()}
    return PrefixCache(components, page_size, counts, settings=settings, policy=policy)


def serve(cache: PrefixCache, requests: list[Chat], fastest: NDArray[np.int64], *, in_steps: bool = False) -> None:
    """Serve them one after the other, and keep the shorter times.

    Args:
        in_steps: the answer's tokens get their pages one after the other, as an engine asks for them, not all at once.
    """
    for at, (prompt, answered) in enumerate(requests):
        begin = perf_counter_ns()
        lease = cache.acquire(Key(prompt))
        cache.allocate(lease, prompt.size)
        cache.commit(lease, prompt.size, dict(lease.save_pages))
        for size in range(prompt.size + 1, answered.size) if in_steps else ():
            cache.allocate(lease, size)
        cache.allocate(lease, answered.size)
        cache.commit(lease, answered, {length: page for length, page in lease.save_pages.items() if length <= answered.size})
        cache.release(lease)
        fastest[at] = min(fastest[at], perf_counter_ns() - begin)


def in_turn(
    caches: Mapping[str, PrefixCache], requests: list[Chat], lives: int, *, in_steps: bool = False
) -> dict[str, NDArray[np.float64]]:
    """The times of each request with each cache, in µs; `in_steps` as in `serve`. It closes the caches."""
    fastest = {way: np.full(len(requests), 1 << 60) for way in caches}
    ways = list(caches)
    for life in range(lives + 1):
        these = [(prompt + life * VOCABULARY, answered + life * VOCABULARY) for prompt, answered in requests]
        if life == 1:
            for times in fastest.values():
                times[:] = 1 << 60
        for way in ways if life % 2 else ways[::-1]:
            gc.collect()
            gc.disable()
            serve(caches[way], these, fastest[way], in_steps=in_steps)
            gc.enable()
    for cache in caches.values():
        cache.close()
    return {way: times / 1000 for way, times in fastest.items()}


if __name__ == "__main__":
    sys.exit(main())
