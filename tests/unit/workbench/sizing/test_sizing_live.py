"""The curve of a running cache."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from unified_tree import Chunked, Component, Coverage, Path, Point, Trailing
from unified_tree.components import composition_for
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.workbench.sizing.live_sizes import COMPACT_EVERY, FACTORS, LiveSizes
from unified_tree.declare.keys import Key
from unified_tree.terms.errors import ConfigurationError

PAGE = 64
FULL = 2048


def cache_of(model: str, pages: int = FULL) -> PrefixCache:
    """One that evicts by recency, as live sizes do."""
    composition = composition_for(model)
    counts = dict.fromkeys(composition.pool_page_bytes(), pages)
    return PrefixCache(composition.components, composition.page_size, counts, policy="lru")


def serve(cache: PrefixCache, tokens: np.ndarray[tuple[int], np.dtype[np.int64]], namespace: str = "") -> None:
    key = Key(tokens, namespace)
    lease = cache.acquire(key, save_output=False)
    if lease.length < key.length:
        cache.allocate(lease, key.length)
    cache.commit(lease, key.length, states=dict(lease.save_pages))
    cache.release(lease)


def conversations(count: int, turns: int, seed: int = 0):  # type: ignore[no-untyped-def]
    draw = np.random.default_rng(seed)
    histories = [draw.integers(0, 1 << 30, 640) for _ in range(count)]
    for _ in range(turns * count):
        i = int(draw.integers(count))
        histories[i] = np.concatenate([histories[i], draw.integers(0, 1 << 30, 128)])
        if histories[i].size > 4_000:
            histories[i] = draw.integers(0, 1 << 30, 640)
        yield histories[i]


@pytest.mark.parametrize("coverage", [Chunked(1), Chunked(4), Trailing(1), Point()], ids=repr)
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_any_coverage_can_be_watched(coverage: Coverage, page_size: int) -> None:
    parts = [Component(name="full", coverage=Path()), Component(name="other", coverage=coverage)]
    cache = PrefixCache(parts, page_size, {"full": 64, "other": 64})
    LiveSizes.watch(cache, one_in=1)
    serve(cache, np.arange(40))
    sizes = cache.stats().sizes
    assert sizes is not None and len(sizes.points) == len(FACTORS) ** 2


@pytest.mark.parametrize("model", ["qwen3-32b", "qwen3-next-80b-a3b"])
def test_with_all_requests_it_says_what_the_cache_hits(model: str) -> None:
    cache = cache_of(model)
    assert cache.stats().sizes is None
    LiveSizes.watch(cache, one_in=1)
    for tokens in conversations(60, 20):
        serve(cache, tokens)
    stats = cache.stats()
    assert stats.sizes is not None
    assert stats.sizes.prompt_tokens == stats.prompt_tokens
    assert stats.sizes.hit_rate() == pytest.approx(stats.hit_tokens / stats.prompt_tokens, abs=0.01)
    rates = [stats.sizes.hit_rate(path) for path in FACTORS]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0] + 0.1


def test_a_sample_is_near_it_and_has_whole_conversations() -> None:
    cache = cache_of("qwen3-32b", 16 * FULL)
    LiveSizes.watch(cache, one_in=4)
    for tokens in conversations(900, 8):
        serve(cache, tokens)
    stats = cache.stats()
    assert stats.sizes is not None
    assert 0.15 < stats.sizes.requests / stats.requests < 0.35
    assert stats.sizes.hit_rate() == pytest.approx(stats.hit_tokens / stats.prompt_tokens, abs=0.05)


def test_prompts_with_one_beginning_are_told_apart_behind_it() -> None:
    cache, system = cache_of("qwen3-32b"), np.arange(256)
    sizes = LiveSizes.watch(cache, one_in=4, shared_tokens=256)
    for tokens in conversations(60, 4):
        serve(cache, np.concatenate([system, tokens]))
    assert 20 < sizes.curve().requests < 130


def test_namespaces_do_not_meet() -> None:
    cache = cache_of("qwen3-32b")
    sizes = LiveSizes.watch(cache, one_in=1)
    for namespace in ("a", "b", "a"):
        serve(cache, np.arange(PAGE * 4 + 1), namespace)
    assert sizes.curve().hit_rate() == pytest.approx(PAGE * 4 / (3 * (PAGE * 4 + 1)))


def test_its_memory_is_bounded() -> None:
    cache = cache_of("qwen3-next-80b-a3b", 64)
    sizes = LiveSizes.watch(cache, one_in=1)
    prompts = list(conversations(20, 100))
    request = cache.acquire(Key([1]))
    taken = []
    tracemalloc.start()
    try:
        for _ in range(3):
            for tokens in prompts:
                sizes.acquired(request, Key(tokens))
            taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes.curve().requests > 5 * COMPACT_EVERY
    assert taken[2] < 1.2 * taken[1]


def test_what_cannot_be_is_refused() -> None:
    composition = composition_for("qwen3-32b")
    with pytest.raises(ConfigurationError, match="an end"):
        LiveSizes.watch(PrefixCache(composition.components, composition.page_size))
    for given in ({"one_in": 0}, {"one_in": 1.5}, {"shared_tokens": -1}):
        with pytest.raises(ConfigurationError):
            LiveSizes.watch(cache_of("qwen3-32b"), **given)
