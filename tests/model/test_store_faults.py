"""Random lives of a cache over a store that falls ill and recovers: stale lists, failing reads, spoilt pages, no room, no
answer, errors, and restarts that lose everything.

Every byte of every hit is compared. Beside that: a page is read in vain at most once a pause, or once more for each outage that
ended; the causes of all misses sum up to the prompts; a miss is a store's fault only if a fault was counted; and after the last
fault has ended and a pause has passed, what is computed is found in the store again.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from stored_cache import StoredCache, policy
from unwell_store import Rotten, Unwell

from unified_tree import Component, Path, Point, Trailing
from unified_tree.controllers.storage import Outcome
from unified_tree.controllers.storage_tier import PersistPolicy, PrefetchMode
from unified_tree.terms.errors import StorageError

KINDS = (
    [Component(name="full", coverage=Path(), page_bytes=64)],
    [Component(name="full", coverage=Path(), page_bytes=64), Component(name="swa", coverage=Trailing(5), page_bytes=64)],
    [Component(name="full", coverage=Path(), page_bytes=64), Component(name="mamba", coverage=Point(), page_bytes=64)],
)

ANSWERS: list[Outcome | type[StorageError]] = [Outcome.FAILED, Outcome.MISSING, StorageError]


class Life:
    """One seed's.

    Attributes:
        reads: by key when it was read in vain, in seconds.
    """

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.pause_s = rng.choice([0.5, 3.0, 10.0])
        self.most = rng.choice([1, 2, 8, 1000, 1000])
        prefetch = policy(
            mode=rng.choice([PrefetchMode.WAIT_COMPLETE, PrefetchMode.WAIT_COMPLETE, PrefetchMode.TIMEOUT]),
            base_s=rng.choice([0.000_001, 1.0]),
            batch_pages=rng.choice([1, 2, 8]),
            failed_pause_s=self.pause_s,
            max_failed_pages=self.most,
        )
        persist = PersistPolicy(
            retry_s=rng.choice([None, 1.0, 5.0]), max_waiting=rng.choice([1, 3, 100]), recheck_s=rng.choice([1.0, 600.0])
        )
        self.cache = StoredCache(rng.choice(KINDS), prefetch=prefetch, persist=persist)
        self.engine = rng.choice([Unwell, Unwell, Rotten])(self.cache.every_pool)
        self.cache.attach(engine=self.engine)
        self.heads = [[rng.randrange(50) for _ in range(12)] for _ in range(3)]
        self.reads: dict[bytes, list[float]] = {}
        self.counted: dict[bytes, int] = {}

    @property
    def now_s(self) -> float:
        return self.cache.clock.now / 1e9

    @property
    def storage(self) -> Any:
        return self.cache.cache.storage

    def prompt(self) -> list[int]:
        return [*self.rng.choice(self.heads), *self.rng.choices(range(50), k=self.rng.choice([0, 3, 9]))]

    def act(self) -> None:
        rng = self.rng
        match rng.choices(
            ["compute", "fetch", "forget", "stale", "answer", "full", "away", "raising", "heal", "lose", "time"],
            [4, 8, 5, 2, 1, 0.4, 0.4, 0.4, 2, 0.3, 2],
        )[0]:
            case "compute":
                self.cache.compute(self.prompt())
            case "fetch":
                self.cache.fetch(self.prompt())
            case "forget":
                self.cache.forget()
            case "stale":
                pools = [pool.name for pool in self.cache.every_pool]
                there = self.engine.keys(rng.choice(pools))
                self.engine.stale.update(rng.sample(there, min(len(there), rng.choice([1, 2, 20]))))
            case "answer":
                self.engine.answer = rng.choice(ANSWERS)
            case "full":
                self.engine.is_full = True
            case "away":
                self.engine.is_away = True
            case "raising":
                self.engine.is_raising = True
            case "heal":
                self.engine.heal()
            case "lose":
                self.engine.lose()
            case "time":
                self.cache.clock.advance(int(rng.choice([0.1, 1.0, 20.0]) * 1e9))
        self.check()

    def check(self) -> None:
        for key, count in self.engine.failing_reads.items():
            for _ in range(count - self.counted.get(key, 0)):
                self.reads.setdefault(key, []).append(self.now_s)
            self.counted[key] = count
        stats = self.cache.cache.stats()
        assert sum(stats.misses.values()) == stats.prompt_tokens - stats.hit_tokens
        storage = stats.storage
        assert storage is not None
        assert storage.failed_pages <= self.most
        if stats.misses["store_failed"] and self.cache.tier is not None:
            is_late = stats.drops.get("prefetch out of time", 0) > 0
            assert is_late or sum(storage.faults.values()) > 0

    def check_reads(self) -> None:
        """A rotten page is removed when it is read, and may rot again when it was written anew; a small memory forgets."""
        if isinstance(self.engine, Rotten) or self.most < 1000:
            return
        allowed = 1 + self.storage.shared.store.outages
        for times in self.reads.values():
            for first in times:
                assert sum(first <= at < first + self.pause_s for at in times) <= allowed, times

    def recover(self) -> None:
        """Everything is well again and a pause has passed."""
        self.engine.heal()
        self.cache.clock.advance(int(700e9))
        self.cache.fetch([51] * 9)
        self.cache.attach(engine=self.engine, prefetch=policy()) if self.rng.random() < 0.2 else None
        self.cache.forget()
        fresh = [60 + number for number in range(21)]
        self.cache.compute(fresh)
        self.cache.cache.drain()
        self.cache.forget()
        self.cache.attach(engine=self.engine, prefetch=policy())
        assert self.cache.fetch(fresh) == 20, "what is stored from now on is found"


def live(seed: int, steps: int) -> Life:
    life = Life(seed)
    for _ in range(steps):
        life.act()
    life.check_reads()
    life.recover()
    life.cache.end()
    return life


def test_lives_with_an_unwell_store(record_property: Any) -> None:
    failed = 0
    for seed in range(60):
        failed += live(seed, 60).cache.cache.stats().misses["store_failed"]
    assert failed > 1000, "the store's faults cost something"
    record_property("operations", 60 * 60)


@pytest.mark.deep
@pytest.mark.parametrize("part", range(4))
def test_many_lives(part: int) -> None:
    for seed in range(1000 * (part + 1), 1000 * (part + 1) + 400):
        live(seed, 150)
