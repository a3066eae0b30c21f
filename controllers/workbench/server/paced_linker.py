"""A prefix linker whose calls take as long as those of one of some rate and latency would, on the replay's virtual clock.

The peer is real, and each call is made and waited for at the moment it is due, on the caller's thread. So calls come in the
order of the virtual clock, a lookup finds what had been stored by then, and a history is the same in every run in which the
peer gives the same answers. It may not, since it evicts, and makes known what was stored, by its own clock. Lookups take a
latency; the bytes of retrieves pass one after the other, and those of stores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.prefix_linker import PrefixLinker, Progress, Span
from unified_tree.controllers.workbench.traces.workload import OWN_TOKENS
from unified_tree.terms.errors import LinkError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.transfer_engines import VirtualClock
    from unified_tree.controllers.workbench.server.server_settings import StorageCost

NS_PER_S = 1e9
LONGEST_CALL_S = 60.0
PAUSE_S = 0.0002
OWN_NARROW = 1 << 31
SETTLE_S = 0.02
"""What was stored is found a few real milliseconds after the store has ended; a lookup waits for that."""


class PacedLinker:
    """A PrefixLinker before another one.

    Args:
        inner: does all the work, and is closed with this one.
        clock: of the replay.
        cost: rate and latency.
        page_bytes: true size of a page, by pool.

    Attributes:
        retrieved_bytes, stored_bytes: what transfers that succeeded would have moved, had the pages their true sizes.
        spent_ns: real nanoseconds in calls to the inner one, which a server would spend on other threads.

    `found` and `progress` raise LinkError for a call that does not end within a real minute.
    """

    def __init__(
        self, inner: PrefixLinker, clock: VirtualClock, cost: StorageCost, page_bytes: Mapping[str, int], page_tokens: int
    ) -> None:
        self.retrieved_bytes = 0
        self.stored_bytes = 0
        self.spent_ns = 0
        self._inner = inner
        self._clock = clock
        self._cost = cost
        self._page_bytes = page_bytes
        self._page_tokens = page_tokens
        self._lookups: dict[str, _Due] = {}
        self._transfers: dict[str, _Due] = {}
        self._free_ns = {"retrieve": 0, "store": 0}  # when the bytes of all transfers so far have passed
        self._settled_s = 0.0

    @property
    def chunk_tokens(self) -> int:
        """See PrefixLinker.chunk_tokens."""
        return self._inner.chunk_tokens

    @property
    def is_healthy(self) -> bool:
        """See PrefixLinker.is_healthy."""
        return self._inner.is_healthy

    @property
    def next_event_ns(self) -> int | None:
        """When the next call is due on the clock; None if none is under way."""
        return min((due.at_ns for due in (*self._lookups.values(), *self._transfers.values())), default=None)

    @property
    def transfers(self) -> int:
        """How many are under way, whose pages nobody can have."""
        return len(self._transfers)

    def lookup(self, request: str, tokens: NDArray[np.int64], salt: str) -> None:
        """See PrefixLinker.lookup."""
        due_ns = self._clock.now + round(self._cost.latency_s * NS_PER_S)
        self._lookups[request] = _Due(due_ns, lambda: self._inner.lookup(request, narrowed(tokens), salt))

    def found(self, request: str) -> int | None:
        """See PrefixLinker.found."""
        due = self._lookups.get(request)
        if due is None:
            return self._inner.found(request)
        if self._clock.now < due.at_ns:
            return None
        del self._lookups[request]
        time.sleep(max(0.0, self._settled_s - time.monotonic()))
        self._make(due.call, lambda: self._inner.found(request) is None)
        return self._inner.found(request)

    def retrieve(self, request: str, span: Span) -> None:
        """See PrefixLinker.retrieve."""
        pages_before = (span.begin - span.first_token(self.chunk_tokens)) // self._page_tokens
        size_bytes = self._size_bytes(span, pages_before)
        self._begin("retrieve", request, lambda: self._inner.retrieve(request, _narrow(span)), size_bytes)

    def store(self, name: str, span: Span) -> None:
        """See PrefixLinker.store."""
        self._begin("store", name, lambda: self._inner.store(name, _narrow(span)), self._size_bytes(span, 0))

    def progress(self, name: str) -> Progress:
        """See PrefixLinker.progress."""
        due = self._transfers.get(name)
        if due is None:
            return self._inner.progress(name)
        if self._clock.now < due.at_ns:
            return Progress.RUNNING
        del self._transfers[name]
        self._make(due.call, lambda: self._inner.progress(name) is Progress.RUNNING)
        progress = self._inner.progress(name)
        if progress is Progress.DONE and due.kind == "store":
            self.stored_bytes += due.size_bytes
            self._settled_s = time.monotonic() + SETTLE_S
        elif progress is Progress.DONE:
            self.retrieved_bytes += due.size_bytes
        return progress

    def release(self, name: str) -> None:
        """See PrefixLinker.release."""
        if name in self._transfers:
            raise LinkError(f"the transfer of {name!r} runs, so it cannot be released")
        self._lookups.pop(name, None)
        self._inner.release(name)

    def close(self) -> None:
        """See PrefixLinker.close; what is not due yet is never done."""
        self._lookups.clear()
        self._transfers.clear()
        self._inner.close()

    def _begin(self, kind: str, name: str, call: Callable[[], None], size_bytes: int) -> None:
        self._free_ns[kind] = max(self._free_ns[kind], self._clock.now) + round(size_bytes / self._cost.bytes_per_s * NS_PER_S)
        self._transfers[name] = _Due(self._free_ns[kind] + round(self._cost.latency_s * NS_PER_S), call, kind, size_bytes)

    def _make(self, call: Callable[[], None], runs: Callable[[], bool]) -> None:
        """Make a call that is due, and wait for its end."""
        start_ns = time.perf_counter_ns()
        call()
        while runs():
            if time.perf_counter_ns() - start_ns > LONGEST_CALL_S * NS_PER_S:
                raise LinkError(f"a call did not end within {LONGEST_CALL_S:g} s; is the peer frozen?")
            time.sleep(PAUSE_S)
        self.spent_ns += time.perf_counter_ns() - start_ns

    def _size_bytes(self, span: Span, pages_before: int) -> int:
        return sum((ids.size - pages_before) * self._page_bytes[name] for name, ids in span.pages.items())


def narrowed(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tokens of a replay as numbers of 32 bits, as a model's are: those that are one request's own come behind the others.

    >>> narrowed(np.array([5, OWN_TOKENS + 2])).tolist()
    [5, 2147483650]
    """
    return np.where(tokens >= OWN_TOKENS, tokens - OWN_TOKENS + OWN_NARROW, tokens)


def _narrow(span: Span) -> Span:
    return replace(span, tokens=narrowed(span.tokens))


@dataclass(slots=True)
class _Due:
    """A call and when it is due. Of a lookup there is no kind."""

    at_ns: int
    call: Callable[[], None]
    kind: str = ""
    size_bytes: int = 0
