"""A PrefixCache that tells OpenTelemetry of each request. Needs the `otel` extra.

Tracing is a class of its own, so that a cache without it pays nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Span, Tracer, get_tracer, set_span_in_context

from unified_tree.controllers.cache.prefix_cache import PrefixCache, is_hashable
from unified_tree.controllers.cache.quiet_spans import QuietSpans
from unified_tree.controllers.counters.observers import OBSERVER_FAILED
from unified_tree.inputs.arguments import integer
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.declare.component import Component
    from unified_tree.declare.keys import Key


class TracedPrefixCache(PrefixCache):
    """A PrefixCache with OpenTelemetry spans; use it in place of a PrefixCache.

    - `unified_tree.request`, from `acquire` to `release`, in the context that is current in `acquire`. Its attributes are
      `prompt_tokens`, `hit_tokens`, `host_tokens`, `storage_tokens`, `committed_tokens`, and `miss.<cause>`, the tokens that
      are computed, by cause; all with the prefix `unified_tree.`.
    - `unified_tree.acquire` and `unified_tree.commit` under it, each as long as the call.
    - `unified_tree.load` under it, from `acquire` until the load has ended; `released` if the lease ended before.
    - `unified_tree.prefetch`, in the context that is current in `prefetch`, until `prefetched` says True, or `acquire` or
      `cancel` ends the wait. The span of the request links to it.

    Args:
        components: as of PrefixCache, like `page_size`, `page_counts` and `options`.
        tracer: None for the one that OpenTelemetry is configured with.
        max_prefetches: how many prefetches are followed; the span of the oldest is ended as `forgotten` beyond that.

    A tracer, or an exporter in the caller's thread, that raises ends the tracing, and no call of the cache. The log says so,
    and `CacheStats.drops` counts an `observer failed`.

    Cost: some 25 microseconds a span that is recorded, 5 one that is not.
    """

    def __init__(
        self,
        components: Sequence[Component],
        page_size: int,
        page_counts: Mapping[str, int] | None = None,
        *,
        tracer: Tracer | None = None,
        max_prefetches: int = 8192,
        **options: Any,
    ) -> None:
        if tracer is not None and not isinstance(tracer, Tracer):
            raise ConfigurationError(f"tracer must be an OpenTelemetry Tracer, not {tracer!r}")
        self._max_prefetches = integer(max_prefetches, "max_prefetches", ConfigurationError, minimum=1)
        super().__init__(components, page_size, page_counts, **options)
        self._spans = QuietSpans(
            get_tracer("unified_tree") if tracer is None else tracer, lambda: self.counters.count_drop(OBSERVER_FAILED)
        )
        self._prefetches: OrderedDict[Hashable, Span] = OrderedDict()
        self._requests: dict[Lease, Span] = {}
        self._loading: dict[Lease, Span] = {}

    def prefetch(self, request: Hashable, key: Key) -> bool:
        """See PrefixCache.prefetch."""
        self._end_prefetch(request, "replaced")
        started = super().prefetch(request, key)
        if started:
            if len(self._prefetches) >= self._max_prefetches:
                self._end_prefetch(next(iter(self._prefetches)), "forgotten")
            self._prefetches[request] = self._spans.start("prefetch", prompt_tokens=key.length)
        return started

    def prefetched(self, request: Hashable) -> bool:
        """See PrefixCache.prefetched."""
        is_ready = super().prefetched(request)
        if is_ready and request in self._prefetches:
            self._end_prefetch(request, "ready", keep=True)
        return is_ready

    def cancel(self, request: Hashable) -> None:
        """See PrefixCache.cancel."""
        self._end_prefetch(request, "cancelled")
        super().cancel(request)

    def _end_prefetch(self, request: Hashable, outcome: str, *, keep: bool = False) -> Span | None:
        """End the span of a prefetch, if it has not ended; `keep` it for the request's link."""
        if not is_hashable(request):  # which no prefetch has as its name, and the cache refuses
            return None
        span = self._prefetches.get(request) if keep else self._prefetches.pop(request, None)
        if span is not None and self._spans.is_recording(span):
            self._spans.tell(span, {"prefetched_tokens": self.prefetched_tokens(request), "outcome": outcome})
            self._spans.end(span)
        return span

    def acquire(self, key: Key, checkpoints: Sequence[int] = (), **options: Any) -> Lease:
        """See PrefixCache.acquire."""
        request = options.get("request")
        prefetch = None if request is None else self._end_prefetch(request, "acquired")
        whole = self._spans.start("request", after=prefetch, prompt_tokens=getattr(key, "length", 0))
        try:
            with self._spans.during("acquire", whole):
                lease = super().acquire(key, checkpoints, **options)
        except BaseException as error:
            self._spans.end(whole, failure=str(error))
            raise
        self._requests[lease] = whole
        if lease.is_loading:
            self._loading[lease] = self._spans.start("load", set_span_in_context(whole))
        return lease

    def poll(self) -> None:
        """See PrefixCache.poll."""
        try:
            super().poll()
        finally:
            self._follow_loads()

    def drain(self) -> None:
        """See PrefixCache.drain."""
        try:
            super().drain()
        finally:
            self._follow_loads()

    def _follow_loads(self) -> None:
        for lease in [lease for lease in self._loading if not lease.is_loading]:
            self._end_load(lease, "failed" if lease.failure is not None else "loaded")

    def _end_load(self, lease: Lease, outcome: str) -> None:
        span = self._loading.pop(lease)
        self._spans.tell(span, {"host_tokens": lease.host_tokens, "outcome": outcome})
        self._spans.end(span, failure=lease.failure)

    def commit(
        self,
        lease: Lease,
        tokens: NDArray[np.integer[Any]] | Sequence[int] | int,
        states: Mapping[int, int] | None = None,
        **options: Any,
    ) -> None:
        """See PrefixCache.commit."""
        whole = self._requests.get(lease)
        if whole is None:  # of a lease that is no request
            super().commit(lease, tokens, states, **options)
            return
        before = lease.committed
        try:
            with self._spans.during("commit", whole) as span:
                super().commit(lease, tokens, states, **options)
                self._spans.tell(span, {"committed_tokens": lease.committed, "new_tokens": lease.committed - before})
        finally:
            self._follow_loads()

    def release(self, lease: Lease) -> None:
        """See PrefixCache.release."""
        self._follow_loads()
        whole = self._requests.get(lease)
        if whole is not None and self._spans.is_recording(whole):
            self._describe(lease, whole)
        super().release(lease)
        if whole is not None:
            del self._requests[lease]
            if lease in self._loading:
                self._end_load(lease, "released")
            self._spans.end(whole, failure=lease.failure)

    def _describe(self, lease: Lease, span: Span) -> None:
        """What became of a request."""
        causes: dict[str, int] = {}
        for miss in lease.misses:
            causes[miss.cause.label] = causes.get(miss.cause.label, 0) + miss.tokens
        hits = lease.prompt_tokens - sum(causes.values()) if causes else lease.compute_from
        counted = {"hit_tokens": hits, "host_tokens": lease.host_tokens, "storage_tokens": lease.storage_tokens}
        misses = {f"miss.{label}": tokens for label, tokens in causes.items()}
        self._spans.tell(span, {**counted, "committed_tokens": lease.committed, **misses})

    def close(self) -> None:
        """See PrefixCache.close. The spans of open leases end when these are released."""
        try:
            super().close()
        finally:
            self._follow_loads()
            for request in list(self._prefetches):
                self._end_prefetch(request, "closed")
