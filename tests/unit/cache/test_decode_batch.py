"""Leases in a batch do what they would do one by one: the same calls on two caches, compared after each."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from kinds import SETS

from unified_tree import Component, Key, LeaseError, OutOfPagesError, Path, Point, Trailing, is_compiled
from unified_tree.controllers import DecodeBatch, Lease, PrefixCache
from unified_tree.controllers.pages import tier_pages

FULL = [Component(name="full", coverage=Path())]
WINDOW = [*FULL, Component(name="swa", coverage=Trailing(7))]
MAMBA = [*FULL, Component(name="mamba", coverage=Point())]
MAX_LEASES = 4


def summary(lease: Lease) -> Any:
    """All that a lease says but the names of its pages."""
    tables = {
        name: (t.first_held, t.private_from, t.size, (lease.pages(name) < 0).tolist()) for name, t in lease.tables.items()
    }
    states = (lease.state_page is None, list(lease.save_pages), lease.saved)
    return lease.length, lease.computed, lease.committed, lease.known_tokens, tables, states


class Pair:
    """Two caches, one with a batch; every step is done by it there, and lease by lease in the other."""

    def __init__(self, kinds: str, rng: Random) -> None:
        self.rng = rng
        self.size = rng.choice([1, 2, 3])
        draft_tokens = rng.choice([0, 1, 5])
        self.caches = [PrefixCache(SETS[kinds], self.size, save_limit=2, draft_tokens=draft_tokens) for _ in range(2)]
        self.batch = self.caches[0].batch(MAX_LEASES, 100)
        self.pairs: list[tuple[Lease, Lease]] = []
        self.texts: list[list[int]] = [[]]

    @property
    def batched(self) -> list[tuple[Lease, Lease]]:
        """The pairs whose first is in the batch, by row."""
        return sorted((pair for pair in self.pairs if pair[0].row is not None), key=lambda pair: pair[0].row or 0)

    def both(self, call: Callable[[PrefixCache, Lease], object], pair: tuple[Lease, Lease]) -> None:
        """One call of each of two leases, which end alike."""
        refused = []
        for cache, lease in zip(self.caches, pair, strict=True):
            try:
                call(cache, lease)
                refused.append(False)
            except LeaseError:
                refused.append(True)
        assert refused[0] == refused[1]

    def acquire(self) -> None:
        """A prompt that goes on from an older one, computed or not."""
        old = self.rng.choice(self.texts)
        tokens = old[: self.rng.randrange(len(old) + 1)] + [self.rng.randrange(3) for _ in range(self.rng.randrange(1, 12))]
        save_output = self.rng.random() < 0.7
        first, second = (cache.acquire(Key(tokens), save_output=save_output) for cache in self.caches)
        self.pairs.append((first, second))
        if self.rng.random() < 0.8:
            for cache, lease in zip(self.caches, (first, second), strict=True):
                cache.allocate(lease, len(tokens))
                cache.commit(lease, len(tokens), self.states(lease, len(tokens)))
            self.texts.append(tokens)

    def states(self, lease: Lease, length: int) -> dict[int, int]:
        """The states that a lease has saved, all that a commit of so many tokens can publish."""
        return {at: page for at, page in lease.save_pages.items() if at <= length // self.size * self.size}

    def add(self) -> None:
        """A lease enters."""
        free = [pair for pair in self.pairs if pair[0].row is None]
        if free and len(self.batched) < MAX_LEASES:
            pair = self.rng.choice(free)
            self.caches[1].allocate(pair[1], pair[1].length)
            assert self.batch.add(pair[0]) == pair[0].row

    def remove(self) -> None:
        """A lease leaves."""
        if self.batched:
            self.batch.remove(self.rng.choice(self.batched)[0])

    def release(self) -> None:
        """A lease ends, in the batch or not."""
        if self.pairs:
            pair = self.rng.choice(self.pairs)
            self.both(PrefixCache.release, pair)
            self.pairs.remove(pair)

    def allocate(self) -> None:
        """Some tokens each, seldom many."""
        most = self.rng.choice([1, 1, 2, 7])
        pairs = self.batched
        tokens = [self.rng.randrange(most + 1) for _ in pairs]
        if any(lease.length + n > 60 for (lease, _), n in zip(pairs, tokens, strict=True)):
            return
        if len(set(tokens)) == 1 and self.rng.random() < 0.5:
            news = self.batch.allocate(tokens[0])
        else:
            news = self.batch.allocate(np.array(tokens, np.int32))
        for name, found in news.items():
            assert self.batch.tables[name][found.rows, found.indices].tolist() == found.ids.tolist()
        for (_, lease), n in zip(pairs, tokens, strict=True):
            self.caches[1].allocate(lease, lease.length + n)

    def advance(self) -> None:
        """All that is allocated is computed, or some."""
        pairs = self.batched
        if self.rng.random() < 0.5:
            self.batch.advance()
            lengths = [lease.length for _, lease in pairs]
        else:
            lengths = [self.rng.randrange(lease.length + 1) for _, lease in pairs]
            self.batch.advance(np.array(lengths, np.int64))
        for (_, lease), length in zip(pairs, lengths, strict=True):
            self.caches[1].advance(lease, length)

    def truncate(self) -> None:
        """Drafts are rejected."""
        pairs = self.batched
        lengths = [max(lease.committed, lease.length - self.rng.choice([0, 0, 1, 2, 9])) for _, lease in pairs]
        if all(lease.committed <= lease.length for lease, _ in pairs):  # not before what was cached is allocated
            self.batch.truncate(np.array(lengths, np.int64))
            for (_, lease), length in zip(pairs, lengths, strict=True):
                self.caches[1].truncate(lease, length)

    def single(self) -> None:
        """A call of one lease, in the batch or not."""
        if not self.pairs:
            return
        pair, extra = self.rng.choice(self.pairs), self.rng.randrange(4)
        if pair[1].length > 60:
            return
        match self.rng.choice(["allocate", "advance", "truncate", "commit", "commit"]):
            case "allocate":
                self.both(lambda cache, lease: cache.allocate(lease, lease.length + extra), pair)
            case "advance":
                self.both(lambda cache, lease: cache.advance(lease, max(0, lease.length - extra)), pair)
            case "truncate":
                self.both(lambda cache, lease: cache.truncate(lease, max(0, lease.length - extra)), pair)
            case "commit":
                known = pair[1].known_tokens
                news = [self.rng.randrange(3) for _ in range(pair[1].length - known)]
                self.both(
                    lambda c, at: c.commit(at, news, self.states(at, known + len(news)), begin=known) if news else None, pair
                )

    def check(self) -> None:
        """Both caches, and each pair of leases, are alike."""
        for first, second in self.pairs:
            assert summary(first) == summary(second)
        assert self.caches[0].stats() == self.caches[1].stats()
        assert self.caches[0].tree.dump() == self.caches[1].tree.dump()
        assert all(cache.tree.check() == [] for cache in self.caches)
        assert self.batch.rows.tolist() == [lease.row for lease, _ in self.batched]
        for lease, _ in self.batched:
            assert self.batch.lengths[lease.row or 0] == lease.length
            for name, table in self.batch.tables.items():
                assert table[lease.row or 0, : lease.pages(name).size].tolist() == lease.pages(name).tolist()


@pytest.mark.parametrize("kinds", SETS)
def test_a_batch_does_what_its_leases_would_do(kinds: str) -> None:
    for seed in range(6):
        pair = Pair(kinds, Random(f"{kinds} {seed}"))
        operations = [pair.acquire, pair.add, pair.add, pair.allocate, pair.allocate, pair.allocate]
        operations += [pair.advance, pair.advance, pair.truncate, pair.single, pair.remove, pair.release]
        for _ in range(60):
            pair.rng.choice(operations)()
            pair.check()
        for lease in list(pair.pairs):
            pair.both(PrefixCache.release, lease)
        assert not any(pool.leased for pool in pair.caches[0].stats().pools.values())


def prefilled(cache: PrefixCache, first: int, length: int = 6) -> Lease:
    """A lease with a computed and published prompt."""
    lease = cache.acquire(Key(np.arange(first, first + length)))
    cache.allocate(lease, length)
    cache.commit(lease, length, {at: page for at, page in lease.save_pages.items() if at <= length})
    return lease


@pytest.mark.parametrize("page_size", [1, 4])
def test_slots_say_where_the_last_tokens_lie(page_size: int) -> None:
    cache = PrefixCache(WINDOW, page_size)
    batch = cache.batch(3, 40)
    leases = [prefilled(cache, 100 * i, 3 + i) for i in range(3)]
    for lease in leases:
        batch.add(lease)
    batch.remove(leases[1])
    batch.allocate(2)
    for name in ("full", "swa"):
        wanted = []
        for lease in (leases[0], leases[2]):
            ids = lease.pages(name).tolist()
            wanted.append([ids[at // page_size] * page_size + at % page_size for at in range(lease.length - 3, lease.length)])
        assert batch.slots(name, 3).tolist() == wanted
        assert batch.slots(name).tolist() == [row[-1] for row in wanted]
    with pytest.raises(LeaseError, match="shorter than 6"):
        batch.slots("full", 6)
    with pytest.raises(LeaseError, match="no page table"):
        batch.slots("mamba")


def test_a_pool_that_is_short_changes_nothing() -> None:
    cache = PrefixCache(WINDOW, 1, {"full": 20, "swa": 13})
    batch = cache.batch(2, 40)
    leases = [prefilled(cache, 0), prefilled(cache, 100)]
    for lease in leases:
        batch.add(lease)
    before = (cache.stats().pools, [summary(lease) for lease in leases])
    assert not batch.can_allocate(1)
    with pytest.raises(OutOfPagesError):
        batch.allocate(1)
    assert (cache.stats().pools, [summary(lease) for lease in leases]) == before
    assert batch.can_allocate(np.array([0, 1]))
    batch.allocate(np.array([0, 1]))
    assert batch.lengths.tolist() == [6, 7]


@pytest.mark.skipif(is_compiled, reason="compiled code calls no patched function")
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_an_error_while_a_page_for_a_state_is_found_changes_nothing(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as there are spare pages find theirs, and the next one's eviction fails."""

    def decoding(page_count: int | None) -> tuple[PrefixCache, DecodeBatch, list[Lease]]:
        cache = PrefixCache(MAMBA, 2, None if page_count is None else {"mamba": page_count}, draft_tokens=0)
        cache.release(prefilled(cache, 300))  # its state is what can be evicted
        batch = cache.batch(3, 40)
        leases = [prefilled(cache, first) for first in (0, 100, 200)]
        for lease in leases:
            batch.add(lease)
        batch.allocate(4)
        return cache, batch, leases

    def evict(*_: object, **__: object) -> None:
        raise RuntimeError("nothing was found")

    used = decoding(None)[0].stats().pools["mamba"].used
    cache, batch, leases = decoding(used + spare)
    before = ({name: pool.leased for name, pool in cache.stats().pools.items()}, [summary(lease) for lease in leases])
    with monkeypatch.context() as patch:
        patch.setattr(tier_pages, "evict", evict)
        with pytest.raises(RuntimeError, match="nothing was found"):
            batch.allocate(4)
    assert ({name: pool.leased for name, pool in cache.stats().pools.items()}, [summary(lease) for lease in leases]) == before


def test_calls_of_a_lease_go_on_in_a_batch() -> None:
    cache = PrefixCache(FULL, 2)
    batch = cache.batch(1, 40)
    lease = prefilled(cache, 0)
    batch.add(lease)
    with pytest.raises(LeaseError, match="in a batch already"):
        batch.add(lease)
    batch.allocate(3)
    cache.commit(lease, [90, 91, 92], begin=6)
    again = cache.acquire(Key([*range(6), 90, 91, 7]))
    assert again.cached_tokens == 8
    cache.allocate(again, 9)
    with pytest.raises(LeaseError, match="all 1 rows"):
        batch.add(again)
    cache.truncate(lease, 9)
    with pytest.raises(LeaseError, match="in row 0 cannot have 7 tokens kept"):
        batch.truncate(np.array([7]))
    with pytest.raises(LeaseError, match="leases of 40"):
        cache.allocate(lease, 41)
    with pytest.raises(LeaseError, match="leases of 40"):
        batch.allocate(32)
    assert (lease.length, batch.lengths.tolist()) == (9, [9])
    cache.release(lease)
    assert (lease.row, batch.rows.tolist(), batch.lengths.tolist(), batch.allocate(5)) == (None, [], [0], {})
    assert batch.add(again) == 0
    batch.remove(again)
    with pytest.raises(LeaseError, match="not in this batch"):
        batch.remove(again)
    cache.release(again)
    assert cache.stats().pools["full"].leased == 0


def test_a_lease_that_gave_up_its_state_goes_no_further() -> None:
    cache = PrefixCache(MAMBA, 2)
    batch = cache.batch(2, 40)
    leases = [prefilled(cache, 0), prefilled(cache, 100)]
    for lease in leases:
        batch.add(lease)
    batch.allocate(2)
    assert leases[1].state_page is not None
    cache.commit(leases[1], [1, 2], {8: leases[1].state_page}, begin=6)
    before = [summary(lease) for lease in leases]
    with pytest.raises(LeaseError, match="gave up its running state"):
        batch.allocate()
    assert [summary(lease) for lease in leases] == before
    batch.advance()
    cache.release(leases[1])
    batch.allocate()


@pytest.mark.parametrize("tokens", [-1, 1.5, True, None, [1, 1], np.array([1]), np.array([1.0, 1.0]), np.array([1, -1])])
def test_what_means_nothing_is_refused(tokens: Any) -> None:
    cache = PrefixCache(FULL, 2)
    batch: DecodeBatch = cache.batch(3, 40)
    for first in (0, 100):
        batch.add(prefilled(cache, first))
    for call in (batch.allocate, batch.can_allocate):
        with pytest.raises(LeaseError):
            call(tokens)
    if tokens is not None:
        with pytest.raises(LeaseError):
            batch.advance(tokens)
    with pytest.raises(LeaseError, match="computed: it does not have pages"):
        batch.advance(np.array([6, 7]))
    with pytest.raises(LeaseError):
        cache.batch(tokens if np.ndim(tokens) == 0 else 0, 40)
