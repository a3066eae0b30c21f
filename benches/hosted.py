"""`python -m benches.hosted`: what a host tier, ranks and a store cost a request, as processor time of the thread that calls
`PrefixCache`.

Question: how much longer does a request take (acquire; allocate, commit and poll for each chunk of 8,192 tokens and each stop;
allocate and poll for every 64 tokens of answer; commit, release and six polls) where every boundary is copied to host, where
ranks agree on each copy besides, and where a store behind the host gets what the host gets? No byte is moved on device and
host, and pages hold next to nothing, so what is measured is the bookkeeping: a request backs up two boundaries, those of its
prompt and its answer. With a store the scheduler asks it for each prompt, too. `--running N` serves N conversations side by
side, as servers do: one poll a step for all of them.

`--floor` also serves them through a cache on the device alone, beside which the tiers' irreducible work is done and nothing
else (`benches.hosted_floor`).

Silent on: the copies, loads, full pools, other ranks' lateness (there is one), and what a store's threads do, which run between
two rounds, when no clock does. Then another cache, one with a store, serves the same requests, so that all ways find the
processor's caches as others' work has left them. All ways serve the same requests, in turn; of each round (one request of each
running conversation) the fastest of all lives counts, and a conversation's first turn does not.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from time import thread_time_ns
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from benches.hosted_floor import BareTiers
from benches.rounds import LIVES, options_of, print_table
from unified_tree import Boundary, Component, Key, Point, Trailing
from unified_tree import Path as PathCoverage
from unified_tree.controllers import HostTier, Lease, PrefixCache
from unified_tree.controllers.pools.host_layout import TRAILER_BYTES
from unified_tree.controllers.ranks import LocalConsensus
from unified_tree.controllers.storage import MemoryStorage, StoredPool
from unified_tree.controllers.storage.restore_point import record_pool
from unified_tree.controllers.storage_tier import PersistPolicy, StorageTier
from unified_tree.controllers.storage_tier.jobs import Job, Steps
from unified_tree.controllers.storage_tier.stored_composition import RECORDS
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.lookup.matching import spare_from

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
LOADS = {"chat": (60, 1_000, 6, 128), "agent": (1, 112_010, 60, 512)}
QUICK_LOADS = {"chat": (3, 1_000, 2, 128), "agent": (1, 9_010, 2, 512)}
"""Conversations, tokens of the first prompt, turns, tokens of an answer. Each turn adds ADDED_TOKENS to what was answered. No
prompt is of whole pages: of these a tier copies two boundaries.
"""
ADDED_TOKENS = 128
MOST_WRITES = 1000
"""At a time, so that all of a round begin in it."""
WAYS: dict[str, tuple[str, ...]] = {
    "device": (),
    "hosted": ("host",),
    "ranks": ("host", "ranks"),
    "store": ("host", "store"),
    "all": ("host", "ranks", "store"),
}
"""What each has beside the device."""
STORED_BYTES = 64 + TRAILER_BYTES
"""A page on host and in the store is little more than its trailer."""


def serve(
    cache: PrefixCache, bare: BareTiers | None, name: int, prompt: NDArray[np.int64], answer: NDArray[np.int64]
) -> Iterator[int]:
    """Serve one request up to the end of a step, over and over; yields how many tokens were cached."""
    key = Key(prompt)
    if cache.storage is not None:
        cache.prefetch(name, key)
        cache.prefetched(name)
    elif bare is not None and bare.has_store:
        bare.asked(key)
    lease = cache.acquire(key, request=name)
    cached, computed = lease.cached_tokens, lease.compute_from
    while computed < prompt.size:
        stop = lease.next_stop(computed)
        computed = min(prompt.size, computed + CHUNK_TOKENS, prompt.size if stop is None else stop)
        cache.allocate(lease, computed)
        cache.commit(lease, computed, states=saved(lease, computed))
        if bare is not None and (computed == prompt.size or is_kept(cache, lease.boundary)):
            bare.committed(lease.boundary, cached)
        yield cached
    end = prompt.size + answer.size
    for length in range(prompt.size + PAGE_SIZE, end + PAGE_SIZE, PAGE_SIZE):
        cache.allocate(lease, min(end, length))
        yield cached
    cache.commit(lease, answer, states=saved(lease, end), begin=prompt.size)
    if bare is not None:
        bare.committed(lease.boundary, prompt.size // PAGE_SIZE * PAGE_SIZE)
    cache.release(lease)
    for _ in range(6):
        yield cached


def is_kept(cache: PrefixCache, boundary: Boundary) -> bool:
    """Whether a tier copies a boundary: where windows are spare it does not."""
    node = cache.tree.state.nodes.get(boundary.node)
    is_spare = node is not None and spare_from(cache.tree.state, node, boundary.length) is not None
    return not is_spare and cache.tree.transfers.is_boundary(boundary)


def saved(lease: Lease, computed: int) -> dict[int, int]:
    """The states that are there by now."""
    return {length: page for length, page in lease.save_pages.items() if length <= computed}


class Server:
    """An empty cache, and what is behind it; or beside it, if it is bare (see `BareTiers`)."""

    def __init__(self, kinds: str, has: tuple[str, ...], *, is_bare: bool = False) -> None:
        components = KINDS[kinds]
        counts = {component.name: PAGE_COUNTS[component.name] for component in components}
        behind = {name: 2 * count for name, count in counts.items()}
        self._jobs: list[HeldJobs] = []
        self.bare: BareTiers | None = None
        if is_bare:
            self.cache = PrefixCache(components, PAGE_SIZE, counts)
            self.bare = BareTiers(self.cache, behind, has)
            return
        host = HostTier(page_counts=behind, engine=NullEngine()) if "host" in has else None
        ranks = LocalConsensus() if "ranks" in has else None
        self.cache = PrefixCache(components, PAGE_SIZE, counts, host=host, ranks=ranks)
        if "store" in has:
            self._attach_store(components)

    def _attach_store(self, components: tuple[Component, ...]) -> None:
        small = SmallStore(components)
        reading, writing = self._jobs = [HeldJobs(), HeldJobs()]
        self.cache.attach_storage(
            StorageTier(
                engine=MemoryStorage(small.opened),
                pools=small.pools,
                memory=small.memory,
                weights_version="v1",
                persist=PersistPolicy(max_open=MOST_WRITES),
                reading=reading,
                writing=writing,
            )
        )

    def run_jobs(self) -> None:
        """What the store's threads would do meanwhile."""
        for jobs in self._jobs:
            jobs.run()
        if self.bare is not None:
            self.bare.run_jobs()

    def round(self, prompts: list[NDArray[np.int64]], answers: list[NDArray[np.int64]]) -> tuple[float, list[int]]:
        """Serve these requests side by side: nanoseconds a request, and how many tokens of each were cached."""
        begin = thread_time_ns()
        requests = zip(prompts, answers, strict=True)
        running = [serve(self.cache, self.bare, name, *request) for name, request in enumerate(requests)]
        cached = [0] * len(running)
        is_running = True
        while is_running:
            is_running = False
            for number, request in enumerate(running):
                found = next(request, None)
                if found is not None:
                    cached[number] = found
                    is_running = True
            if is_running:
                self.cache.poll()
                if self.bare is not None:
                    self.bare.poll()
        return (thread_time_ns() - begin) / len(running), cached


class SmallPages:
    """Host memory of one component: a page is little more than its trailer."""

    def __init__(self) -> None:
        self._pages: dict[int, memoryview] = {}

    @property
    def payload_bytes(self) -> int:
        """See PageMemory."""
        return STORED_BYTES - TRAILER_BYTES

    def page_memory(self, page: int) -> memoryview:
        """See PageMemory."""
        if page not in self._pages:
            self._pages[page] = memoryview(bytearray(STORED_BYTES))
        return self._pages[page]


class HeldJobs:
    """Jobs that run when they are told to, outside of what is measured."""

    def __init__(self) -> None:
        self._held: list[Job] = []
        self._ended: list[Job] = []

    def start(self, steps: Steps) -> Job:
        """See Jobs.start."""
        self._held.append(Job(steps))
        return self._held[-1]

    def run(self) -> bool:
        """Run what was started; whether there was any."""
        held, self._held = self._held, []
        for job in held:
            for _ in job.steps:
                pass
        self._ended += held
        return bool(held)

    def ended(self) -> list[Job]:
        """See Jobs.ended."""
        ended, self._ended = self._ended, []
        return ended

    def wait(self) -> None:
        """See Jobs.wait."""
        self.run()

    def close(self) -> None:
        """See Jobs.close."""
        for job in self._held:
            job.error = "closed"
        self._ended += self._held
        self._held = []


class SmallStore:
    """The pools of some components in a store, and small pages on host for them.

    Attributes:
        opened: what the engine has to be opened with.
    """

    def __init__(self, components: Sequence[Component]) -> None:
        self.pools = {
            c.name: StoredPool(name=c.name, format_digest=bytes([i]) * 32, value_bytes=STORED_BYTES)
            for i, c in enumerate(components)
        }
        self.memory = {name: SmallPages() for name in self.pools}
        trailing = [self.pools[c.name] for c in components if not c.coverage.is_path]
        self.opened = [*self.pools.values(), *([record_pool(trailing, RECORDS)] if trailing else [])]


def live(server: Server, other: Server, load: tuple[int, int, int, int], running: int) -> tuple[list[float], int]:
    """Nanoseconds a request of each round behind a conversation's first, and a checksum of what was found. Between two rounds
    the other server serves the same."""
    conversations, first_tokens, turns, answer_tokens = load
    tokens = np.random.default_rng(0)
    times: list[float] = []
    found = 0
    for _ in range(max(1, conversations // running)):
        prompts = [tokens.integers(0, 1 << 30, first_tokens) for _ in range(running)]
        for turn in range(turns):
            answers = [tokens.integers(0, 1 << 30, answer_tokens) for _ in range(running)]
            time, cached = server.round(prompts, answers)
            server.run_jobs()
            other.round(prompts, answers)
            other.run_jobs()
            if turn:
                times.append(time)
            found = crc32(repr(cached).encode(), found)
            both = zip(prompts, answers, strict=True)
            prompts = [np.concatenate((*request, tokens.integers(0, 1 << 30, ADDED_TOKENS))) for request in both]
    return times, found


def measure(
    kinds: str, name: str, load: tuple[int, int, int, int], running: int, lives: int, *, has_floor: bool = False
) -> dict[str, Any]:
    """One row: all ways, in turn; of each that has more than the device its floor as well, if that is asked for."""
    fastest: dict[str, list[float]] = {}
    found = set()
    backups = 0.0
    ways = [(way, has, False) for way, has in WAYS.items()]
    if has_floor:
        ways += [(f"{way}_floor", has, True) for way, has in WAYS.items() if has]
    for _ in range(lives):
        for way, has, is_bare in ways:
            server, other = Server(kinds, has, is_bare=is_bare), Server(kinds, WAYS["store"])
            gc.collect()
            gc.disable()
            times, checksum = live(server, other, load, running)
            gc.enable()
            server.cache.drain()
            stats = server.cache.stats()
            copies = stats.backed_up.count if server.bare is None else server.bare.copies
            assert not has or backups in (0.0, copies / stats.requests), "a floor copies what a tier copies"
            if has:
                backups = copies / stats.requests
            assert stats.storage is None or stats.storage.persisted_boundaries, "the store gets what the host gets"
            server.cache.close()
            other.cache.close()
            found.add(checksum)
            fastest[way] = list(map(min, fastest.get(way, times), times))
    assert len(found) == 1, "what is never needed changes no hit"
    medians = {way: float(np.median(times)) / 1000 for way, times in fastest.items()}
    return {
        "components": kinds,
        "load": name,
        "running": running,
        "backups": backups,
        "backup_us": (medians["hosted"] - medians["device"]) / backups,
        "digest": f"{found.pop():08x}",
        **{f"{way}_us": median for way, median in medians.items()},
        **{f"{way}_ratio": median / medians["device"] for way, median in medians.items()},
    }


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print the table, and write the rows."""
    parser = options_of("hosted", __doc__, quick="two turns of few conversations", rounds=5, what=LIVES)
    parser.add_argument("--running", type=int, default=1, help="conversations at a time")
    parser.add_argument("--floor", action="store_true", help="also what the tiers cannot do without")
    options = parser.parse_args(arguments)
    quick: bool = options.quick
    rows = (
        measure(kinds, name, load, options.running, 1 if quick else options.lives, has_floor=options.floor)
        for name, load in (QUICK_LOADS if quick else LOADS).items()
        for kinds in KINDS
    )
    floor = " (floor {{{way}_floor_ratio:.2f}})" if options.floor else ""
    ways = " | ".join(f"{{{way}_us:.1f}} µs = {{{way}_ratio:.2f}}{floor.format(way=way)}" for way in WAYS if way != "device")
    print_table(
        "load | components | backups a request | device only | with a host tier | and ranks | host, store | host, ranks, store",
        f"{{load}} | {{components}} | {{backups:.1f}} | {{device_us:.1f}} µs | {ways}",
        rows,
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
