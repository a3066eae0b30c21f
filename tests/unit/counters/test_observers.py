"""Observers of a cache: any number at a time, and one that fails takes none of the others with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from unified_tree import Component, Key, Path
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.counters.observers import CacheObserver
from unified_tree.controllers.inspector import Inspector
from unified_tree.controllers.workbench.sizing import LiveSizes

if TYPE_CHECKING:
    from unified_tree.controllers.counters.observers import ObservedRequest


class Counts(CacheObserver):
    """Counts requests, and fails at one of them."""

    def __init__(self, fails_at: int = -1) -> None:
        self.fails_at = fails_at
        self.requests = 0
        self.errors: list[Exception] = []

    def acquired(self, request: ObservedRequest, key: Key) -> None:  # noqa: ARG002
        self.requests += 1
        if self.requests == self.fails_at:
            raise ValueError("no more")

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


def serve(cache: PrefixCache, count: int) -> None:
    for i in range(count):
        with cache.acquire(Key(list(range(100 * i, 100 * i + 64)))) as lease:
            cache.allocate(lease, 64)
            cache.commit(lease, 64)
        cache.poll()


def test_an_inspector_live_sizes_and_others_observe_together() -> None:
    cache = PrefixCache([Component(name="full", coverage=Path())], 16, {"full": 64})
    first, failing, last = Counts(), Counts(fails_at=2), Counts()
    with Inspector.record(cache, os.devnull) as inspector:
        sizes = LiveSizes.watch(cache, one_in=1)
        for observer in (first, failing, last, last):
            cache.counters.observers.add(observer)
        serve(cache, 5)
        assert [first.requests, failing.requests, last.requests] == [5, 2, 5]
        [error] = failing.errors
        assert str(error) == "no more" and cache.stats().drops["observer failed"] == 1
        curve = cache.stats().sizes
        assert curve is not None and curve.requests == 5
        cache.counters.observers.remove(sizes)
        cache.counters.observers.remove(first)
        serve(cache, 1)
        assert cache.stats().sizes is None and [first.requests, last.requests] == [5, 6]
        assert inspector.failure is None
    assert cache.counters.observers.all == (last,)


def test_one_inspector_a_cache() -> None:
    cache = PrefixCache([Component(name="full", coverage=Path())], 16, {"full": 64})
    with Inspector.record(cache, os.devnull), pytest.raises(Exception, match="has an inspector already"):
        Inspector.record(cache, os.devnull)
