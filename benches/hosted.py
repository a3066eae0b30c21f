"""`python -m benches.hosted`: what a host tier costs a request, as processor time of the thread that calls `PrefixCache`.

Question: how much longer does a request take (acquire; allocate, commit and poll for each chunk of 8,192 tokens and each stop;
allocate and poll for every 64 tokens of answer; commit, release and six polls) where every boundary is copied to host? The
engine moves no bytes, so what is measured is the bookkeeping: a request backs up two boundaries, its prompt's and its answer's.
Silent on: the copies, loads, full pools, many requests at a time, a store, ranks. Both ways serve the same requests, in turn;
of each request the fastest of all lives counts, and a conversation's first turn does not.
"""

from __future__ import annotations

import gc
import sys
from time import thread_time_ns
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from benches.two_ways import parser_of, print_table
from unified_tree import Component, Key, Point, Trailing
from unified_tree import Path as PathCoverage
from unified_tree.controllers import HostTier, Lease, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine

PAGE_SIZE = 64
CHUNK_TOKENS = 8192
STATES = 4000
FULL = Component(name="full", coverage=PathCoverage(), page_bytes=64)
KINDS: dict[str, tuple[Component, ...]] = {
    "full": (FULL,),
    "full + window": (FULL, Component(name="swa", coverage=Trailing(512), page_bytes=64)),
    "full + Mamba": (FULL, Component(name="mamba", coverage=Point(), page_bytes=64)),
}
PAGE_COUNTS = {"full": 60_000, "swa": 30_000, "mamba": STATES}
"""On device, none of them ever full; the host has twice as many."""
LOADS = {"chat": (60, 1_000, 6, 128), "agent": (1, 112_000, 60, 512)}
"""Conversations, tokens of the first prompt, turns, tokens of an answer. Each turn adds ADDED_TOKENS to what was answered."""
ADDED_TOKENS = 128


def serve(cache: PrefixCache, prompt: NDArray[np.int64], answer: NDArray[np.int64]) -> int:
    """Serve one request, and return how many tokens were cached."""
    lease = cache.acquire(Key(prompt))
    cached, computed = lease.cached_tokens, lease.compute_from
    while computed < prompt.size:
        stop = lease.next_stop(computed)
        computed = min(prompt.size, computed + CHUNK_TOKENS, prompt.size if stop is None else stop)
        cache.allocate(lease, computed)
        cache.commit(lease, computed, states=saved(lease, computed))
        cache.poll()
    end = prompt.size + answer.size
    for length in range(prompt.size + PAGE_SIZE, end + PAGE_SIZE, PAGE_SIZE):
        cache.allocate(lease, min(end, length))
        cache.poll()
    cache.commit(lease, answer, states=saved(lease, end), begin=prompt.size)
    cache.release(lease)
    for _ in range(6):
        cache.poll()
    return cached


def saved(lease: Lease, computed: int) -> dict[int, int]:
    """The states that are there by now."""
    return {length: page for length, page in lease.save_pages.items() if length <= computed}


def new_cache(kinds: str, *, host: bool) -> PrefixCache:
    """An empty cache."""
    counts = {component.name: PAGE_COUNTS[component.name] for component in KINDS[kinds]}
    behind = {name: 2 * count for name, count in counts.items()}
    tier = HostTier(page_counts=behind, engine=NullEngine()) if host else None
    return PrefixCache(KINDS[kinds], PAGE_SIZE, counts, host=tier)


def live(cache: PrefixCache, load: str, turns: int) -> tuple[list[int], int]:
    """Nanoseconds of each request behind a conversation's first, and a checksum of what was found."""
    conversations, first_tokens, _, answer_tokens = LOADS[load]
    tokens = np.random.default_rng(0)
    times: list[int] = []
    found = 0
    for _ in range(conversations):
        prompt = tokens.integers(0, 1 << 30, first_tokens)
        for turn in range(turns):
            answer = tokens.integers(0, 1 << 30, answer_tokens)
            begin = thread_time_ns()
            cached = serve(cache, prompt, answer)
            if turn:
                times.append(thread_time_ns() - begin)
            found = crc32(cached.to_bytes(8, "little"), found)
            prompt = np.concatenate((prompt, answer, tokens.integers(0, 1 << 30, ADDED_TOKENS)))
    return times, found


def measure(kinds: str, load: str, turns: int, lives: int) -> dict[str, Any]:
    """One row: without and with a host tier, in turn."""
    fastest: dict[bool, list[int]] = {}
    found = set()
    backups = 0.0
    for _ in range(lives):
        for host in (False, True):
            cache = new_cache(kinds, host=host)
            gc.collect()
            gc.disable()
            times, checksum = live(cache, load, turns)
            gc.enable()
            cache.drain()
            backups = cache.stats().backed_up.count / cache.stats().requests
            cache.close()
            found.add(checksum)
            fastest[host] = list(map(min, fastest.get(host, times), times))
    assert len(found) == 1, "a host tier that is never needed changes no hit"
    device, hosted = (float(np.median(fastest[host])) / 1000 for host in (False, True))
    return {
        "components": kinds,
        "load": load,
        "backups": backups,
        "device_us": device,
        "hosted_us": hosted,
        "backup_us": (hosted - device) / backups,
        "ratio": hosted / device,
        "digest": f"{found.pop():08x}",
    }


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print the table, and write the rows."""
    parser = parser_of("benches.hosted", __doc__, lives=5, quick="two turns of each conversation")
    options = parser.parse_args(arguments)
    quick: bool = options.quick
    rows = (
        measure(kinds, load, 2 if quick else turns, 1 if quick else options.lives)
        for load, (_, _, turns, _) in LOADS.items()
        for kinds in KINDS
    )
    print_table(
        "load | components | backups a request | device only | with a host tier | a backup | ratio",
        "{load} | {components} | {backups:.1f} | {device_us:.1f} µs | {hosted_us:.1f} µs | {backup_us:.1f} µs | {ratio:.2f}",
        rows,
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
