"""How hints end, by tenant; and that all of them do."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
import session_turns
from prometheus_client import CollectorRegistry, generate_latest

from unified_tree import Component, Key, Path, TenantGroup, Tenants
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.metrics import CacheCollector

FULL = Component(name="full", coverage=Path())
TENANTS = Tenants(
    groups=(TenantGroup(name="gold", namespaces=("g", "h"), floor=0.3), TenantGroup(name="batch", namespaces=("b",)))
)
Ended = dict[tuple[str, str], int]


def cache_of(pages: int = 40, **options: Any) -> PrefixCache:
    return session_turns.cache_of([FULL], {"full": pages}, **{"tenants": TENANTS, **options})


def serve(cache: PrefixCache, tokens: Any, namespace: str, session: object = None) -> int:
    """One request from its prompt to its end; how much of it was cached."""
    prompt = np.asarray(tokens)
    with cache.acquire(Key(prompt, namespace), session=session) as lease:
        cache.allocate(lease, prompt.size)
        cache.commit(lease, prompt.size)
        return lease.cached_tokens


def by_tenant(cache: PrefixCache) -> dict[str, Ended]:
    """The hints of those tenants that had any."""
    return {name: dict(group.hints) for name, group in cache.stats().tenants.items() if group.hints}


def summed(cache: PrefixCache) -> Ended:
    """The hints of all tenants together."""
    return dict(sum((Counter(group.hints) for group in cache.stats().tenants.values()), Counter()))


def test_each_tenant_has_the_hints_of_its_sessions_and_prompts() -> None:
    cache = cache_of()
    serve(cache, np.arange(17), "g", "agent")
    serve(cache, np.arange(100, 117), "b", "job")
    serve(cache, np.arange(200, 217), "else", "third")
    hints = cache.hints
    assert hints.retain("agent") and hints.retain("job") and hints.pin("third")
    assert hints.pin(Key(np.arange(100, 116), "b"))
    assert not hints.pin(Key(np.arange(100, 116), "h")), "another namespace, which has nothing"
    assert not hints.demote("unknown")
    assert serve(cache, np.arange(25), "g", "agent") == 16
    cache.end_session("job")
    cache.hints.unpin(Key(np.arange(100, 116), "b"))
    cache.end_session("third")
    assert by_tenant(cache) == {
        "gold": {("retain", "used"): 1, ("pin", "refused"): 1},
        "batch": {("retain", "vain"): 1, ("pin", "vain"): 1},
        "": {("pin", "vain"): 1, ("demote", "refused"): 1},
    }
    assert summed(cache) == cache.stats().hints
    registry = CollectorRegistry()
    registry.register(CacheCollector(cache.stats))
    scrape = generate_latest(registry).decode()
    assert 'unified_tree_tenant_hints_total{group="batch",outcome="vain",verb="pin"} 1.0' in scrape


def test_a_hint_counts_for_the_namespace_that_the_session_had_when_it_was_given() -> None:
    cache = cache_of()
    serve(cache, np.arange(17), "g", "agent")
    cache.hints.retain("agent")
    serve(cache, np.arange(17), "b", "agent")
    cache.hints.retain("agent")
    cache.end_session("agent")
    assert by_tenant(cache) == {"gold": {("retain", "vain"): 1}, "batch": {("retain", "vain"): 1}}


def test_common_prefixes_count_for_the_tenant_that_gave_the_hint() -> None:
    groups = tuple(TenantGroup(name=name, namespaces=(name,), shares=True) for name in "abcd")
    cache = cache_of(tenants=Tenants(groups=groups, share_after=2))
    for name in "abcd":
        serve(cache, np.arange(17), name, f"agent of {name}")
    assert cache.hints.pin(Key(np.arange(16), "d")) and cache.hints.retain("agent of d")
    cache.close()
    assert by_tenant(cache) == {"d": {("pin", "vain"): 1, ("retain", "vain"): 1}}


@pytest.mark.parametrize("seed", range(8))
def test_the_counts_are_those_of_a_naive_observer(seed: int) -> None:
    """Each call is about one tenant, so all hints that end in it are that tenant's."""
    random = Random(seed)
    cache = cache_of(pages=random.choice((14, 40)), has_host=random.random() < 0.5)
    group_of = {"g": "gold", "h": "gold", "b": "batch", "x": "", "y": ""}
    naive: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in TENANTS.names}
    given, before = 0, Counter[tuple[str, str]]()
    for _ in range(400):
        namespace, begin = random.choice(list(group_of)), 1000 * random.randrange(3)
        tokens = np.arange(begin, begin + random.randrange(5, 40))
        session = f"{namespace}{begin}"
        target = random.choice((session, Key(tokens, namespace)))
        group = group_of[namespace]
        call = random.randrange(9)
        if call < 3:
            serve(cache, tokens, namespace, random.choice((session, None)))
        elif call == 3:
            cache.end_session(session)
        elif call == 4:
            cache.hints.unpin(target)
        else:
            hints = cache.hints
            give = random.choice((hints.retain, hints.pin, hints.demote, hints.share, hints.prefetch))
            if give == hints.retain:
                target = session
            if target == session and cache.sessions.find(session) is None:
                group = ""
            give(target)
            given += 1
        cache.drain()
        after = Counter(cache.stats().hints)
        naive[group].update(after - before)
        before = after
        assert {name: Counter(each.hints) for name, each in cache.stats().tenants.items()} == naive
        assert summed(cache) == after
        assert sum(after.values()) + len(cache.hints) == given
    assert all(naive.values())
    cache.close()
    assert not len(cache.hints)
    assert sum(cache.stats().hints.values()) == given
    assert summed(cache) == cache.stats().hints
