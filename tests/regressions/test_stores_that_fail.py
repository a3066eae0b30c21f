"""Stores that fail, lose pages or come back: what is asked of them again, and what a miss is called meanwhile."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis_server
from prometheus_client import CollectorRegistry, generate_latest
from scheduled_cache import PAGE, ScheduledCache
from scheduled_cache import prompt as prompt_of
from store_rigs import RedisRig
from stored_cache import EAGER, StoredCache, policy
from unwell_store import Rotten, Unwell
from waiting import PATIENCE_S
from watchdog import until

from unified_tree import Component, Key, Path, Point, Trailing
from unified_tree.controllers.cache.metrics import CacheCollector
from unified_tree.controllers.storage import Outcome, StorageEngine, StoredPool, StoreFault
from unified_tree.controllers.storage.redis import RedisStorage
from unified_tree.controllers.storage_tier import PersistPolicy, PrefetchMode
from unified_tree.misses.causes import NO_ANSWER, NOT_GIVEN
from unified_tree.misses.miss_cause import MissCause
from unified_tree.terms.errors import ConfigurationError, StorageError

# A store lists a page that it fails to give: every request of the prefix asked for it again, and waited for the failure.

FULL = Component(name="full", coverage=Path(), page_bytes=64)
WINDOW = Component(name="swa", coverage=Trailing(5), page_bytes=64)
HEAD = [random.Random(1).randrange(100) for _ in range(20)]
PROMPTS = [[*HEAD, *random.Random(number).choices(range(100), k=10)] for number in range(2, 17)]


def unwell(kinds: Sequence[Component] = (FULL,), engine: type[Unwell] = Unwell, **policies: Any) -> tuple[StoredCache, Unwell]:
    """A cache over a store that can fall ill."""
    cache = StoredCache(kinds, **policies)
    opened = engine(cache.every_pool)
    cache.attach(engine=opened)
    return cache, opened


def cache_with(
    answer: Outcome | type[StorageError], components: list[Component], **settings: float
) -> tuple[StoredCache, Unwell]:
    """The head of all prompts is in the store alone, which answers so where it is stale."""
    cache, engine = unwell(components, prefetch=policy(failed_pause_s=10.0, **settings))
    engine.answer = answer
    cache.compute(HEAD)
    cache.forget()
    return cache, engine


@pytest.mark.parametrize("answer", [Outcome.FAILED, Outcome.MISSING, StorageError])
@pytest.mark.parametrize("components", [[FULL], [FULL, WINDOW]], ids=["path", "window"])
def test_fifteen_prompts_make_one_failing_read(answer: Outcome | type[StorageError], components: list[Component]) -> None:
    cache, engine = cache_with(answer, components)
    engine.stale = {engine.keys("full")[3]}
    for prompt in PROMPTS:
        assert cache.fetch(prompt) <= 6
    assert sum(engine.failing_reads.values()) == 1
    assert cache.figures.failed_pages >= 1 and cache.figures.skipped_reads >= 14
    assert cache.figures.faults["not_given" if answer is Outcome.MISSING else "read_failed"] >= 1
    cache.end()


def test_a_window_that_is_not_given_is_asked_for_once() -> None:
    cache, engine = cache_with(Outcome.FAILED, [FULL, WINDOW])
    engine.stale = set(engine.keys("swa"))
    for prompt in PROMPTS:
        cache.fetch(prompt)
        cache.forget()
    assert max(engine.failing_reads.values()) == 1
    cache.end()


def test_it_is_asked_for_again_after_the_pause() -> None:
    cache, engine = cache_with(Outcome.FAILED, [FULL])
    engine.stale = {engine.keys("full")[0]}
    for times in (1, 1, 2, 2):
        assert cache.fetch(PROMPTS[0]) == 0
        assert sum(engine.failing_reads.values()) == times
        cache.forget()
        cache.clock.advance(int(5.1e9))
    engine.heal()
    cache.clock.advance(int(5.1e9))
    assert cache.fetch(PROMPTS[0]) == 20
    cache.end()


def test_a_page_that_is_written_anew_is_asked_for_at_once() -> None:
    cache, engine = cache_with(Outcome.MISSING, [FULL])
    engine.stale = set(engine.keys("full"))
    assert cache.fetch(PROMPTS[0]) == 0
    engine.heal()
    engine.lose()
    cache.compute(HEAD)
    cache.forget()
    assert cache.fetch(PROMPTS[1]) == 20
    cache.end()


def test_the_memory_is_bounded() -> None:
    cache, engine = cache_with(Outcome.FAILED, [FULL], max_failed_pages=1)
    first, engine.stale = engine.keys("full")[0], set(engine.keys("full"))
    cache.fetch(PROMPTS[0])
    assert cache.figures.failed_pages == 1
    cache.fetch(PROMPTS[1])
    assert engine.failing_reads[first] == 1, "of a batch its first page is remembered, where the prefix ends"
    cache.end()


def test_no_pause_asks_every_time() -> None:
    cache, engine = cache_with(Outcome.FAILED, [FULL])
    cache.attach(engine=engine, prefetch=policy(failed_pause_s=0.0))
    engine.stale = {engine.keys("full")[0]}
    for prompt in PROMPTS:
        cache.fetch(prompt)
    assert sum(engine.failing_reads.values()) == len(PROMPTS)
    cache.end()


# After an outage nothing was fetched: what an empty store was believed to hold was not written anew, and what could not be
# written while it was away was never tried again.

START = list(range(20))
TURNS = [[*START, 100 + number, *range(200, 219)] for number in range(4)]


@pytest.mark.parametrize("is_noticed", [True, False])
def test_what_an_empty_store_was_believed_to_hold_is_written_anew(is_noticed: bool) -> None:
    """It was restarted, while it was asked or not."""
    cache, engine = unwell()
    cache.compute(START)
    if is_noticed:
        engine.is_away = True
        cache.fetch([7] * 20)
        engine.heal()
    engine.lose()
    if is_noticed:
        cache.fetch([8] * 20)
    for turn in TURNS:
        cache.compute(turn)
    cache.forget()
    assert [cache.fetch(turn) for turn in TURNS] == [38] * 4
    cache.end()


@pytest.mark.parametrize("fault", ["is_away", "is_full", "is_raising"])
def test_what_was_not_taken_is_tried_again(fault: str) -> None:
    cache, engine = unwell(persist=PersistPolicy(retry_s=5.0))
    setattr(engine, fault, True)
    for turn in TURNS:
        cache.compute(turn)
    assert cache.figures.boundaries_to_retry == 4
    engine.heal()
    cache.clock.advance(int(5.1e9))
    for _ in range(20):
        cache.cache.drain()
        cache.step()
    assert cache.figures.boundaries_to_retry == 0
    cache.forget()
    assert [cache.fetch(turn) for turn in TURNS] == [38] * 4
    cache.end()


def test_while_it_is_ill_one_boundary_a_pause_is_tried() -> None:
    cache, engine = unwell(persist=PersistPolicy(retry_s=5.0, max_waiting=3))
    engine.is_full = True
    for turn in TURNS:
        cache.compute(turn)
    assert cache.drops()["persist not tried again"] == 1
    engine.calls.clear()
    for _ in range(100):
        cache.clock.advance(int(1e9))
        cache.step(3)
        cache.cache.drain()
    assert 18 <= sum(call == "put" for call, _, _ in engine.calls) <= 20
    cache.end()


# A boundary that was evicted while it waited for its retry cost a pause, and the store was not asked: 1,024 cost three hours.


@pytest.mark.parametrize("kinds", [[FULL], [FULL, WINDOW]], ids=["path", "window"])
def test_what_was_evicted_meanwhile_costs_no_pause(kinds: Sequence[Component]) -> None:
    """The store is well again, and no request comes: the first retry finds out, and the rest follows without a pause."""
    cache, engine = unwell(kinds, persist=PersistPolicy(retry_s=5.0))
    engine.is_away = True
    gone = [[number, *range(300, 319)] for number in range(40)]
    for tokens in gone:
        cache.compute(tokens)
    cache.forget()
    for tokens in TURNS:
        cache.compute(tokens)
    assert cache.figures.is_degraded
    cache.step(2 * len(gone))
    kept = cache.figures.boundaries_to_retry
    assert len(TURNS) <= kept <= 2 * len(TURNS), "what is gone is not counted"
    assert cache.drops()["persist stale"] >= len(gone)
    engine.heal()
    cache.step(1000)
    assert cache.figures.boundaries_to_retry == kept, "a pause goes by before a store that failed is tried"
    cache.clock.advance(int(5.1e9))
    cache.step(100)  # microseconds
    assert cache.figures.boundaries_to_retry == 0
    cache.forget()
    assert [cache.fetch(tokens) for tokens in TURNS] == [38] * len(TURNS)
    cache.end()


def test_a_retry_that_cannot_begin_costs_no_pause() -> None:
    """They were evicted just now, so the retry itself meets them."""
    cache, engine = unwell(persist=PersistPolicy(retry_s=5.0))
    engine.is_away = True
    for number in range(10):
        cache.compute([number, *range(300, 319)])
    cache.forget()
    cache.compute(START)
    engine.heal()
    cache.clock.advance(int(5.1e9))
    cache.step(20)
    assert cache.figures.boundaries_to_retry == 0
    assert engine.keys("full")
    cache.end()


def test_no_retries() -> None:
    cache, engine = unwell(persist=PersistPolicy(retry_s=None))
    engine.is_full = True
    cache.compute(START)
    engine.heal()
    cache.clock.advance(int(1e12))
    cache.step(5)
    assert engine.keys("full") == []
    cache.end()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis_server.Redis]:
    redis_server.skip_unless_it_runs()
    with redis_server.Redis(tmp_path_factory.mktemp("redis"), over="tcp") as server:
        yield server


@pytest.mark.parametrize("way", ["kill", "freeze"])
def test_a_real_server(server: redis_server.Redis, way: str) -> None:
    """Prompts that host memory has kept through the outage are in the store afterwards, without being computed again."""
    rig, cache = RedisRig(server, way), ScheduledCache()
    engines: list[StorageEngine] = []

    def opened(pools: Sequence[StoredPool]) -> StorageEngine:
        engines.append(rig.open(pools))
        return engines[0]

    cache.attach(opened)
    prompts = [prompt_of(number) for number in range(6)]
    for tokens in prompts[:3]:
        cache.serve(tokens)
    cache.settle()
    getattr(rig, way)()
    rig.hurry(engines[0])
    for tokens in prompts[3:]:
        cache.serve(tokens)
    until(lambda: not cache.serve(prompt_of(9)) or cache.figures.faults["unanswered"], "the outage is seen")
    cache.settle()
    [engine] = engines
    assert isinstance(engine, RedisStorage)
    redis_server.wait_for(engine, PATIENCE_S)
    rig.start() if way == "kill" else rig.thaw()

    def is_stored() -> bool:
        cache.now += 20.0
        cache.settle()
        return cache.figures.boundaries_to_retry == 0 and not cache.figures.is_degraded

    until(is_stored, "what the store did not take is there")
    found = [cache.found_again(tokens) for tokens in prompts[3:]]
    assert found == [prompts[0].size // PAGE * PAGE] * 3
    cache.close()
    rig.end()


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="retry_s must be finite and positive, not 0"):
        PersistPolicy(retry_s=0)
    with pytest.raises(ConfigurationError, match="max_failed_pages must be 1 or more, not 0"):
        type(EAGER)(max_failed_pages=0)
    with pytest.raises(ConfigurationError, match="zero or more"):
        type(EAGER)(failed_pause_s=-1)


# A store that fails left no counter, log line or metric, and what it should have brought was called *never seen*.

STATE = Component(name="mamba", coverage=Point(), page_bytes=64)
KINDS = {"path": [FULL], "window": [FULL, WINDOW], "state": [FULL, STATE]}
PROMPT = list(range(41))
ALL_FAILED = {MissCause.STORE_FAILED: 40, MissCause.LAST_TOKEN: 1}


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


def fetched(cache: StoredCache, tokens: list[int]) -> dict[MissCause, int]:
    """The misses of a request that waited for its prefetch."""
    cache.prefetch(tokens)
    cache.cache.drain()
    return misses(cache, tokens)


def fresh(kinds: str, engine_class: type[Unwell] = Unwell) -> tuple[StoredCache, Unwell]:
    """A server that knows nothing of a prompt that lies in the store."""
    first, engine = unwell(KINDS[kinds], engine_class, prefetch=policy(failed_pause_s=10.0))
    first.compute(PROMPT)
    second = first.like_this()
    second.attach(engine=engine)
    return second, engine


def faults(cache: StoredCache) -> dict[str, int]:
    counts = cache.figures.faults
    assert set(counts) == {fault.value for fault in StoreFault}
    return {kind: count for kind, count in counts.items() if count}


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
        found = fetched(cache, PROMPT)
        if again and ill == "corrupt":
            assert engine.count("get", "full") > 0, "what was corrupt is removed, so that the store lacks it from then on"
            continue
        assert found == ALL_FAILED, again
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
    found = fetched(cache, PROMPT)
    assert found.pop(MissCause.LAST_TOKEN) == 1
    assert found == {MissCause.STORE_FAILED: 20 if kinds == "path" else 40}
    cache.end()


@pytest.mark.parametrize("pool", ["swa", "mamba", "restore points"])
def test_a_window_a_state_or_a_restore_point_that_is_not_given(pool: str) -> None:
    cache, engine = fresh("state" if pool == "mamba" else "window")
    engine.stale = set(engine.keys(pool))
    for _ in range(2):
        assert fetched(cache, PROMPT) == ALL_FAILED
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
        assert misses(cache, PROMPT, request) == ALL_FAILED
    cache.end()


def test_what_was_in_a_store_that_does_not_answer_is_lost_to_it_and_not_to_the_eviction() -> None:
    cache, engine = unwell()
    cache.compute(PROMPT)
    cache.forget()
    engine.is_away = True
    assert fetched(cache, PROMPT) == ALL_FAILED
    cache.end()


# That a store once had a prompt was called a listing, so a store that was down looked like one whose disks fail.


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("fault", ["is_away", "is_raising"])
def test_a_store_that_does_not_answer_gave_no_answer(kinds: str, fault: str) -> None:
    cache, engine = unwell(KINDS[kinds])
    cache.compute(PROMPT)
    cache.forget()
    setattr(engine, fault, True)
    for request in ("leader", "follower"):
        assert cache.prefetch(PROMPT, request=request)
    cache.cache.drain()
    for request in ("leader", "follower"):
        assert misses(cache, PROMPT, request) == ALL_FAILED
    assert cache.cache.ledger.details == {(MissCause.STORE_FAILED, NO_ANSWER): 80}
    assert "not_given" not in faults(cache)
    cache.end()


def test_a_store_that_has_not_answered_in_time_gave_no_answer() -> None:
    cache, engine = unwell(prefetch=policy(mode=PrefetchMode.TIMEOUT, base_s=1.0, per_token_s=0.0))
    cache.compute(PROMPT)
    cache.forget()
    asked = engine.count("exists", "full")
    assert cache.prefetch(PROMPT)
    cache.step()
    assert engine.count("exists", "full") > asked
    cache.clock.advance(int(1.1e9))
    assert cache.cache.prefetched("request")
    assert misses(cache, PROMPT) == ALL_FAILED
    assert cache.cache.ledger.details == {(MissCause.STORE_FAILED, NO_ANSWER): 40}
    cache.end()


def test_what_a_store_lists_and_does_not_give_is_not_given() -> None:
    cache, engine = unwell()
    cache.compute(PROMPT)
    cache.forget()
    engine.stale = set(engine.keys("full"))
    assert fetched(cache, PROMPT) == ALL_FAILED
    assert cache.cache.ledger.details == {(MissCause.STORE_FAILED, NOT_GIVEN): 40}
    cache.end()


def test_a_well_store_that_lacks_a_prompt_fails_nobody() -> None:
    cache, _ = fresh("path")
    other = [99, *PROMPT]
    assert fetched(cache, other) == {MissCause.NEVER_SEEN: 40, MissCause.PAGE_REMAINDER: 1, MissCause.LAST_TOKEN: 1}
    assert faults(cache) == {}
    cache.end()


def test_what_is_not_written_is_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    cache, engine = unwell()
    engine.is_full = True
    for first in range(3):
        cache.compute([first, *PROMPT])
    assert faults(cache)["write_dropped"] > 0
    assert caplog.text.count("did not take") == 1
    cache.end()
