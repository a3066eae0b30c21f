"""What is known of a prefix: a turn that continues it is copied, hashed and looked up from its end on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from kinds import FULL, MAMBA, swa
from stored_cache import StoredCache

from unified_tree import Component, Key
from unified_tree.controllers.storage import key_chain
from unified_tree.controllers.storage.digests import Digests
from unified_tree.controllers.storage.key_chain import KeyChain
from unified_tree.controllers.storage_tier import PersistPolicy
from unified_tree.controllers.storage_tier.jobs import Steps
from unified_tree.controllers.storage_tier.persist_job import PersistJob
from unified_tree.controllers.storage_tier.stored_digests import KnownPrefix, KnownPrefixes, StoredDigests

TURN = 8


class Counted:
    """A hash function that counts its calls."""

    calls = 0

    def __call__(self, data: bytes) -> Any:
        self.calls += 1
        return sha256(data)


def hashes_of_a_turn(kinds: list[Component], tokens: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many hashes one more turn takes, its prefetch included, after a conversation of so many tokens."""
    cache = StoredCache(kinds, device_pages=2000, host_pages=2000)
    conversation = list(range(tokens + TURN))
    for end in range(TURN, tokens + 1, TURN):
        cache.compute(conversation[:end])
    counted = Counted()
    monkeypatch.setattr(key_chain, "sha256", counted)
    cache.cache.prefetch("next", Key(conversation))
    cache.cache.drain()
    cache.compute(conversation)
    cache.end()
    return counted.calls


@pytest.mark.parametrize("kinds", [[FULL], [FULL, swa(5), MAMBA]], ids=["full", "full, swa, mamba"])
def test_a_turn_is_hashed_alone_whatever_lies_before(kinds: list[Component], monkeypatch: pytest.MonkeyPatch) -> None:
    short = hashes_of_a_turn(kinds, 4 * TURN, monkeypatch)
    assert hashes_of_a_turn(kinds, 64 * TURN, monkeypatch) == short


class NotedWrites:
    """The store jobs of a cache, which note what is written, and call `meanwhile` before they begin to."""

    def __init__(self, cache: StoredCache) -> None:
        assert cache.cache.storage is not None
        self._jobs: Any = cache.cache.storage.shared.jobs
        cache.cache.storage.shared.jobs = self
        self.jobs: list[PersistJob] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    def persist(self, job: PersistJob, chain: KeyChain) -> Steps:
        self.jobs.append(job)
        self.meanwhile()
        steps: Steps = self._jobs.persist(job, chain)
        return steps


def test_only_the_tail_of_the_tokens_and_page_ids_is_copied() -> None:
    cache = StoredCache([FULL, MAMBA, swa(5)])
    cache.compute(list(range(40)))
    noted = NotedWrites(cache)
    cache.compute(list(range(49)))
    [job] = noted.jobs
    assert (job.key.begin, job.key.length, len(job.key.data)) == (40, 48, 64)
    assert {name: job.page_ids(name).size for name in job.pages} == {"full": 4, "mamba": 1, "swa": 3}
    assert cache.like_this().fetch(list(range(49))) == 48
    cache.end()


def test_what_is_believed_no_more_is_written_whole() -> None:
    cache = StoredCache([FULL], persist=PersistPolicy(recheck_s=10))
    cache.compute(list(range(40)))
    cache.store.remove("full", cache.store.keys("full")[:3])
    cache.clock.advance(11_000_000_000)
    noted = NotedWrites(cache)
    cache.compute(list(range(48)))
    assert [job.page_ids("full").size for job in noted.jobs] == [24]
    assert cache.like_this().fetch(list(range(49))) == 48
    cache.end()


@pytest.mark.parametrize("kinds", [[FULL], [FULL, MAMBA]], ids=["full", "full, mamba"])
def test_what_is_found_to_be_lost_before_a_write_begins_is_written_with_it(kinds: list[Component]) -> None:
    cache = StoredCache(kinds)
    cache.compute(list(range(40)))
    storage = cache.cache.storage
    assert storage is not None
    chain = storage.shared.chain("")
    assert chain is not None
    lost, digests = cache.store.keys("full")[1], chain.digests(Key(range(40)))
    noted = NotedWrites(cache)

    def lose() -> None:
        cache.store.remove("full", [lost])
        storage.shared.stored_digests.discard(digests[1:2])
        noted.meanwhile = lambda: None

    noted.meanwhile = lose
    cache.compute(list(range(49)))
    sizes = [job.page_ids("full").size for job in noted.jobs]
    assert sizes == [4, 23], "what was found before the lost page is still believed"
    assert cache.drops() == {}
    assert cache.like_this().fetch(list(range(49))) == 48
    cache.end()


def test_a_prefix_cut_in_its_middle_is_still_known() -> None:
    cache = StoredCache([FULL])
    cache.compute(list(range(40)))
    cache.compute([*range(20), *range(100, 120)])  # cuts the node of the first
    cache.compute(list(range(60)))
    assert cache.like_this().fetch([*range(60), 0]) == 60
    assert cache.like_this().fetch([*range(20), *range(100, 120), 0]) == 40
    cache.end()


@pytest.mark.parametrize("known_pages", [1, 20])
def test_what_is_forgotten_is_hashed_again(known_pages: int) -> None:
    cache = StoredCache([FULL], persist=PersistPolicy(known_pages=known_pages))
    for end in (10, 20, 30):
        for first in (0, 1000, 2000):
            cache.compute(list(range(first, first + end)))
    for first in (0, 1000, 2000):
        assert cache.like_this().fetch(list(range(first, first + 31))) == 30
    cache.end()


@pytest.mark.parametrize(("device", "host", "second", "third"), [(150, 70, 60, 60), (140, 70, 60, 50), (150, 70, 30, 90)])
def test_of_a_prompt_that_was_cut_what_is_left_is_known(device: int, host: int, second: int, third: int) -> None:
    cache = StoredCache([FULL], page_size=2, device_pages=device, host_pages=host)
    prompt = list(range(120))
    for tokens in (prompt, list(range(1000, 1000 + 2 * second)), list(range(2000, 2000 + 2 * third))):
        cache.compute(tokens)
    assert cache.cache.tree.match_prefix(Key(prompt)).reachable.length < 120, "its end is gone"
    cache.compute(prompt)
    cache.compute([*prompt[:50], *range(3000, 3020)])
    assert cache.like_this().fetch([*prompt, 9]) == 120
    assert cache.like_this().fetch([*prompt[:50], *range(3000, 3021)]) == 70
    assert cache.like_this().fetch([*prompt[:40], *range(3000, 3021)]) == 40, "what nobody computed is not found"
    cache.end()


def test_another_weights_version_knows_nothing() -> None:
    cache = StoredCache([FULL])
    cache.compute(list(range(20)))
    tree = cache.cache.tree
    known = KnownPrefixes(tree.page_size, 20)
    boundary = tree.match_prefix(Key(range(20))).device
    known.add(boundary, KnownPrefix(weights_version="one", digests=Digests([bytes(32)] * 10)))
    assert len(known.longest(*tree.locks.find(boundary), "one").digests) == 10
    assert known.longest(*tree.locks.find(boundary), "another").digests == Digests()
    assert len(known) == 1
    cache.end()


def test_prefixes_are_kept_up_to_so_many_pages_and_the_latest_always() -> None:
    cache = StoredCache([FULL])
    tree = cache.cache.tree
    ends = []
    for first in (0, 1000, 2000):
        cache.compute(list(range(first, first + 20)))
        ends.append(tree.match_prefix(Key(range(first, first + 20))).device)
    known = KnownPrefixes(tree.page_size, 20)
    prefix = KnownPrefix(weights_version="one", digests=Digests([bytes(32)] * 10))
    for end in (*ends[:2], ends[0], ends[2]):  # the second is not used for longest
        known.add(end, prefix)
    assert [len(known.longest(*tree.locks.find(end), "one").digests) for end in ends] == [10, 0, 10]
    longest = KnownPrefixes(tree.page_size, 9)
    longest.add(ends[0], prefix)
    longest.add(ends[1], prefix)
    assert [len(longest.longest(*tree.locks.find(end), "one").digests) for end in ends] == [0, 10, 0]
    cache.end()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def digests(*numbers: int) -> list[bytes]:
    return [bytes([number]) * 32 for number in numbers]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_pages_from_the_first_on_count(clock: Clock) -> None:
    stored = StoredDigests(10, 5, clock)
    stored.add(digests(1, 2, 3))
    assert stored.leading(digests(1, 2, 3)).page_count == 3
    assert stored.leading(digests(1, 2, 3, 4, 5)).page_count == 3
    assert stored.leading(digests(1, 9, 3)).page_count == 1
    assert stored.leading(digests(9, 2, 3)).page_count == 0
    assert stored.leading([]).page_count == 0


def test_what_was_forgotten_in_the_middle_ends_it_though_more_is_known_behind(clock: Clock) -> None:
    stored = StoredDigests(10, 5, clock)
    stored.add(digests(1, 2, 3, 4))
    stored.discard(digests(2, 7))
    assert stored.leading(digests(1, 2, 3, 4)).page_count == 1
    stored.add(digests(2))
    assert stored.leading(digests(1, 2, 3, 4)).page_count == 4


def test_the_oldest_go_first_and_adding_again_makes_young(clock: Clock) -> None:
    stored = StoredDigests(3, 5, clock)
    stored.add(digests(1, 2, 3))
    stored.add(digests(1))
    stored.add(digests(4))
    assert len(stored) == 3
    assert [stored.leading(digests(number)).page_count for number in (1, 2, 3, 4)] == [1, 0, 1, 1]
    stored.add(digests(*range(10, 20)))
    assert len(stored) == 3


def test_an_entry_is_believed_for_a_while_of_its_own(clock: Clock) -> None:
    stored = StoredDigests(10, 5, clock)
    stored.add(digests(1))
    clock.now = 3
    stored.add(digests(2))
    clock.now = 5
    assert stored.leading(digests(1, 2)).page_count == 2
    clock.now = 5.5
    assert stored.leading(digests(1, 2)).page_count == 0
    assert stored.leading(digests(2)).page_count == 1
    clock.now = 8.5
    assert stored.leading(digests(2)).page_count == 0


def test_threads_may_use_it_at_once(clock: Clock) -> None:
    stored = StoredDigests(50, 5, clock)
    failures = []

    def work(offset: int) -> None:
        try:
            for turn in range(300):
                some = digests(*((offset + turn + i) % 200 for i in range(20)))
                stored.add(some)
                stored.leading(some)
                stored.discard(some[:5])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in (0, 50, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(stored) <= 50


def test_what_was_written_and_forgotten_unread_is_counted(clock: Clock) -> None:
    stored = StoredDigests(3, 5, clock)
    stored.add(digests(1, 2, 3))
    stored.add(digests(2), written=False)
    stored.add(digests(4, 5, 6))
    assert stored.unread_count == 2
    stored.add(digests(9), written=False)
    stored.discard(digests(5, 9))
    assert stored.unread_count == 4, "4 gave way, 5 was gone; 9 was another's"
