"""What is remembered of pages that a store did not give, and how an engine says that it does not know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from stored_pages import blanks, key, keys, pages, pool

from unified_tree.controllers.storage import AnsweringEngine, CheckedStorage, MemoryStorage
from unified_tree.controllers.storage.checked_storage import FailedReads


class Seconds:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_pages_are_remembered_for_a_while_and_by_pool() -> None:
    clock = Seconds()
    failed = FailedReads(10, 5.0, clock)
    assert failed.among("full", keys(range(3))) is None
    failed.add("full", keys([1, 2]))
    found = failed.among("full", keys(range(3)))
    assert found is not None and found.tolist() == [False, True, True]
    assert failed.among("swa", keys(range(3))) is None
    assert (len(failed), failed.skipped) == (2, 2)
    failed.discard("full", [key(1)])
    clock.now = 4.9
    failed.add("full", [key(3)])
    clock.now = 5.0
    assert len(failed) == 1
    failed.clear()
    assert len(failed) == 0


def test_the_first_pages_of_a_batch_stay_longest() -> None:
    failed = FailedReads(2, 5.0, Seconds())
    failed.add("full", keys(range(5)))
    found = failed.among("full", keys(range(5)))
    assert found is not None and found.tolist() == [True, True, False, False, False]


def test_none_is_remembered_without_a_pause() -> None:
    failed = FailedReads(2, 0.0, Seconds())
    failed.add("full", keys(range(5)))
    assert len(failed) == 0


class Halved(MemoryStorage):
    """Whose second server is away: it knows nothing of every other key."""

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool | None]:  # type: ignore[override]
        return [None if index % 2 else found for index, found in enumerate(super()._exists(pool, keys))]


def test_a_part_of_a_store_that_is_away_is_no_miss_and_not_the_whole_store() -> None:
    one = pool()
    engine = Halved([one])
    assert isinstance(engine, AnsweringEngine)
    engine.put("full", keys([0]), pages([0]))
    store = CheckedStorage(engine)
    found = store.look_up("full", keys(range(4)))
    assert found.there.tolist() == found.listed.tolist() == [True, False, False, False]
    assert found.unanswered.tolist() == [False, True, False, True]
    assert store.faults.counts["unanswered"] == 2
    assert not store.is_away and store.outages == 0
    assert engine.take_unanswered() is None, "it is told once"


def test_an_outage_is_counted_when_it_has_ended_and_what_failed_is_asked_for_again() -> None:
    one = pool()
    engine = MemoryStorage([one])
    failed = FailedReads(10, 1e9, Seconds())
    store = CheckedStorage(engine, failed)
    store.get("full", keys([7]), blanks(1))
    assert len(failed) == 1 and store.faults.counts["not_given"] == 1
    admits, engine._admits = engine._admits, lambda: False  # type: ignore[method-assign]
    assert not store.look_up("full", keys([7])).listed.any() and store.is_away
    engine._admits = admits  # type: ignore[method-assign]
    engine.put("full", keys([7]), pages([7]))
    assert store.look_up("full", keys([7])).there.all()
    assert (store.outages, len(failed), store.is_away) == (1, 0, False)
    assert np.array_equal(store.exists("full", []), np.zeros(0, np.bool_))
