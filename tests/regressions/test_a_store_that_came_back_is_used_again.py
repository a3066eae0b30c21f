"""After an outage nothing was fetched: what an empty store was believed to hold was not written anew, and what could not be
written while it was away was never tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import redis_server
from scheduled_cache import PAGE, ScheduledCache, prompt
from store_rigs import RedisRig
from stored_cache import EAGER, StoredCache
from unwell_store import Unwell
from waiting import PATIENCE_S
from watchdog import until

from unified_tree import Component, Path
from unified_tree.controllers.storage import StorageEngine, StoredPool
from unified_tree.controllers.storage.redis import RedisStorage
from unified_tree.controllers.storage_tier import PersistPolicy

FULL = Component(name="full", coverage=Path(), page_bytes=64)
HEAD = list(range(20))
TURNS = [[*HEAD, 100 + number, *range(200, 219)] for number in range(4)]


def unwell(**persist: float | int | None) -> tuple[StoredCache, Unwell]:
    cache = StoredCache([FULL], persist=PersistPolicy(**persist))  # type: ignore[arg-type]
    engine = Unwell(cache.every_pool)
    cache.attach(engine=engine)
    return cache, engine


def test_what_an_empty_store_was_believed_to_hold_is_written_anew() -> None:
    cache, engine = unwell()
    cache.compute(HEAD)
    engine.is_away = True
    cache.fetch([7] * 20)
    engine.heal()
    engine.lose()
    cache.fetch([8] * 20)
    for turn in TURNS:
        cache.compute(turn)
    cache.forget()
    assert [cache.fetch(turn) for turn in TURNS] == [38] * 4
    cache.end()


def test_what_was_lost_unnoticed_is_written_anew() -> None:
    """A store that was restarted while it was not asked."""
    cache, engine = unwell()
    cache.compute(HEAD)
    engine.lose()
    for turn in TURNS:
        cache.compute(turn)
    cache.forget()
    assert [cache.fetch(turn) for turn in TURNS] == [38] * 4
    cache.end()


@pytest.mark.parametrize("fault", ["is_away", "is_full", "is_raising"])
def test_what_was_not_taken_is_tried_again(fault: str) -> None:
    cache, engine = unwell(retry_s=5.0)
    setattr(engine, fault, True)
    for turn in TURNS:
        cache.compute(turn)
    storage = cache.cache.stats().storage
    assert storage is not None and storage.boundaries_to_retry == 4
    engine.heal()
    cache.clock.advance(int(5.1e9))
    for _ in range(20):
        cache.cache.drain()
        cache.step()
    storage = cache.cache.stats().storage
    assert storage is not None and storage.boundaries_to_retry == 0
    cache.forget()
    assert [cache.fetch(turn) for turn in TURNS] == [38] * 4
    cache.end()


def test_while_it_is_ill_one_boundary_a_pause_is_tried() -> None:
    cache, engine = unwell(retry_s=5.0, max_waiting=3)
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


def test_no_retries() -> None:
    cache, engine = unwell(retry_s=None)
    engine.is_full = True
    cache.compute(HEAD)
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
    prompts = [prompt(number) for number in range(6)]
    for tokens in prompts[:3]:
        cache.serve(tokens)
    cache.settle()
    getattr(rig, way)()
    rig.hurry(engines[0])
    for tokens in prompts[3:]:
        cache.serve(tokens)
    until(lambda: not cache.serve(prompt(9)) or cache.figures.faults["unanswered"], "the outage is seen")
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
    from unified_tree.terms.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match="retry_s must be positive or None, not 0"):
        PersistPolicy(retry_s=0)
    with pytest.raises(ConfigurationError, match="max_failed_pages is one or more, not 0"):
        type(EAGER)(max_failed_pages=0)
    with pytest.raises(ConfigurationError, match="zero or more"):
        type(EAGER)(failed_pause_s=-1)
