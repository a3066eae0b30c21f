"""Prefixes that tenants share after enough of them have shown them, against a naive model that keeps every prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from kinds import SETS

from unified_tree import Component, Key, Path, TenantGroup, Tenants
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.transfer_engines.null_engine import NullEngine

FULL = Component(name="full", coverage=Path())
Tokens = tuple[int, ...]


@dataclass
class Naive:
    """Who has shown which prompt, and what each namespace has cached since, in a cache that evicts nothing.

    Stored paths are page by page (tokens, owner); the owner of a common page is None.
    """

    after: int
    page: int
    tenant_of: dict[str, int]
    shown: dict[Tokens, set[int]] = field(default_factory=dict)
    stored: set[tuple[tuple[Tokens, str | None], ...]] = field(default_factory=set)

    def pages(self, tokens: Tokens) -> list[Tokens]:
        return [tokens[at : at + self.page] for at in range(0, len(tokens) // self.page * self.page, self.page)]

    def common(self, tokens: Tokens, tenant: int) -> int:
        """How many pages enough others have shown."""
        count = len(tokens) // self.page
        while count and len(self.shown.get(tokens[: count * self.page], set()) - {tenant}) < self.after:
            count -= 1
        return count

    def path(self, tokens: Tokens, namespace: str, fork: int) -> tuple[tuple[Tokens, str | None], ...]:
        return tuple((each, None if at < fork else namespace) for at, each in enumerate(self.pages(tokens)))

    def matched(self, path: tuple[tuple[Tokens, str | None], ...], limit: int) -> int:
        count = limit // self.page
        while count and path[:count] not in self.stored:
            count -= 1
        return count * self.page

    def acquired(self, namespace: str, tokens: Tokens) -> tuple[int, int]:
        """The cached tokens, and the fork in pages."""
        tenant, limit = self.tenant_of[namespace], len(tokens) - 1
        known = self.matched(self.path(tokens, namespace, len(tokens)), len(tokens)) // self.page
        latest = max(self.common(tokens, tenant), known)
        forks = [latest, *range(min(latest - 1, known), -1, -1)]
        found = max(forks, key=lambda fork: (self.matched(self.path(tokens, namespace, fork), limit), fork == latest, fork))
        for end in range(1, len(tokens) // self.page + 1):
            self.shown.setdefault(tokens[: end * self.page], set()).add(tenant)
        return self.matched(self.path(tokens, namespace, found), limit), found

    def committed(self, namespace: str, tokens: Tokens, fork: int) -> None:
        path = self.path(tokens, namespace, fork)
        self.stored.update(path[:end] for end in range(1, len(path) + 1))


def declared(groups: int, each: int, after: int, **others: object) -> Tenants:
    """Groups that share, each of so many namespaces."""
    return Tenants(
        groups=tuple(
            TenantGroup(name=f"g{i}", namespaces=tuple(f"g{i}.{j}" for j in range(each)), shares=True) for i in range(groups)
        ),
        share_after=after,
        **others,  # type: ignore[arg-type]
    )


def text(random: Random, length: int) -> Tokens:
    """A prompt that often begins as others do: at each token one of few ways goes on."""
    found: list[int] = []
    while len(found) < length:
        found += [random.choice((1, 1, 1, 2, 3))] * random.choice((1, 2, 5))
    return tuple(found[:length])


@pytest.mark.parametrize("seed", range(12))
def test_a_prompt_hits_what_a_naive_model_says(seed: int) -> None:
    random = Random(seed)
    page, after, groups, each = random.choice((1, 2, 4)), random.choice((2, 3)), random.choice((4, 6)), random.choice((1, 3))
    tenants = declared(groups, each, after)
    cache = PrefixCache([FULL], page, tenants=tenants)
    naive = Naive(after, page, {name: place for place, group in enumerate(tenants.groups) for name in group.namespaces})
    texts: list[Tokens] = []
    hits = 0
    for _ in range(300):
        namespace = random.choice([name for group in tenants.groups for name in group.namespaces])
        if texts and random.random() < 0.6:
            told = random.choice(texts[-20:])
            prompt = told[: random.randrange(1, len(told) + 1)] + text(random, random.randrange(6))
        else:
            prompt = text(random, random.randrange(1, 25))
        tokens = prompt + text(random, random.randrange(4))
        lease = cache.acquire(Key(np.array(prompt), namespace))
        cached, fork = naive.acquired(namespace, prompt)
        assert lease.cached_tokens == cached
        hits += cached
        cache.allocate(lease, len(tokens))
        for end in sorted(random.sample(range(len(tokens) + 1), random.randrange(3))):
            if end >= lease.committed:
                cache.commit(lease, np.array(tokens[:end], np.int64))
        cache.commit(lease, np.array(tokens))
        assert (lease.key.namespace, lease.key.length) == (namespace, len(tokens))
        assert np.frombuffer(lease.key.data, np.int64).tolist() == list(tokens)
        cache.release(lease)
        naive.committed(namespace, tokens, fork)
        texts.append(tokens)
    assert hits
    assert not cache.tree.check()


PROBES = 10_000
WORLDS = [
    (kind, policy, has_host)
    for kind in ("full", "narrow window", "rebuilt window", "gridded mamba", "everything")
    for policy in ("lru", "density")
    for has_host in (False, True)
]


@pytest.mark.parametrize(("kind", "policy", "has_host"), WORLDS)
def test_no_probe_finds_what_too_few_others_have_shown(kind: str, policy: str, has_host: bool) -> None:
    """10,000 probes in all of what others have shown. A hit is of what the namespace has had itself, or of what enough others
    have shown; on device alone, each page is one that it wrote itself, or one that enough others have shown.
    """
    random = Random(7)
    components, page, after = SETS[kind], 4, 2
    tenants = declared(6, 2, after, shown_pages=500)
    counts = {component.name: 120 for component in components if component.shares is None}
    host = HostTier(page_counts=dict.fromkeys([c.name for c in components], 200), engine=NullEngine()) if has_host else None
    cache = PrefixCache(components, page, counts, tenants=tenants, policy=policy, host=host)
    names = [(name, place) for place, group in enumerate(tenants.groups) for name in group.namespaces]
    shown: dict[Tokens, set[int]] = {}
    had: dict[str, set[Tokens]] = {}
    wrote: dict[int, str] = {}
    prompts: list[Tokens] = []
    probes = beyond = 0
    while probes < PROBES // len(WORLDS):
        namespace, tenant = random.choice(names)
        is_probe = bool(prompts) and random.random() < 0.7
        prompt = random.choice(prompts[-20:]) if is_probe else text(random, random.randrange(8, 40))
        if is_probe:
            probes += 1
            prompt = (*prompt, random.randrange(5))
        lease = cache.acquire(Key(np.array(prompt), namespace))
        cached = lease.cached_tokens
        for end in range(page, cached + 1, page):
            is_common = len(shown.get(prompt[:end], set()) - {tenant}) >= after
            assert is_common or prompt[:end] in had[namespace], (namespace, prompt[:end])
            beyond += prompt[:end] not in had.get(namespace, ())
            if not has_host:
                assert is_common or wrote[int(lease.pages("full")[end // page - 1])] == namespace
        for end in range(page, len(prompt) + 1, page):
            shown.setdefault(prompt[:end], set()).add(tenant)
        tokens = prompt + text(random, random.randrange(8))
        cache.allocate(lease, len(tokens))
        wrote.update(dict.fromkeys(lease.pages("full")[cached // page :].tolist(), namespace))
        for stop in [at for at in lease.save_at if lease.committed < at]:
            cache.commit(lease, np.array(tokens[:stop]), {stop: lease.save_pages[stop]} if stop in lease.save_pages else {})
        cache.commit(lease, np.array(tokens))
        cache.release(lease)
        cache.poll()
        had.setdefault(namespace, set()).update(tokens[:end] for end in range(page, len(tokens) + 1, page))
        prompts.append(prompt)
    cache.drain()
    assert beyond, "nothing was shared"
    assert not cache.tree.check()
    cache.close()


@pytest.mark.parametrize("seed", range(6))
def test_each_group_is_charged_for_its_own_and_one_for_what_is_common(seed: int) -> None:
    random = Random(seed)
    groups = [TenantGroup(name=f"g{i}", namespaces=(f"n{i}",), shares=True, floor=0.1, cap=0.6) for i in range(5)]
    common = TenantGroup(name="common", namespaces=(), floor=0.3)
    tenants = Tenants(groups=(*groups, common), share_after=2, common_group="common")
    cache = PrefixCache([FULL], 2, {"full": 60}, tenants=tenants, policy=random.choice(["lru", "density"]))
    for _ in range(400):
        namespace = f"n{random.randrange(6)}"  # one of them is in no group
        prompt = np.array(text(random, random.randrange(1, 30)))
        with cache.acquire(Key(prompt, namespace)) as lease:
            cache.allocate(lease, prompt.size)
            cache.commit(lease, prompt)
        assert not cache.tree.check()
    held = {name: room.used for name, stats in cache.stats().tenants.items() for room in stats.rooms.values()}
    assert held["common"]
    assert sum(held.values()) == cache.stats().pools["full"].tree


@pytest.mark.parametrize("policy", ["lru", "density"])
def test_ranks_have_the_same_tree_whatever_their_secrets(policy: str) -> None:
    """The same calls of sessions, hints and tenants that share lead to the same victims; each cache draws its own secret."""
    tenants = declared(4, 2, 2, shown_pages=60)
    caches = [PrefixCache(SETS["full"], 2, {"full": 60}, tenants=tenants, policy=policy) for _ in range(2)]
    random = Random(5)
    for _ in range(400):
        namespace, session = f"g{random.randrange(4)}.{random.randrange(2)}", random.randrange(12)
        prompt, what, ended = np.array(text(random, random.randrange(1, 30))), random.randrange(6), random.randrange(12)
        found = []
        for cache in caches:
            with cache.acquire(Key(prompt, namespace), session=session) as lease:
                cache.allocate(lease, prompt.size)
                cache.commit(lease, prompt)
                found.append((lease.cached_tokens, cache.tree.dump()))
                if what == 0:  # while its turn runs
                    cache.end_session(session)
            if what == 1:
                cache.end_session(ended)
            elif what in (2, 3):
                [cache.hints.retain, cache.hints.demote][what - 2](ended)
            elif what == 4:
                cache.hints.pin(Key(prompt, namespace))
            assert not cache.tree.check()
        assert found[0] == found[1]
    assert caches[0].stats().hints == caches[1].stats().hints
    assert caches[0].stats().sharing == caches[1].stats().sharing
