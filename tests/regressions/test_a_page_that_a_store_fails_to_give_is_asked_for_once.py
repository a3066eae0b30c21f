"""A store lists a page that it fails to give: every request of the prefix asked for it again, and waited for the failure."""

from __future__ import annotations

import random

import pytest
from stored_cache import StoredCache, policy
from unwell_store import Unwell

from unified_tree import Component, Path, Trailing
from unified_tree.controllers.storage import Outcome
from unified_tree.terms.errors import StorageError

FULL = Component(name="full", coverage=Path(), page_bytes=64)
WINDOW = Component(name="swa", coverage=Trailing(5), page_bytes=64)
HEAD = [random.Random(1).randrange(100) for _ in range(20)]
PROMPTS = [[*HEAD, *random.Random(number).choices(range(100), k=10)] for number in range(2, 17)]


def cache_with(
    answer: Outcome | type[StorageError], components: list[Component], **settings: float
) -> tuple[StoredCache, Unwell]:
    cache = StoredCache(components, prefetch=policy(failed_pause_s=10.0, **settings))
    engine = Unwell(cache.every_pool)
    engine.answer = answer
    cache.attach(engine=engine)
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
    storage = cache.cache.stats().storage
    assert storage is not None
    assert storage.failed_pages >= 1 and storage.skipped_reads >= 14
    assert storage.faults["not_given" if answer is Outcome.MISSING else "read_failed"] >= 1
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
    storage = cache.cache.stats().storage
    assert storage is not None and storage.failed_pages == 1
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
