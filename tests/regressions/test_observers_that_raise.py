"""No observer ends a step, nor raises into it: whatever it raises, it is told nothing more, and that is said once."""

from __future__ import annotations

import gzip
import json
import logging
import os
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from inspected_cache import FULL, PAGE, busy_cache, serve, serve_one
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import NoOpTracer
from published import publish
from waiting import PATIENCE_S, wait_until

from unified_tree import Key
from unified_tree.controllers import HostTier, LoadCost, PrefixCache, RequestSpans
from unified_tree.controllers.adapters.sglang.observation import MeteredCounters
from unified_tree.controllers.counters import CacheObserver
from unified_tree.controllers.inspector import Inspector
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.controllers.workbench.sizing.live_sizes import LiveSizes
from unified_tree.nodes.effect import EffectKind

# A disk that was full while an inspector recorded made `PrefixCache.poll` raise into the scheduler's step.

HOOKS = (
    "acquiring",
    "acquired",
    "load_ended",
    "load_failed",
    "committing",
    "committed",
    "releasing",
    "released",
    "invalidated",
    "evicted",
    "moved",
    "emptied",
    "polled",
    "failed",
)
ERRORS = (ValueError("x"), OSError(28, "full"), AssertionError(), StopIteration(), MemoryError())
FULL_DISK = Path("/dev/full")


needs_a_full_disk = pytest.mark.skipif(not FULL_DISK.exists(), reason="this system has no /dev/full")


def a_day(cache: PrefixCache) -> None:
    """Every event that a watcher is told of."""
    serve(cache, 40, np.random.default_rng(0))
    cache.drain()
    cache.invalidate("shop")
    lease = cache.acquire(Key(list(range(20)), "shop"))
    cache.release(lease)
    cache.poll()


def told_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@needs_a_full_disk
def test_a_full_disk_ends_the_recording_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    cache = busy_cache(10)
    inspector = Inspector.record(cache, FULL_DISK, figures_every_s=0.0)
    serve(cache, 30, np.random.default_rng(0))
    inspector.record_tree()
    assert inspector.failure is not None and "No space left" in inspector.failure
    assert not cache.counters.observers.all
    a_day(cache)
    inspector.step()
    inspector.tell()
    inspector.record_tree()
    inspector.close()
    [line] = told_of(caplog)
    assert "No space left" in line
    assert cache.stats().drops["observer failed"] == 1
    assert cache.tree.check() == []
    with Inspector.record(cache, os.devnull) as again:
        serve(cache, 3, np.random.default_rng(1))
    assert again.failure is None


@needs_a_full_disk
def test_a_disk_that_is_full_at_the_end_is_told_by_close(caplog: pytest.LogCaptureFixture) -> None:
    inspector = Inspector.record(busy_cache(3), FULL_DISK)
    inspector.close()
    inspector.close()
    assert inspector.failure is not None and len(told_of(caplog)) == 1


def test_a_recording_into_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    cache = busy_cache(3)
    with pytest.raises(OSError, match="pipe"):
        Inspector.record(cache, pipe)
    assert not cache.counters.observers.all
    a_day(cache)


def test_a_slow_disk_takes_no_time_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes nothing until a step has gone by that would have waited for it."""
    go_on, write = Event(), gzip.GzipFile.write

    def waits(file: gzip.GzipFile, data: Any) -> int:
        assert go_on.wait(60)
        return write(file, data)

    monkeypatch.setattr(gzip.GzipFile, "write", waits)
    cache = busy_cache(3)
    with Inspector.record(cache, tmp_path / "cache.rec", figures_every_s=0.0) as inspector:
        serve(cache, 20, np.random.default_rng(0))
        go_on.set()
    assert inspector.failure is None


class Raising(CacheObserver):
    """A watcher that raises in one of its methods."""

    def __init__(self, where: str, error: Exception) -> None:
        self.where = where
        self.error = error
        self.told: list[str] = []
        for name in HOOKS:
            setattr(self, name, partial(self._hook, name))

    def _hook(self, name: str, *_: Any) -> None:
        self.told.append(name)
        if name in (self.where, "failed"):
            raise self.error


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("where", HOOKS[:-1])
def test_a_watcher_that_raises_is_told_nothing_more(where: str, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    tier = HostTier(page_counts={"full": 200}, engine=NullEngine(), load_cost=LoadCost(flops_per_s=1.0))
    cache = PrefixCache([FULL], PAGE, {"full": 60}, host=tier)
    watcher: Any = Raising(where, error)
    cache.counters.observers.add(watcher)
    serve(cache, 40, np.random.default_rng(0))
    for first in range(0, 500, 100):
        serve_one(cache, "two", list(range(first, first + 60)))
        cache.drain()
    lease = cache.acquire(Key(list(range(61)), "two"))
    assert lease.is_loading
    cache.invalidate("two")
    cache.drain()
    assert lease.failure is not None
    cache.release(lease)
    if cache.counters.observers.all:
        cache.counters.observers.tell("emptied")
    assert watcher.told.count(where) == 1 and watcher.told[-2:] == [where, "failed"]
    assert not cache.counters.observers.all
    assert len(told_of(caplog)) == 1 and cache.stats().drops["observer failed"] == 1
    assert cache.lease_count == 0 and cache.tree.check() == []
    calm: Any = Raising("", error)
    cache.counters.observers.add(calm)
    serve_one(cache, "three", list(range(30)))
    assert cache.counters.observers.all
    cache.close()


def test_an_inspector_that_fails_keeps_its_page_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = busy_cache(10)
    with Inspector.open(cache, figures_every_s=0.0) as inspector:
        for _ in range(20):
            cache.poll()

        def breaks(*_: Any) -> None:
            raise RuntimeError("a mistake \ud800 of ours")

        monkeypatch.setattr(Inspector, "_tell_happened", breaks)
        for _ in range(20):
            cache.poll()
        assert inspector.failure == "a mistake \\ud800 of ours"
        state: dict[str, Any] = {}

        def is_told() -> bool:
            with urllib.request.urlopen(f"{inspector.url}api/state", timeout=PATIENCE_S) as answer:
                state.update(json.load(answer))
            return bool(state.get("stopped"))

        wait_until(is_told, "the page is told")
        assert state["stopped"] == inspector.failure and state["is_over"]
        body = json.dumps({"tokens": [1, 2]}).encode()
        request = urllib.request.Request(f"{inspector.url}api/walk", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert "no more" in json.load(answer)["error"]
        a_day(cache)


class BrokenSpans(SpanProcessor):
    """Raises at the start, or at the end, of the n-th span."""

    def __init__(self, at: str, after: int) -> None:
        self.at = at
        self.left = after

    def _count(self, at: str) -> None:
        self.left -= at == self.at
        if self.left < 0:
            raise ConnectionError("the collector is gone \ud800")

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002
        self._count("start")

    def on_end(self, span: ReadableSpan) -> None:  # noqa: ARG002
        self._count("end")


@pytest.mark.parametrize("after", [0, 1, 5, 12])
@pytest.mark.parametrize("at", ["start", "end"])
def test_spans_that_raise(at: str, after: int, caplog: pytest.LogCaptureFixture) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BrokenSpans(at, after))
    tier = HostTier(page_counts={"full": 40}, engine=NullEngine(), load_cost=LoadCost(flops_per_s=1.0))
    cache = PrefixCache([FULL], PAGE, {"full": 12}, host=tier)
    RequestSpans(cache, tracer=provider.get_tracer("tests"))
    for first in (0, 100, 0, 100, 0):
        serve_one(cache, "x", list(range(first, first + 40)))
        cache.drain()
    cache.close()
    assert len(told_of(caplog)) == 1 and cache.stats().drops["observer failed"] == 1
    assert cache.stats().requests == 5 and cache.lease_count == 0


def test_models_of_other_sizes_that_raise(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PrefixCache([FULL], PAGE, {"full": 60})
    sizes = LiveSizes.watch(cache, one_in=1)
    serve_one(cache, "", list(range(100)))

    def breaks(*_: Any) -> None:
        raise IndexError("a mistake of ours")

    monkeypatch.setattr(LiveSizes, "_see", breaks)
    for _ in range(3):
        serve_one(cache, "", list(range(100)))
    assert sizes.failure is not None and len(told_of(caplog)) == 1
    stats = cache.stats()
    assert stats.requests == 4 and stats.sizes is not None and stats.sizes.requests == 1


def test_an_engines_collector_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    class Collector:
        def __getattr__(self, name: str) -> Any:
            raise OSError(28, "No space left on device")

    counters = MeteredCounters(Collector(), 16)
    for _ in range(3):
        counters.transfers[EffectKind.BACKUP].add({"full": 1}, 10, 0.1)
    assert counters.transfers[EffectKind.BACKUP].count == 3
    assert len(told_of(caplog)) == 1 and counters.drops == {"observer failed": 1}


# An observer that raised in `acquire` left a lease that its caller never got; in an eviction, a poll or an invalidation it
# ended the call half-way.


class Raises:
    """Whatever it is told, it raises."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*_: object, **__: object) -> Any:
            self.told.append(name)
            raise OSError(f"no space left for {name}")

        return call


def live(cache: PrefixCache) -> tuple[object, ...]:
    """All that a cache tells anybody of, and what it is like after that."""
    for i in range(3):
        publish(cache, [i] * 16)
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
    watcher = CacheObserver()
    watcher.acquired = observer.acquired  # type: ignore[method-assign]
    cache.observers.add(watcher)
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
