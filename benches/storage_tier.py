"""`python -m benches.storage_tier`: what a store behind the host tier costs the scheduler's own thread.

Question: what do a poll while 1,000 prefetches are in flight and none has ended, the call that begins a prefetch, the polls
that take it from step to step up to the graft, and the begin of a persist cost, for a prompt of 128k tokens?
Not: how fast a store is, or what its threads take from the scheduler's by holding the interpreter; no step of a job runs while
the clock does, and only a poll over prefetches in flight has real threads behind it, which wait for their store.

Pages hold next to nothing. `answers` says what came of it: tokens on host, or boundaries stored.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from benches.rounds import options_of, told, written
from unified_tree import Component, Key, Point, Tier, Trailing
from unified_tree import Path as ComponentPath
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.pools.host_layout import TRAILER_BYTES
from unified_tree.controllers.storage import MemoryStorage, StoredPool
from unified_tree.controllers.storage.restore_point import record_pool
from unified_tree.controllers.storage_tier import (
    Jobs,
    PersistPolicy,
    PrefetchMode,
    PrefetchPolicy,
    StorageTier,
    ThreadJobs,
)
from unified_tree.controllers.storage_tier.jobs import Job, Steps
from unified_tree.controllers.storage_tier.stored_composition import RECORDS
from unified_tree.controllers.testing import SimulatedEngine
from unified_tree.controllers.transfer_engines import VirtualClock
from unified_tree.terms.results import Boundary

PAGE_SIZE = 64
PAGE_BYTES = 64 + TRAILER_BYTES
COMPOSITIONS = {
    "full": [Component(name="full", coverage=ComponentPath())],
    "full, swa, mamba": [
        Component(name="full", coverage=ComponentPath()),
        Component(name="swa", coverage=Trailing(4096)),
        Component(name="mamba", coverage=Point()),
    ],
}
HEAD = f"{'operation':<40}{'composition':<20}{'tokens':>9}{'min us':>10}{'median us':>11}{'max us':>10}  answers"


class SmallPages:
    """Host memory of one component: a page is little more than its trailer."""

    def __init__(self) -> None:
        self._pages: dict[int, memoryview] = {}

    @property
    def payload_bytes(self) -> int:
        """See PageMemory."""
        return PAGE_BYTES - TRAILER_BYTES

    def page_memory(self, page: int) -> memoryview:
        """See PageMemory."""
        if page not in self._pages:
            self._pages[page] = memoryview(bytearray(PAGE_BYTES))
        return self._pages[page]


class Blocked(MemoryStorage):
    """A store that says nothing until it is let go."""

    def __init__(self, pools: Sequence[StoredPool]) -> None:
        super().__init__(pools)
        self.go_on = threading.Event()

    def exists(self, pool: str, keys: Sequence[bytes]) -> Any:
        """See StorageEngine.exists."""
        self.go_on.wait()
        return super().exists(pool, keys)


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
            c.name: StoredPool(name=c.name, format_digest=bytes([i]) * 32, value_bytes=PAGE_BYTES)
            for i, c in enumerate(components)
        }
        self.memory = {name: SmallPages() for name in self.pools}
        trailing = [self.pools[c.name] for c in components if not c.coverage.is_path]
        self.opened = [*self.pools.values(), *([record_pool(trailing, RECORDS)] if trailing else [])]


class Server:
    """A cache over a store."""

    def __init__(
        self, components: list[Component], jobs: Callable[[], Jobs], store: Callable[[list[StoredPool]], MemoryStorage]
    ) -> None:
        small = SmallStore(components)
        self.components = components
        self.engine = store(small.opened)
        self.reading, self.writing = jobs(), jobs()
        host = HostTier(page_counts={}, engine=SimulatedEngine(0, VirtualClock()))
        self.cache = PrefixCache(components, PAGE_SIZE, host=host)
        self.tier = StorageTier(
            engine=self.engine,
            pools=small.pools,
            memory=small.memory,
            weights_version="v1",
            prefetch=PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, max_host_share=1.0),
            persist=PersistPolicy(recheck_s=0.0),
            reading=self.reading,
            writing=self.writing,
        )
        self.cache.attach_storage(self.tier)

    def put_on_host(self, key: Key) -> Boundary:
        """As a backup would."""
        assert self.cache.controller is not None
        host, count = self.cache.controller.host, key.length // PAGE_SIZE
        needs = {c.name: c.coverage.pages_needed(count * PAGE_SIZE, PAGE_SIZE) for c in self.components}
        result = self.cache.tree.transfers.graft(key, host.allocate_all(needs))
        host.free_all(result.unused)
        return result.boundary

    def forget(self) -> None:
        """The host loses everything."""
        assert self.cache.controller is not None
        host = self.cache.controller.host
        for name in host.allocators:
            host.free_evicted(self.cache.tree.evict({name: self.cache.tree.pool(name, Tier.HOST).used_pages}, Tier.HOST))


def timed(work: Callable[[], object]) -> int:
    """Nanoseconds."""
    start = perf_counter_ns()
    work()
    return perf_counter_ns() - start


def poll_rows(components: list[Component], flights: int, rounds: int) -> list[tuple[str, int, list[int], str]]:
    """Prefetches that wait for a store, and polls meanwhile."""
    server = Server(components, ThreadJobs, Blocked)
    blocked = server.engine
    assert isinstance(blocked, Blocked)
    tokens = 1025
    keys = [Key(np.arange(tokens) + number * tokens) for number in range(flights)]
    begins = [timed(partial(server.cache.prefetch, number, key)) for number, key in enumerate(keys)]
    polls = [timed(server.cache.poll) for _ in range(rounds + 10)][10:]
    asked = [timed(partial(server.cache.prefetched, number)) for number in range(flights)]
    answers = f"{server.tier.engine.stats().pools['full'].queries} pages answered"
    assert server.cache.stats().storage is not None
    blocked.go_on.set()
    server.cache.close()
    return [
        (f"poll, {flights} in flight", tokens, polls, answers),
        (f"prefetch, the 1st … {flights}th", tokens, begins[flights // 100 :], answers),
        ("prefetched", tokens, asked, answers),
    ]


def prompt_rows(components: list[Component], tokens: int, rounds: int) -> list[tuple[str, int, list[int], str]]:
    """One long prompt, persisted, forgotten and prefetched."""
    server = Server(components, HeldJobs, MemoryStorage)
    reading, writing = server.reading, server.writing
    assert isinstance(reading, HeldJobs) and isinstance(writing, HeldJobs) and server.cache.storage is not None
    storage, key = server.cache.storage, Key(np.arange(tokens + 1))
    found: dict[str, list[int]] = {"persist, begin": [], "persist, end": [], "prefetch, nothing on host": []}
    for turn in range(-1, rounds):
        took: dict[str, int] = {}
        storage.backed_up(server.put_on_host(key.prefix(tokens)))
        took["persist, begin"] = timed(server.cache.poll)
        writing.run()
        took["persist, end"] = timed(server.cache.poll)
        server.forget()
        took["prefetch, nothing on host"] = timed(partial(server.cache.prefetch, turn, key))
        step = 0
        while reading.run():
            step += 1
            took[f"poll after step {step} of a prefetch"] = timed(server.cache.poll)
        if turn >= 0:
            for name, nanoseconds in took.items():
                found.setdefault(name, []).append(nanoseconds)
        reached = server.cache.tree.match_prefix(key, limit=tokens).reachable.length
        server.cache.cancel(turn)
    whole = Key(np.concatenate((np.arange(tokens), np.arange(tokens) + 10**6)))
    again = [timed(partial(server.cache.prefetch, turn, whole)) for turn in range(-1, rounds)][1:]
    answers = f"{reached} tokens on host, {storage.stats().persisted_boundaries} stored"
    server.cache.close()
    rows = [(name, tokens, times, answers) for name, times in found.items()]
    return [*rows, ("prefetch, half of it on host", 2 * tokens, again, answers)]


def main(arguments: list[str] | None = None) -> int:
    """Measure and report."""
    options = options_of(
        "storage_tier",
        __doc__,
        quick="few and short prompts",
        rounds=31,
        what="rounds of a long prompt; of polls a hundred times as many",
    ).parse_args(arguments)
    where = told(HEAD)
    flights, tokens, rounds = (10, 1024, 2) if options.quick else (1000, 131_072, options.rounds)
    rows = []
    for name, components in COMPOSITIONS.items():
        for measured in (*poll_rows(components, flights, 100 * rounds), *prompt_rows(components, tokens, rounds)):
            operation, length, times, answers = measured
            low, middle, high = (round(value / 1000, 1) for value in (min(times), statistics.median(times), max(times)))
            print(f"{operation:<40}{name:<20}{length:>9}{low:>10}{middle:>11}{high:>10}  {answers}", flush=True)
            rows.append(
                {"operation": operation, "composition": name, "tokens": length, "min_us": low, "median_us": middle}
                | {"max_us": high, "answers": answers, "load": round(os.getloadavg()[0], 2)}
            )
    return written(rows, where, options.json)


if __name__ == "__main__":
    sys.exit(main())
