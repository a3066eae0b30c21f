"""Where else a prompt is known or under way, against a model that remembers all prompts of all namespaces.

It sees two bugs that were found by hand. Only one namespace was looked into, the last one with the same first page. And when
the later of two equal prompts under way left, the earlier one was found no more.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest
from kinds import FULL

from unified_tree import Key, MissCause, TreeSettings
from unified_tree.controllers import Lease, PrefixCache
from unified_tree.misses.causes import Miss

PAGE = 2
Text = tuple[int, ...]


def agreed(ours: Text, theirs: Text) -> int:
    """Tokens in whole pages with which both begin."""
    length = 0
    while ours[length : length + PAGE] == theirs[length : length + PAGE] and length + PAGE <= min(len(ours), len(theirs)):
        length += PAGE
    return length


class Crowd:
    """Namespaces that ask for prefixes of some documents, and now and then go on from there in a way of their own.

    Attributes:
        published: by namespace, all that its requests published.
    """

    def __init__(self, seed: int, settings: TreeSettings) -> None:
        self.random = rng = Random(seed)
        pages = rng.choice([None, 40, 200])
        self.cache = PrefixCache([FULL], PAGE, None if pages is None else {"full": pages}, settings=settings)
        stem = tuple(rng.randint(0, 1) for _ in range(rng.choice([0, 2, 7, 16])))
        count = rng.choice([1, 3, 8])
        self.documents = [stem + tuple(rng.randint(0, rng.choice([1, 50])) for _ in range(40)) for _ in range(count)]
        self.names = [f"n{i}" for i in range(rng.choice([1, 2, 5, 40, 300]))]
        self.running: list[tuple[Lease, Text, str]] = []
        self.published: defaultdict[str, list[Text]] = defaultdict(list)
        self.found: set[MissCause] = set()

    def step(self) -> None:
        rng = self.random
        chance = rng.random()
        if chance < 0.5 or not self.running:
            if len(self.running) < 12:
                self.begin(self.some_text(), rng.choice(self.names))
        elif chance < 0.9:
            lease, text, name = self.running.pop(rng.randrange(len(self.running)))
            done = rng.choice([len(text), len(text), rng.randint(0, len(text))])
            if done > max(lease.cached_tokens, lease.length) and self.has_room(done):
                self.cache.allocate(lease, done)
                self.cache.commit(lease, done)
                self.published[name].append(text[:done])
            if done < len(text) and rng.random() < 0.5:
                self.running.append((lease, text, name))
            else:
                self.cache.release(lease)
        elif chance < 0.97:
            self.cache.evict({"full": rng.choice([1, 5, 30, 1000])})
        else:
            self.forget(rng.choice(self.names))

    def forget(self, name: str) -> None:
        """Something that may end a namespace."""

    def has_room(self, tokens: int) -> bool:
        pool = self.cache.stats().pools["full"]
        return pool.total is None or pool.total - pool.leased - pool.protected > tokens

    def some_text(self) -> Text:
        rng = self.random
        text = rng.choice(self.documents)
        text = text[: rng.randint(1, len(text))]
        if rng.random() < 0.4:
            text += tuple(rng.randint(0, 50) for _ in range(rng.randint(1, 9)))
        return text

    def begin(self, text: Text, name: str) -> None:
        lease = self.cache.acquire(Key(text, name))
        self.check(lease.cached_tokens, lease.misses, text, name)
        self.running.append((lease, text, name))

    def check(self, at: int, misses: list[Miss], text: Text, name: str) -> None:
        whole = (len(text) - 1) // PAGE * PAGE
        prompt = text[:whole]
        own = max((agreed(prompt, other) for other in self.published[name]), default=0)
        coming = max((agreed(prompt, other) for _, other, its in self.running if its == name), default=0)
        others = {
            its: max(agreed(prompt, other) for other in texts) for its, texts in self.published.items() if texts and its != name
        }
        elsewhere = max((reach for reach in others.values()), default=0)
        expected = {}
        end = max(at, own)
        if at < end:
            expected[MissCause.EVICTED] = end - at
        for cause, reach in ((MissCause.IN_FLIGHT, coming), (MissCause.OTHER_NAMESPACE, elsewhere)):
            if reach > end:
                expected[cause] = reach - end
                end = reach
        told: defaultdict[MissCause, int] = defaultdict(int)
        for miss in misses:
            told[miss.cause] += miss.tokens
            if miss.cause is MissCause.OTHER_NAMESPACE:
                assert miss.detail is not None and others[miss.detail] >= miss.end
        self.found |= set(told)
        assert {cause: told[cause] for cause in expected} == expected, (text, name, misses)
        assert told[MissCause.NEVER_SEEN] + told[MissCause.DIVERGED] == whole - end, (text, name, misses)

    def end(self) -> None:
        for lease, _, _ in self.running:
            self.cache.release(lease)
        assert self.cache.ledger.in_flight.count == 0
        assert not self.cache.tree.check()


class Forgetful(Crowd):
    """Here namespaces are invalidated, and little is remembered: less may be said, and nothing that is not so."""

    def forget(self, name: str) -> None:
        self.cache.invalidate(name)
        self.published.pop(name, None)

    def check(self, at: int, misses: list[Miss], text: Text, name: str) -> None:
        assert misses[0].begin == at
        for miss in misses:
            if miss.cause is MissCause.OTHER_NAMESPACE:
                assert max(agreed(text, other) for other in self.published[str(miss.detail)]) >= miss.end
                assert miss.detail != name
            elif miss.cause is MissCause.IN_FLIGHT:
                assert max(agreed(text, other) for _, other, its in self.running if its == name) >= miss.end
            self.found.add(miss.cause)


def run(kind: type[Crowd], seeds: range, settings: TreeSettings) -> set[MissCause]:
    found: set[MissCause] = set()
    for seed in seeds:
        crowd = kind(seed, settings)
        for _ in range(160):
            crowd.step()
        crowd.end()
        found |= crowd.found
    return found


def test_each_token_is_found_where_it_is_known_furthest() -> None:
    found = run(Crowd, range(24), TreeSettings())
    assert {MissCause.EVICTED, MissCause.IN_FLIGHT, MissCause.OTHER_NAMESPACE} <= found


@pytest.mark.parametrize("ghost_bytes", [1, 3_000, 1 << 20])
def test_a_small_memory_names_no_namespace_that_does_not_have_it(ghost_bytes: int) -> None:
    found = run(Forgetful, range(100, 110), TreeSettings(ghost_bytes=ghost_bytes, faded_ghosts=5))
    assert {MissCause.IN_FLIGHT, MissCause.OTHER_NAMESPACE} <= found
