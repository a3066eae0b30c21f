"""The OpenTelemetry spans of a cache's requests. Needs the `otel` extra.

A tracer or an exporter that raises ends the tracing, and never a call of the cache.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.context import attach, detach
from opentelemetry.trace import INVALID_SPAN, Link, Span, Status, StatusCode, Tracer, get_tracer, set_span_in_context

from unified_tree.controllers.cache.lease import Lease
from unified_tree.controllers.cache.prefix_cache import PrefixCache
from unified_tree.controllers.counters.observers import OBSERVER_FAILED, CacheObserver, ObservedRequest
from unified_tree.inputs.arguments import integer, is_hashable
from unified_tree.inputs.printable import printable, repr_of, traceback_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context

    from unified_tree.declare.keys import Key

PREFIX = "unified_tree."
"""Before the name of each span and attribute."""
LONGEST_MESSAGE = 500
LOG = logging.getLogger("unified_tree.cache")


class RequestSpans(CacheObserver):
    """Reports the requests of a PrefixCache as OpenTelemetry spans, from its making on.

    - `unified_tree.request`, from `acquire` to `release`, in the context that is current in `acquire`. Its attributes are
      `prompt_tokens`, `hit_tokens`, `host_tokens`, `storage_tokens`, `committed_tokens`, and `miss.<cause>`, the tokens that
      are computed, by cause; all with the prefix `unified_tree.`.
    - `unified_tree.acquire` and `unified_tree.commit` under it, each as long as the call.
    - `unified_tree.load` under it, from `acquire` until the load has ended; `released` if the lease ended before.
    - `unified_tree.prefetch`, in the context that is current in `prefetch`, until `prefetched` says True, or `acquire` or
      `cancel` ends the wait. The span of the request links to it.

    Args:
        cache: whose requests.
        tracer: None for the one that OpenTelemetry is configured with.
        max_prefetches: how many prefetches are followed; the span of the oldest is ended as `forgotten` beyond that.

    A tracer, or an exporter in the caller's thread, that raises ends the tracing, and no call of the cache. The log says so,
    and `CacheStats.drops` counts an `observer failed`. Cost: some 25 microseconds a span that is recorded, 5 one that is not.
    """

    def __init__(self, cache: PrefixCache, *, tracer: Tracer | None = None, max_prefetches: int = 8192) -> None:
        if tracer is not None and not isinstance(tracer, Tracer):
            raise ConfigurationError(f"tracer must be an OpenTelemetry Tracer, not {repr_of(tracer)}")
        self._max_prefetches = integer(max_prefetches, "max_prefetches", ConfigurationError, minimum=1)
        self._cache = cache
        self._spans = QuietSpans(
            get_tracer("unified_tree") if tracer is None else tracer, lambda: cache.counters.count_drop(OBSERVER_FAILED)
        )
        self._prefetches: OrderedDict[Hashable, Span] = OrderedDict()
        self._requests: dict[Lease, Span] = {}
        self._loading: dict[Lease, Span] = {}
        self._admitting: tuple[Span, Entered] | None = None
        self._committing: tuple[Entered, int] | None = None
        cache.observers.add(self)

    def prefetching(self, request: Hashable, key: Key) -> None:  # noqa: ARG002
        """See CacheObserver."""
        self._end_prefetch(request, "replaced")

    def prefetch_started(self, request: Hashable, key: Key) -> None:
        """See CacheObserver."""
        if len(self._prefetches) >= self._max_prefetches:
            self._end_prefetch(next(iter(self._prefetches)), "forgotten")
        self._prefetches[request] = self._spans.start("prefetch", prompt_tokens=key.length)

    def prefetch_ready(self, request: Hashable) -> None:
        """See CacheObserver."""
        self._end_prefetch(request, "ready", keep=True)

    def prefetch_cancelled(self, request: Hashable) -> None:
        """See CacheObserver."""
        self._end_prefetch(request, "cancelled")

    def _end_prefetch(self, request: Hashable, outcome: str, *, keep: bool = False) -> Span | None:
        """End the span of a prefetch, if it has not ended; `keep` it for the request's link."""
        if not is_hashable(request):  # which no prefetch has as its name, and the cache refuses
            return None
        span = self._prefetches.get(request) if keep else self._prefetches.pop(request, None)
        if span is not None and self._spans.is_recording(span):
            self._spans.tell(span, {"prefetched_tokens": self._cache.prefetched_tokens(request), "outcome": outcome})
            self._spans.end(span)
        return span

    def acquiring(self, key: Key, request: Hashable | None) -> None:
        """See CacheObserver."""
        prefetch = None if request is None else self._end_prefetch(request, "acquired")
        whole = self._spans.start("request", after=prefetch, prompt_tokens=key.length)
        self._admitting = whole, self._spans.enter("acquire", whole)

    def acquired(self, request: ObservedRequest, key: Key) -> None:  # noqa: ARG002
        """See CacheObserver."""
        if self._admitting is None:
            return
        assert isinstance(request, Lease)
        (whole, acquire), self._admitting = self._admitting, None
        self._spans.leave(acquire)
        self._requests[request] = whole
        if request.is_loading:
            self._loading[request] = self._spans.start("load", set_span_in_context(whole))

    def refused(self, error: BaseException) -> None:
        """See CacheObserver."""
        if self._admitting is not None:
            (whole, acquire), self._admitting = self._admitting, None
            self._spans.leave(acquire, error)
            self._spans.end(whole, failure=str(error))

    def load_ended(self, lease: Lease) -> None:
        """See CacheObserver."""
        self._end_load(lease, "failed" if lease.failure is not None else "loaded")

    def _end_load(self, lease: Lease, outcome: str) -> None:
        span = self._loading.pop(lease, None)
        if span is not None:
            self._spans.tell(span, {"host_tokens": lease.host_tokens, "outcome": outcome})
            self._spans.end(span, failure=lease.failure)

    def committing(self, lease: Lease) -> None:
        """See CacheObserver."""
        whole = self._requests.get(lease)
        self._committing = None if whole is None else (self._spans.enter("commit", whole), lease.committed)

    def committed(
        self,
        lease: Lease,
        states: Mapping[int, int] | None,  # noqa: ARG002
        without: Sequence[str],  # noqa: ARG002
        error: BaseException | None,
    ) -> None:
        """See CacheObserver."""
        if self._committing is not None:
            (entered, before), self._committing = self._committing, None
            if error is None:
                told = {"committed_tokens": lease.committed, "new_tokens": lease.committed - before}
                self._spans.tell(entered.span, told)
            self._spans.leave(entered, error)

    def releasing(self, lease: Lease) -> None:
        """See CacheObserver."""
        whole = self._requests.get(lease)
        if whole is not None and self._spans.is_recording(whole):
            self._describe(lease, whole)

    def released(self, lease: Lease) -> None:
        """See CacheObserver."""
        self._end_load(lease, "released")
        whole = self._requests.pop(lease, None)
        if whole is not None:
            self._spans.end(whole, failure=lease.failure)

    def _describe(self, lease: Lease, span: Span) -> None:
        """Set the hits and misses of a request as attributes of its span."""
        causes: dict[str, int] = {}
        for miss in lease.misses:
            causes[miss.cause.label] = causes.get(miss.cause.label, 0) + miss.tokens
        hits = lease.prompt_tokens - sum(causes.values()) if causes else lease.compute_from
        counted = {"hit_tokens": hits, "host_tokens": lease.host_tokens, "storage_tokens": lease.storage_tokens}
        misses = {f"miss.{label}": tokens for label, tokens in causes.items()}
        self._spans.tell(span, {**counted, "committed_tokens": lease.committed, **misses})

    def closed(self) -> None:
        """See CacheObserver. The spans of open leases end when these are released."""
        for request in list(self._prefetches):
            self._end_prefetch(request, "closed")


class Entered(NamedTuple):
    """A span that is the current one; without a token it could not be made that."""

    span: Span
    token: Token[Context] | None


class QuietSpans:
    """Starts and ends the spans of one cache.

    Args:
        tracer: makes them.
        failed: called when it has raised; no span is told from then on.
    """

    def __init__(self, tracer: Tracer, failed: Callable[[], None]) -> None:
        self._tracer: Tracer | None = tracer
        self._failed = failed

    def start(self, name: str, context: Context | None = None, after: Span | None = None, **attributes: int) -> Span:
        """A span with some attributes, linked to the one `after` which it comes."""
        if self._tracer is None:
            return INVALID_SPAN
        try:
            links = [] if after is None else [Link(after.get_span_context())]
            named = {f"{PREFIX}{key}": value for key, value in attributes.items()}
            return self._tracer.start_span(f"{PREFIX}{name}", context=context, links=links, attributes=named)
        except Exception as error:
            self._give_up(error)
            return INVALID_SPAN

    def enter(self, name: str, whole: Span) -> Entered:
        """Start a span under another one, and make it the current one until `leave`."""
        span = self.start(name, set_span_in_context(whole))
        try:
            return Entered(span, attach(set_span_in_context(span)))
        except Exception as error:
            self._give_up(error)
            return Entered(span, None)

    def leave(self, entered: Entered, error: BaseException | None = None) -> None:
        """End it."""
        if entered.token is not None:
            detach(entered.token)
        self.end(entered.span, error=error)

    def is_recording(self, span: Span) -> bool:
        """Whether somebody wants to know more of a span, which has not ended."""
        try:
            return self._tracer is not None and span.is_recording()
        except Exception as error:
            self._give_up(error)
            return False

    def tell(self, span: Span, attributes: Mapping[str, Any]) -> None:
        """Set attributes of a span; texts are made printable."""
        if not self.is_recording(span):
            return
        try:
            for name, value in attributes.items():
                span.set_attribute(PREFIX + name, printable(value) if isinstance(value, str) else value)
        except Exception as error:
            self._give_up(error)

    def end(self, span: Span, *, error: BaseException | None = None, failure: str | None = None) -> None:
        """End a span, with what was raised meanwhile, or why it failed otherwise."""
        try:
            if error is not None:
                failure = str(error)
                said = {"exception.type": type(error).__name__, "exception.message": printable(failure, LONGEST_MESSAGE)}
                span.add_event("exception", said)
            if failure is not None:
                span.set_status(Status(StatusCode.ERROR, printable(failure, LONGEST_MESSAGE)))
            span.end()
        except Exception as raised:
            self._give_up(raised)

    def _give_up(self, error: Exception) -> None:
        if self._tracer is not None:
            self._tracer = None
            LOG.error("tracing raised, and no more spans are told: %s", traceback_of(error))
            self._failed()
