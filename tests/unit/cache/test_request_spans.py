"""The OpenTelemetry spans of requests, as the SDK's in-memory exporter gets them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from host_cells import HostPages
from kinds import FULL
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer

from unified_tree import Key
from unified_tree.controllers import HostTier, LoadCost, PrefixCache
from unified_tree.controllers.cache.request_spans import RequestSpans
from unified_tree.controllers.storage import MemoryStorage, StoredPool
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy, StorageTier
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.declare.settings import TreeSettings
from unified_tree.terms.errors import ConfigurationError, LeaseError, OutOfPagesError

EAGER = PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, min_tokens=1, max_host_share=1.0)


class Recorder:
    """A tracer, and the spans that have ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = provider.get_tracer("tests")

    def spans(self, name: str) -> list[ReadableSpan]:
        """Those of one name, in the order in which they ended."""
        return [span for span in self.exporter.get_finished_spans() if span.name == f"unified_tree.{name}"]

    def attributes(self, name: str) -> list[dict[str, Any]]:
        """Their attributes, without the prefix."""
        return [
            {key.removeprefix("unified_tree."): value for key, value in (s.attributes or {}).items()} for s in self.spans(name)
        ]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def cache_of(
    recorder: Recorder, *, host_pages: int = 40, store: bool = False, max_prefetches: int = 8192, **options: Any
) -> PrefixCache:
    """A device of four pages over a host tier and, maybe, a store."""
    tier = HostTier(page_counts={"full": host_pages}, engine=NullEngine(), load_cost=LoadCost(flops_per_s=1.0))
    storage = None
    if store:
        memory = {"full": HostPages(host_pages)}
        pools = {"full": StoredPool(name="full", format_digest=bytes(32), value_bytes=memory["full"].value_bytes)}
        engine = MemoryStorage(list(pools.values()))
        storage = StorageTier(engine=engine, pools=pools, memory=memory, weights_version="v1", prefetch=EAGER)
    cache = PrefixCache([FULL], 2, {"full": 4}, host=tier, storage=storage, **options)
    RequestSpans(cache, tracer=recorder.tracer, max_prefetches=max_prefetches)
    return cache


def serve(cache: PrefixCache, tokens: np.ndarray) -> None:
    with cache.acquire(Key(tokens)) as lease:
        cache.allocate(lease, len(tokens))
        cache.commit(lease, len(tokens))
    cache.drain()


def test_a_request_has_a_span_over_those_of_its_calls(recorder: Recorder) -> None:
    cache = cache_of(recorder)
    with recorder.tracer.start_as_current_span("the engine's own"), cache.acquire(Key(np.arange(8))) as lease:
        for end in (4, 8):
            cache.allocate(lease, end)
            cache.commit(lease, end)
    [own] = [span for span in recorder.exporter.get_finished_spans() if span.name == "the engine's own"]
    [whole] = recorder.spans("request")
    assert whole.parent == own.context
    calls = [*recorder.spans("acquire"), *recorder.spans("commit")]
    assert [call.parent for call in calls] == [whole.context] * 3
    assert recorder.attributes("commit") == [
        {"committed_tokens": 4, "new_tokens": 4},
        {"committed_tokens": 8, "new_tokens": 4},
    ]
    assert recorder.attributes("request") == [
        {
            "prompt_tokens": 8,
            "hit_tokens": 0,
            "host_tokens": 0,
            "storage_tokens": 0,
            "committed_tokens": 8,
            "miss.never_seen": 6,
            "miss.page_remainder": 1,
            "miss.last_token": 1,
        }
    ]
    cache.close()


def test_a_load_has_a_span_until_it_has_ended(recorder: Recorder) -> None:
    cache = cache_of(recorder)
    for prompt in range(2):
        serve(cache, np.arange(8) + 100 * prompt)
    lease = cache.acquire(Key(np.arange(9)))
    assert lease.is_loading and not recorder.spans("load")
    cache.drain()
    assert recorder.attributes("load") == [{"host_tokens": 8, "outcome": "loaded"}]
    cache.release(lease)
    assert recorder.attributes("request")[-1].items() >= {"hit_tokens": 8, "host_tokens": 8}.items()
    [load] = recorder.spans("load")
    assert load.parent == recorder.spans("request")[-1].context
    cache.close()


def test_a_load_that_fails_or_is_not_waited_for_says_so(recorder: Recorder) -> None:
    cache = cache_of(recorder)
    for prompt in range(2):
        serve(cache, np.arange(8) + 100 * prompt)
    cache.release(cache.acquire(Key(np.arange(9))))
    cache.drain()
    lease = cache.acquire(Key(np.arange(9)))
    cache.invalidate()
    cache.drain()
    cache.release(lease)
    assert [given["outcome"] for given in recorder.attributes("load")] == ["released", "failed"]
    assert [span.status.status_code for span in recorder.spans("load")] == [StatusCode.UNSET, StatusCode.ERROR]
    failed = recorder.spans("request")[-1]
    assert failed.status.status_code is StatusCode.ERROR
    assert recorder.attributes("request")[-1].items() >= {"hit_tokens": 0, "miss.load_failed": 8}.items()
    cache.close()


def test_a_prefetch_has_a_span_that_its_request_links_to(recorder: Recorder) -> None:
    cache = cache_of(recorder, host_pages=4, store=True)
    for prompt in range(2):
        serve(cache, np.arange(8) + 100 * prompt)
    assert cache.prefetch("r", Key(np.arange(9)))
    assert not cache.prefetched("r") and not recorder.spans("prefetch")
    cache.drain()
    assert cache.prefetched("r") and cache.prefetched("r")
    with cache.acquire(Key(np.arange(9)), request="r"):
        cache.drain()
    [prefetch] = recorder.spans("prefetch")
    assert recorder.attributes("prefetch") == [{"prompt_tokens": 9, "prefetched_tokens": 8, "outcome": "ready"}]
    assert [link.context for link in recorder.spans("request")[-1].links] == [prefetch.context]
    assert recorder.attributes("request")[-1].items() >= {"hit_tokens": 8, "storage_tokens": 8}.items()
    cache.close()


def test_each_prefetch_ends_somehow(recorder: Recorder) -> None:
    cache = cache_of(recorder, store=True, max_prefetches=2)
    prompts = [Key(np.arange(9) + 100 * at) for at in range(5)]
    for request, prompt in zip("aabcde", [prompts[0], *prompts], strict=True):
        assert cache.prefetch(request, prompt)
    cache.cancel("c")
    cache.acquire(prompts[3], request="d").__exit__(None, None, None)
    cache.cancel("unknown")
    cache.close()
    outcomes = [given["outcome"] for given in recorder.attributes("prefetch")]
    assert outcomes == ["replaced", "forgotten", "forgotten", "forgotten", "acquired", "closed"]


def test_what_is_refused_is_an_error_of_its_span(recorder: Recorder) -> None:
    cache = cache_of(recorder)
    with pytest.raises(OutOfPagesError):
        cache.acquire(Key(np.arange(20)), reserve_tokens=20)
    [refused] = recorder.spans("acquire")
    assert refused.status.status_code is StatusCode.ERROR and refused.events[0].name == "exception"
    assert recorder.spans("request")[0].status.status_code is StatusCode.ERROR
    lease = cache.acquire(Key(np.arange(4)))
    with pytest.raises(LeaseError):
        cache.commit(lease, 99)
    assert recorder.spans("commit")[0].status.status_code is StatusCode.ERROR
    cache.release(lease)
    assert len(recorder.spans("request")) == 2
    cache.close()


def test_a_lease_that_is_no_request_has_no_span(recorder: Recorder) -> None:
    cache = cache_of(recorder)
    with cache.acquire_to_fill(Key(np.arange(8)), 8) as lease:
        cache.commit(lease, 8)
    assert not recorder.exporter.get_finished_spans()
    cache.close()


def test_without_the_memory_of_misses_hits_are_told_all_the_same(recorder: Recorder) -> None:
    cache = cache_of(recorder, settings=TreeSettings(ghost_bytes=0))
    serve(cache, np.arange(8))
    serve(cache, np.arange(8))
    assert recorder.attributes("request")[1].items() >= {"hit_tokens": 6}.items()
    assert not any("miss" in key for key in recorder.attributes("request")[1])
    cache.close()


def test_without_a_tracer_it_takes_the_configured_one() -> None:
    cache = PrefixCache([FULL], 2)
    RequestSpans(cache)
    with cache.acquire(Key(np.arange(4))):
        pass
    with pytest.raises(ConfigurationError, match="tracer must be an OpenTelemetry Tracer"):
        RequestSpans(cache, tracer="no tracer")  # type: ignore[arg-type]
