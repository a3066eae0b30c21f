"""What is found and fetched of a prompt is the longest length whose pages and record are there and right, by brute force."""

from __future__ import annotations

from random import Random

import pytest
from kinds import DRAFT, FULL, MAMBA, OWN_DRAFT, SETS, chunks, swa
from stored_cache import StoredCache, policy

from unified_tree import Component, Key, Path, Tier
from unified_tree.controllers.storage.key_chain import KeyChain, pool_keys
from unified_tree.controllers.storage_tier.stored_composition import RECORDS

PROMPT = list(range(41))


def key_of(cache: StoredCache, pool: str, page: int, prompt: list[int] = PROMPT) -> bytes:
    """Under which key a page of a prompt is stored."""
    [stored] = [one for one in cache.every_pool if one.name == pool]
    digests = KeyChain(page_size=cache.page_size, weights_version=cache.weights_version).digests(Key(prompt))
    return pool_keys(digests, stored.format_digest)[page]


def intact(cache: StoredCache, bad: set[tuple[str, bytes]], pool: str, page: int) -> bool:
    key = key_of(cache, pool, page)
    return key in cache.store.keys(pool) and (pool, key) not in bad


def restorable(cache: StoredCache, bad: set[tuple[str, bytes]]) -> int:
    """The longest length in tokens, every one tried."""
    size, best = cache.page_size, 0
    required = [c for c in cache.components if c.required]
    for length in range(1, (len(PROMPT) - 1) // size + 1):
        right, needs_record = True, False
        for component in required:
            first = component.coverage.first_page(length * size, size)
            right = right and all(intact(cache, bad, component.name, page) for page in range(first, length))
            needs_record |= first < length and not component.coverage.is_path
        if needs_record:
            right = right and intact(cache, bad, RECORDS, length - 1)
        if right:
            best = length * size
    return best


def reachable(cache: StoredCache, prompt: list[int] = PROMPT) -> int:
    return cache.cache.tree.match_prefix(Key(prompt), limit=len(prompt) - 1).reachable.length


def stored(kinds: list[Component], page_size: int = 2, threads: bool = False, checkpoints: tuple[int, ...] = ()) -> StoredCache:
    """A server that has stored the prompt, with states here and there."""
    cache = StoredCache(kinds, page_size=page_size, threads=threads)
    marks = checkpoints or (8, 12, 16, 20, 24, 28, 36)
    for mark in marks:
        cache.compute(PROMPT[: mark + 1], checkpoints=[mark])
    cache.compute(PROMPT, checkpoints=marks)
    return cache


@pytest.mark.parametrize("kinds", SETS)
@pytest.mark.parametrize("page_size", [1, 2, 3])
def test_pages_go_at_random(kinds: str, page_size: int) -> None:
    rng = Random(f"{kinds} {page_size}")
    found = set()
    for turn in range(4):
        cache = stored(SETS[kinds], page_size)
        bad: set[tuple[str, bytes]] = set()
        lost, spoiled = [(0, 0), (0.1, 0.1), (0.02, 0.02), (rng.choice([0, 0.1]), rng.choice([0, 0.1]))][turn]
        for pool in cache.every_pool:
            for key in cache.store.keys(pool.name):
                if rng.random() < lost:
                    cache.store.remove(pool.name, [key])
                elif rng.random() < spoiled:
                    cache.store.spoil(pool.name, key)
                    bad.add((pool.name, key))
        twin = cache.like_this(prefetch=policy(batch_pages=rng.choice([1, 2, 5, 64])))
        twin.prefetch(PROMPT)
        wanted = restorable(cache, bad)
        twin.cache.drain()
        assert reachable(twin) == wanted
        twin.runner.check()
        assert twin.hit(PROMPT) >= (wanted if not twin.cache.rebuild else 0)
        found.add(wanted)
        cache.end()
        twin.end()
    assert max(found) >= 36 and len(found) > 1


def test_a_window_is_read_for_the_length_that_arrived() -> None:
    """The path breaks off while it is read, and the window asked for is another one."""
    cache = stored([FULL, swa(5)])
    cache.store.spoil("full", key_of(cache, "full", 13))
    twin = cache.like_this()
    assert twin.fetch(PROMPT) == 24
    assert twin.cache.stats().storage is not None
    assert dict(twin.cache.storage.shared.store.quarantined) == {"full": 1}  # type: ignore[union-attr]


def test_a_shorter_length_may_need_more_of_a_chunk() -> None:
    """At 40 tokens no page of a chunk of 4 is needed; the window of 40 is bad, and 10 tokens need a page."""
    cache = stored([FULL, chunks(4), swa(3)], checkpoints=(10, 40))
    cache.store.spoil("swa", key_of(cache, "swa", 19))
    twin = cache.like_this()
    assert twin.fetch(PROMPT) == 10
    assert twin.drops() == {"prefetch shortened": 1}
    twin.end()


def test_a_window_that_is_bad_costs_its_length_only() -> None:
    cache = stored([FULL, swa(5)])
    for page in (18, 19):
        cache.store.spoil("swa", key_of(cache, "swa", page))
    twin = cache.like_this()
    assert twin.fetch(PROMPT) == 36
    assert twin.drops() == {"prefetch shortened": 1}


@pytest.mark.parametrize("draft", [DRAFT, OWN_DRAFT], ids=["shared", "own"])
@pytest.mark.parametrize("lost", [None, 0, 9, 19])
def test_an_optional_draft_comes_whole_or_not_at_all(draft: Component, lost: int | None) -> None:
    cache = stored([FULL, draft])
    if lost is not None:
        cache.store.spoil("draft", key_of(cache, "draft", lost))
    twin = cache.like_this()
    assert twin.fetch(PROMPT) == 40
    boundary = twin.cache.tree.match_prefix(Key(PROMPT), limit=40).reachable
    assert twin.cache.tree.pages(boundary, "draft", Tier.HOST).size == (20 if lost is None else 0)
    twin.end()


def test_a_draft_without_room_is_left_out() -> None:
    cache = stored([FULL, OWN_DRAFT])
    twin = cache.like_this(host_pages={"full": 400, "draft": 7})
    assert twin.fetch(PROMPT) == 40
    assert twin.store.count("get", "draft") == 0
    twin.end()


@pytest.mark.parametrize("kinds", ["mamba", "narrow window", "everything"])
def test_a_state_comes_back_though_the_host_has_the_paths(kinds: str) -> None:
    """States leave the host before the paths do; then they alone are fetched."""
    cache = stored(SETS[kinds])
    whole = reachable(cache)
    tree, controller = cache.cache.tree, cache.cache.controller
    assert controller is not None
    for pages, tier in ((cache.cache.device, Tier.DEVICE), (controller.host, Tier.HOST)):
        for c in cache.components:
            if c.name in pages.allocators and (tier is Tier.DEVICE or not isinstance(c.coverage, Path)):
                pages.free_evicted(tree.evict({c.name: tree.pool(c.name, tier).used_pages}, tier))
    assert reachable(cache) < whole <= cache.reach(PROMPT)
    before = cache.store.count("get", "full")
    cache.prefetch(PROMPT)
    cache.cache.drain()
    assert reachable(cache) == whole
    assert cache.store.count("get", "full") == before
    cache.hit(PROMPT)
    cache.end()


def test_nothing_is_read_before_it_is_known_what_can_be_restored() -> None:
    cache = stored([FULL, MAMBA], checkpoints=(20,))
    for key in cache.store.keys("mamba"):
        cache.store.remove("mamba", [key])
    twin = cache.like_this()
    assert twin.fetch(PROMPT) == 0
    assert twin.store.count("get", "full") == twin.store.count("get", "mamba") == 0


def test_only_what_the_host_lacks_is_fetched() -> None:
    cache = stored([FULL])
    twin = cache.like_this()
    assert twin.fetch(PROMPT[:21]) == 20
    assert twin.store.count("get", "full") == 10
    assert twin.fetch(PROMPT) == 40
    assert twin.store.count("get", "full") == 20


def test_what_is_on_device_is_not_fetched() -> None:
    cache = stored([FULL])
    tree, controller = cache.cache.tree, cache.cache.controller
    assert controller is not None
    controller.host.free_evicted(tree.evict({"full": tree.pool("full", Tier.HOST).used_pages}, Tier.HOST))
    assert cache.reach(PROMPT) == 0
    assert not cache.prefetch(PROMPT)
    assert cache.hit(PROMPT) == 40
