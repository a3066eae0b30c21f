"""Spans that cannot hurt: what a tracer or an exporter raises ends the tracing, and never a call of the cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry.context import attach, detach
from opentelemetry.trace import INVALID_SPAN, Link, Span, Status, StatusCode, Tracer, set_span_in_context

from unified_tree.inputs.printable import printable, traceback_of

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context

PREFIX = "unified_tree."
"""Before the name of each span and attribute."""
LONGEST_MESSAGE = 500
LOG = logging.getLogger("unified_tree.cache")


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

    @contextmanager
    def during(self, name: str, whole: Span) -> Iterator[Span]:
        """A span under another one, as long as a block, in which it is the current one."""
        span = self.start(name, set_span_in_context(whole))
        token = self._attached(span)
        error: BaseException | None = None
        try:
            yield span
        except BaseException as raised:
            error = raised
            raise
        finally:
            if token is not None:
                detach(token)
            self.end(span, error=error)

    def _attached(self, span: Span) -> Token[Context] | None:
        try:
            return attach(set_span_in_context(span))
        except Exception as error:
            self._give_up(error)
            return None

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
