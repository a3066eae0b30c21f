"""An observer that raised in `acquire` left a lease that its caller never got; in an eviction, a poll or an invalidation it
ended the call half-way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from kinds import FULL

from unified_tree import Key
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.cache.request_spans import RequestSpans
from unified_tree.controllers.counters import CacheObserver
from unified_tree.controllers.transfer_engines import NullEngine


class Raises:
    """Whatever it is told, it raises."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*_: object, **__: object) -> Any:
            self.told.append(name)
            raise OSError(f"no space left for {name}")

        return call


class RaisesLater(CacheObserver):
    """The same once a request was admitted."""

    def __init__(self, raises: Raises) -> None:
        self.acquired = raises.acquired  # type: ignore[method-assign]


def live(cache: PrefixCache) -> tuple[object, ...]:
    """All that a cache tells anybody of, and what it is like after that."""
    for i in range(3):
        with cache.acquire(Key([i] * 16), reserve_tokens=16) as lease:
            cache.commit(lease, 16)
        cache.poll()
    cache.drain()
    cache.evict({"full": 8})
    with cache.acquire(Key([2] * 17), reserve_tokens=18):
        cache.poll()
    cache.invalidate()
    cache.poll()
    cache.drain()
    stats = cache.stats()
    return cache.tree.dump(), cache.lease_count, stats.pools, stats.host_pools, stats.requests, stats.backed_up.pages


def made() -> PrefixCache:
    host = HostTier(page_counts={"full": 64}, engine=NullEngine())
    return PrefixCache([FULL], 2, {"full": 20}, host=host, time_s=lambda: 1.0)


def test_no_call_is_ended_by_an_observer(caplog: pytest.LogCaptureFixture) -> None:
    plain, cache, observer = made(), made(), Raises()
    cache.observers.add(RaisesLater(observer))
    cache.device.watcher = observer
    assert cache.controller is not None
    cache.controller.host.watcher = observer
    for counters in cache.counters.transfers.values():
        counters.meter = lambda *_: observer.metered()
    with caplog.at_level(logging.ERROR, "unified_tree"):
        assert live(cache) == live(plain)
    told = [name for name in observer.told if name != "failed"]  # which says to the watcher that it is told no more
    assert cache.stats().drops["observer failed"] == len(told)
    assert {"acquired", "freed", "landed", "metered"} <= set(told)
    assert "no space left for acquired" in caplog.text
    assert len(caplog.records) < len(observer.told), "what goes on does not fill a log"


def test_no_call_is_ended_by_a_tracer() -> None:
    from opentelemetry.trace import NoOpTracer

    class Broken(NoOpTracer):
        def start_span(self, *_: Any, **__: Any) -> Any:
            raise OSError("no collector")

    cache = made()
    RequestSpans(cache, tracer=Broken())
    assert live(cache) == live(made())


def test_an_interrupt_in_an_observer_ends_the_request() -> None:
    cache = made()

    class Interrupts(CacheObserver):
        def acquired(self, *_: object) -> None:
            raise KeyboardInterrupt

    cache.observers.add(Interrupts())
    with pytest.raises(KeyboardInterrupt):
        cache.acquire(Key([1, 2, 3]), reserve_tokens=4)
    assert cache.lease_count == 0 and cache.stats().pools["full"].used == 0
