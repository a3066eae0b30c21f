"""Namespaces that share: what is common, what is not, and what refuses to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kinds import SETS
from prometheus_client import CollectorRegistry, generate_latest
from stored_cache import StoredCache

from unified_tree import Component, ConfigurationError, InvalidKeyError, Key, LeaseError, Path, TenantGroup, Tenants
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.group_stats import SharingStats
from unified_tree.controllers.cache.metrics import CacheCollector
from unified_tree.controllers.cache.sharing import ShownPrefixes
from unified_tree.declare.keys import packed_key

FULL = Component(name="full", coverage=Path())
SYSTEM = [*range(100, 108)]


def cache_of(names: str = "abcd", **settings: Any) -> PrefixCache:
    groups = tuple(TenantGroup(name=name, namespaces=(name, f"{name}2"), shares=True) for name in names)
    return PrefixCache([FULL], 2, {"full": 100}, tenants=Tenants(groups=groups, share_after=2, **settings))


def sharing(names: str) -> Tenants:
    """Groups of these names that share after two others."""
    return Tenants(groups=tuple(TenantGroup(name=name, namespaces=(name,), shares=True) for name in names), share_after=2)


def shared(cache: PrefixCache) -> SharingStats:
    """What a cache says of what is shared."""
    stats = cache.stats().sharing
    assert stats is not None
    return stats


def serve(cache: PrefixCache, tokens: list[int], namespace: str, *, bigram: bool = False) -> int:
    """One request from its prompt to its end; how much of it was cached."""
    key = Key(tokens, namespace, bigram=bigram)
    with cache.acquire(key) as lease:
        cache.allocate(lease, len(key))
        cache.commit(lease, np.array(tokens))
        assert not cache.tree.check()
        return lease.cached_tokens


@pytest.mark.parametrize("bigram", [False, True])
def test_a_prefix_is_common_once_two_others_have_shown_it(bigram: bool) -> None:
    cache = cache_of()
    found = [serve(cache, [*SYSTEM, at, at, at], name, bigram=bigram) for at, name in enumerate("abcd")]
    assert found == [0, 0, 0, 6 if bigram else 8]  # the last whole page of bigrams has the first token behind the system prompt
    assert serve(cache, [*SYSTEM, 9, 9, 9], "d", bigram=bigram) == found[3]


def test_sharing_takes_no_hit_from_what_a_namespace_had_alone() -> None:
    cache = cache_of()
    for name in "abc":
        serve(cache, [*SYSTEM, *[ord(name)] * 9], name)
    assert [serve(cache, [*SYSTEM, *[ord(name)] * 9], name) for name in "abc"] == [16, 16, 16]


def test_only_groups_that_share_do() -> None:
    groups = (
        *(TenantGroup(name=name, namespaces=(name,), shares=True) for name in "abc"),
        TenantGroup(name="d", namespaces=("d",)),
    )
    cache = PrefixCache([FULL], 2, {"full": 100}, tenants=Tenants(groups=groups, share_after=2))
    for name in ("a", "b", "c", "a", "b", "c"):
        serve(cache, [*SYSTEM, 1], name)
    assert [serve(cache, [*SYSTEM, 1], name) for name in ("d", "e", "")] == [0, 0, 0]


def test_the_namespaces_of_a_group_can_be_one() -> None:
    group = TenantGroup(name="a", namespaces=("a", "a2"), one_namespace=True)
    cache = PrefixCache([FULL], 2, {"full": 100}, tenants=Tenants(groups=(group,)))
    assert [serve(cache, [*SYSTEM, 1], name) for name in ("a", "a2", "b")] == [0, 8, 0]
    assert cache.stats().tenants["a"].hit_tokens == 8


def test_namespaces_that_share_are_invalidated_together() -> None:
    cache = cache_of()
    for name in "abcd":
        serve(cache, [*SYSTEM, 1], name)
    held = cache.acquire(Key([*SYSTEM, 1], "b"))
    cache.invalidate("a")
    assert cache.generation("b") is not held.generation
    cache.release(held)
    assert [serve(cache, [*SYSTEM, 1], name) for name in "abcd"] == [0, 8, 8, 8]  # it was shown before: it is common at once


def test_prompts_with_large_ids_share_nothing() -> None:
    cache = cache_of()
    for name in "abcd":
        assert serve(cache, [*SYSTEM, 1 << 42, 1, 1], name) == 0
        assert serve(cache, [*SYSTEM, 1 << 42, 1, 1], name) == 10
    with cache.acquire(Key(SYSTEM, "a")) as lease:
        cache.allocate(lease, 10)
        with pytest.raises(InvalidKeyError, match="4398046511104 or more"):
            cache.commit(lease, [*SYSTEM, 1 << 42, 1])
        cache.commit(lease, [*SYSTEM, (1 << 42) - 1, 1])


def test_what_cannot_be_is_refused() -> None:
    cache = cache_of()
    with pytest.raises(LeaseError, match="stands for those that share"):
        cache.acquire(Key(SYSTEM, "(shared)"))
    with pytest.raises(InvalidKeyError, match="-1"):
        cache.acquire(Key([-1, *SYSTEM], "a"))
    one = TenantGroup(name="a", namespaces=("a",), shares=True)
    for wrong in ({"share_after": 1}, {"share_after": 2}, {}, {"share_after": 2.5}, {"shown_pages": 0}, {"common_group": "x"}):
        with pytest.raises(ConfigurationError):
            Tenants(groups=(one,), **wrong)
    for what in ("shares", "one_namespace"):
        with pytest.raises(ConfigurationError, match=what):
            TenantGroup(name="a", namespaces=("a",), **{what: "yes"})  # type: ignore[arg-type]


def test_a_refused_request_shows_nothing() -> None:
    cache = cache_of()
    with pytest.raises(Exception, match="pages"):
        cache.acquire(Key(SYSTEM, "a"), reserve_tokens=1000)
    assert shared(cache).shown_pages == 0


def test_prompts_shown_longest_ago_are_forgotten_from_their_ends() -> None:
    shown = ShownPrefixes(after=2, max_pages=6, salt=b"s")
    one, other = shown.digests(bytes(range(64)), 16, b""), shown.digests(bytes(range(64, 128)), 16, b"")
    for tenant in (1, 2, 3):
        shown.note(one, tenant)
    assert (shown.common_count, shown.page_count) == (4, 4)
    shown.note(other, 1)
    assert (shown.common_pages(one, 4), shown.common_count, shown.page_count) == (2, 2, 6)
    long = shown.digests(bytes(16 * 50), 16, b"")
    for tenant in (1, 2):
        shown.note(long, tenant)
    assert (shown.common_pages(long, 3), shown.page_count) == (6, 6)


def test_the_table_has_no_prompt_and_differs_by_its_salt() -> None:
    one, other = ShownPrefixes(after=2, max_pages=9, salt=b"a"), ShownPrefixes(after=2, max_pages=9, salt=b"b")
    data = bytes(range(32))
    assert not set(one.digests(data, 16, b"")) & set(other.digests(data, 16, b""))
    assert one.digests(data, 16, b"plain")[0] != one.digests(data, 16, b"bigram")[0]


def test_the_table_is_bounded_by_its_setting() -> None:
    cache = cache_of(shown_pages=3)
    for name in "abcd":
        serve(cache, [*SYSTEM, 1], name)
    assert shared(cache).shown_pages == 3
    assert serve(cache, [*SYSTEM, 2], "d") == 8


def test_what_is_shared_is_told() -> None:
    cache = cache_of()
    for name in "abcd":
        serve(cache, [*SYSTEM, 1], name)
    stats = shared(cache)
    assert (stats.shown_pages, stats.common_pages, stats.common_tokens, stats.common_hit_tokens) == (4, 4, 16, 8)
    registry = CollectorRegistry()
    registry.register(CacheCollector(cache.stats))
    said = generate_latest(registry).decode()
    assert "unified_tree_common_hit_tokens_total 8.0" in said
    assert 'unified_tree_remembered_pages{state="common"} 4.0' in said
    assert PrefixCache([FULL], 2).stats().sharing is None


def test_an_explanation_and_a_hint_are_of_what_the_tree_has() -> None:
    cache = cache_of()
    for name in "abcd":
        serve(cache, [*SYSTEM, 1, 1], name)
    assert cache.explain(Key([*SYSTEM, 7, 7], "d")).device_length == 8
    assert cache.explain(Key([*SYSTEM, 1, 1], "d")).device_length == 10
    assert cache.explain(Key([*SYSTEM, 1, 1], "e")).device_length == 0
    assert cache.hints.pin(Key([*SYSTEM, 1, 1], "d"))
    cache.evict({"full": 10})  # all but what is pinned
    assert serve(cache, [*SYSTEM, 1, 1, 1], "d") == 10


@pytest.mark.parametrize("kind", ["full", "everything"])
def test_a_store_tells_owners_apart_whatever_the_order_of_their_declaration(kind: str) -> None:
    """What is common on one server is found by another where that has been shown it as often, and a tenant's own by itself."""
    first = StoredCache(SETS[kind], page_size=4, tenants=sharing("abcd"))
    prompt, own = [*range(100, 124)], [*range(200, 224)]
    for name in "abc":
        first.compute(prompt, name)
    first.compute(own, "a")
    second = first.like_this(tenants=Tenants(groups=sharing("xdcab").groups, share_after=3))
    assert [second.fetch(own, name) > 0 for name in "bdax"] == [False, False, True, False]
    third = first.like_this(tenants=sharing("dcba"))
    assert [third.fetch(prompt, name) > 0 for name in "dcba"] == [False, False, True, True]
    for each in (first, second, third):
        each.end()


def test_a_session_of_a_tenant_comes_back_from_the_store() -> None:
    """Its hints know the session's text as the tree has it, and a part that is common is a node of its own again."""
    server = StoredCache([FULL], tenants=sharing("abcd"))
    for name in "abc":
        server.compute([*SYSTEM, ord(name), 1, 1, 1], name)
    server.compute([*SYSTEM, 5, 5, 5, 5], "d")
    server.forget()
    assert server.fetch([*SYSTEM, 5, 5, 5, 5, 5], "d") == 12
    assert not server.cache.tree.check()
    server.end()


@pytest.mark.parametrize("group", [{"shares": True}, {"one_namespace": True}])
@pytest.mark.parametrize("length", [64, 61])
def test_a_packed_key_is_refused_where_its_namespace_shares(group: dict[str, bool], length: int) -> None:
    """It carries no mark of its owner. A namespace that does not share takes it."""
    groups = tuple(TenantGroup(name=name, namespaces=(name,), **group) for name in "abcd")
    tenants = Tenants(groups=groups, share_after=2 if "shares" in group else None)
    cache, ids = PrefixCache([FULL], 16, {"full": 100}, tenants=tenants), np.arange(8)
    key = packed_key(ids, length, "a")
    for call in (cache.acquire, cache.explain, lambda key: cache.acquire_to_fill(key, 16), cache.hints.pin):
        with pytest.raises(InvalidKeyError, match="give all tokens"):
            call(key)
    assert (cache.stats().requests, cache.stats().leases, len(cache.hints)) == (0, 0, 0)
    for hit in (0, length // 16 * 16 - (16 if length % 16 == 0 else 0)):
        with cache.acquire(packed_key(ids, length, "alone")) as lease:
            assert lease.cached_tokens == hit
            cache.allocate(lease, length)
            cache.commit(lease, length)
