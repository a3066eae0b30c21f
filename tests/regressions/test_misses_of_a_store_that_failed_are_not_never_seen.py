"""A store that fails left no counter, log line or metric, and what it should have brought was called *never seen*."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from stored_cache import StoredCache, policy
from unwell_store import Rotten, Unwell

from unified_tree import Component, Key, Path, Point, Trailing
from unified_tree.controllers.cache.metrics import CacheCollector
from unified_tree.controllers.storage import Outcome, StoreFault
from unified_tree.controllers.storage_tier import PrefetchMode
from unified_tree.misses.causes import NO_ANSWER, NOT_GIVEN
from unified_tree.misses.miss_cause import MissCause

FULL = Component(name="full", coverage=Path(), page_bytes=64)
WINDOW = Component(name="swa", coverage=Trailing(5), page_bytes=64)
STATE = Component(name="mamba", coverage=Point(), page_bytes=64)
KINDS = {"path": [FULL], "window": [FULL, WINDOW], "state": [FULL, STATE]}
PROMPT = list(range(41))


def misses(cache: StoredCache, tokens: list[int], request: str | None = "request") -> dict[MissCause, int]:
    """Of one request, by cause; and they sum up to the prompt."""
    lease = cache.cache.acquire(Key(tokens), request=request)
    found: dict[MissCause, int] = {}
    for miss in lease.misses:
        found[miss.cause] = found.get(miss.cause, 0) + miss.tokens
        if miss.cause is MissCause.STORE_FAILED:
            assert miss.detail in (NO_ANSWER, NOT_GIVEN)
    assert sum(found.values()) + lease.compute_from == len(tokens)
    cache.cache.release(lease)
    stats = cache.cache.stats()
    assert sum(stats.misses.values()) == stats.prompt_tokens - stats.hit_tokens
    return found


def fresh(kinds: str, engine_class: type[Unwell] = Unwell) -> tuple[StoredCache, Unwell]:
    """A server that knows nothing of a prompt that lies in the store."""
    first = StoredCache(KINDS[kinds], prefetch=policy(failed_pause_s=10.0))
    engine = engine_class(first.every_pool)
    first.attach(engine=engine)
    first.compute(PROMPT)
    second = first.like_this()
    second.attach(engine=engine)
    return second, engine


def faults(cache: StoredCache) -> dict[str, int]:
    storage = cache.cache.stats().storage
    assert storage is not None
    assert set(storage.faults) == {fault.value for fault in StoreFault}
    return {kind: count for kind, count in storage.faults.items() if count}


def away(engine: Unwell) -> None:
    engine.is_away = True


def raising(engine: Unwell) -> None:
    engine.is_raising = True


def stale(engine: Unwell) -> None:
    engine.stale = set(engine.keys("full"))


def stale_and_missing(engine: Unwell) -> None:
    stale(engine)
    engine.answer = Outcome.MISSING


ILLS: dict[str, tuple[Callable[[Unwell], None], type[Unwell], str]] = {
    "away": (away, Unwell, "unanswered"),
    "raising": (raising, Unwell, "unanswered"),
    "failing": (stale, Unwell, "read_failed"),
    "not there": (stale_and_missing, Unwell, "not_given"),
    "corrupt": (stale, Rotten, "corrupt"),
}


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("ill", ILLS)
def test_a_fault_has_a_cause_a_counter_a_metric_and_a_line(kinds: str, ill: str, caplog: pytest.LogCaptureFixture) -> None:
    spoil, engine_class, kind = ILLS[ill]
    cache, engine = fresh(kinds, engine_class)
    spoil(engine)
    for again in range(3):
        cache.prefetch(PROMPT)
        cache.cache.drain()
        found = misses(cache, PROMPT)
        if again and ill == "corrupt":
            assert engine.count("get", "full") > 0, "what was corrupt is removed, so that the store lacks it from then on"
            continue
        assert found == {MissCause.STORE_FAILED: 40, MissCause.LAST_TOKEN: 1}, again
    assert faults(cache)[kind] > 0
    lines = [record for record in caplog.records if record.name == "unified_tree.storage" and record.levelno >= logging.WARNING]
    assert lines and len(lines) <= 4, "a line a kind of fault and pool, not one a request"
    registry = CollectorRegistry()
    registry.register(CacheCollector(cache.cache.stats))
    exported = generate_latest(registry).decode()
    assert f'unified_tree_storage_faults_total{{kind="{kind}"}} 0.0' not in exported
    assert f'unified_tree_storage_faults_total{{kind="{kind}"}}' in exported
    assert 'unified_tree_miss_tokens_total{cause="store_failed"}' in exported
    cache.end()


@pytest.mark.parametrize("kinds", KINDS)
def test_what_is_only_partly_given_is_partly_lost(kinds: str) -> None:
    cache, engine = fresh(kinds)
    engine.stale = set(engine.keys("full")[10:])
    cache.prefetch(PROMPT)
    cache.cache.drain()
    found = misses(cache, PROMPT)
    assert found.pop(MissCause.LAST_TOKEN) == 1
    assert found == {MissCause.STORE_FAILED: 20 if kinds == "path" else 40}
    cache.end()


@pytest.mark.parametrize("pool", ["swa", "mamba", "restore points"])
def test_a_window_a_state_or_a_restore_point_that_is_not_given(pool: str) -> None:
    cache, engine = fresh("state" if pool == "mamba" else "window")
    engine.stale = set(engine.keys(pool))
    for _ in range(2):
        cache.prefetch(PROMPT)
        cache.cache.drain()
        assert misses(cache, PROMPT) == {MissCause.STORE_FAILED: 40, MissCause.LAST_TOKEN: 1}
    assert max(engine.failing_reads.values()) == 1
    cache.end()


def test_a_store_that_has_not_answered_in_time() -> None:
    """The time-out of a request ends while its look-up is under way."""
    cache, engine = fresh("path")
    cache.attach(engine=engine, prefetch=policy(mode=PrefetchMode.TIMEOUT, base_s=0.0, per_token_s=0.0))
    for request in ("leader", "follower"):
        assert cache.prefetch(PROMPT, request=request)
    cache.clock.advance(1)
    for request in ("leader", "follower"):
        assert cache.cache.prefetched(request)
        assert misses(cache, PROMPT, request) == {MissCause.STORE_FAILED: 40, MissCause.LAST_TOKEN: 1}
    cache.end()


def test_what_was_in_a_store_that_does_not_answer_is_lost_to_it_and_not_to_the_eviction() -> None:
    cache = StoredCache([FULL])
    engine = Unwell(cache.every_pool)
    cache.attach(engine=engine)
    cache.compute(PROMPT)
    cache.forget()
    engine.is_away = True
    cache.prefetch(PROMPT)
    cache.cache.drain()
    assert misses(cache, PROMPT) == {MissCause.STORE_FAILED: 40, MissCause.LAST_TOKEN: 1}
    cache.end()


def test_a_well_store_that_lacks_a_prompt_fails_nobody() -> None:
    cache, _ = fresh("path")
    other = [99, *PROMPT]
    cache.prefetch(other)
    cache.cache.drain()
    assert misses(cache, other) == {MissCause.NEVER_SEEN: 40, MissCause.PAGE_REMAINDER: 1, MissCause.LAST_TOKEN: 1}
    assert faults(cache) == {}
    cache.end()


def test_what_is_not_written_is_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    cache = StoredCache([FULL])
    engine = Unwell(cache.every_pool)
    cache.attach(engine=engine)
    engine.is_full = True
    for first in range(3):
        cache.compute([first, *PROMPT])
    assert faults(cache)["write_dropped"] > 0
    assert caplog.text.count("did not take") == 1
    cache.end()
