"""PrefixCache with a stopwatch: how long the library itself takes, apart from the simulation around it."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from unified_tree.keys import Key

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.replay.workload import Int64s


UNLIMITED = 1 << 40


class TimedCache:
    """The calls of a scheduler, timed, errors included; building the key counts as well.

    Attributes:
        cache: what is timed.
        spent_ns: nanoseconds in the library since the caller last set this to zero, `poll` apart.
        polled_ns: nanoseconds in `poll`, which is no one request's.
    """

    __slots__ = ("cache", "polled_ns", "spent_ns")

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.polled_ns = 0
        self.spent_ns = 0

    def prefetch(self, request: int, tokens: Int64s) -> bool:
        """`PrefixCache.prefetch` for a key of these tokens."""
        start_ns = perf_counter_ns()
        try:
            return self.cache.prefetch(request, Key(tokens))
        finally:
            self.spent_ns += perf_counter_ns() - start_ns

    def prefetched(self, request: int) -> bool:
        """`PrefixCache.prefetched`, and the time as that of `poll`."""
        start_ns = perf_counter_ns()
        try:
            return self.cache.prefetched(request)
        finally:
            self.polled_ns += perf_counter_ns() - start_ns

    def acquire(
        self, tokens: Int64s, checkpoints: tuple[int, ...], priority: int, request: int | None = None, *, go_on: bool = False
    ) -> Lease:
        """`PrefixCache.acquire` for a key of these tokens.

        Args:
            request: whose prefetch it was; None where there is no store.
            go_on: whether a later prompt goes on from its answer.
        """
        start_ns = perf_counter_ns()
        try:
            return self.cache.acquire(Key(tokens), checkpoints, priority=priority, save_output=go_on, request=request)
        finally:
            self.spent_ns += perf_counter_ns() - start_ns

    def poll(self) -> None:
        """`PrefixCache.poll`."""
        start_ns = perf_counter_ns()
        try:
            self.cache.poll()
        finally:
            self.polled_ns += perf_counter_ns() - start_ns

    def available_tokens(self) -> int:
        """Tokens that every path pool could take now, evicting all that nobody holds. Not timed: a scheduler's own sum."""
        pools = self.cache.stats().pools
        pages = (
            UNLIMITED if (pool := pools[name]).total is None else pool.total - pool.leased - pool.protected
            for name in self.cache.layout.paths
        )
        return min(pages) * self.cache.page_size

    def allocate(self, lease: Lease, length_tokens: int) -> None:
        """`PrefixCache.allocate`."""
        start_ns = perf_counter_ns()
        try:
            self.cache.allocate(lease, length_tokens)
        finally:
            self.spent_ns += perf_counter_ns() - start_ns

    def advance(self, lease: Lease, computed_tokens: int) -> None:
        """`PrefixCache.advance`."""
        start_ns = perf_counter_ns()
        try:
            self.cache.advance(lease, computed_tokens)
        finally:
            self.spent_ns += perf_counter_ns() - start_ns

    def commit(self, lease: Lease, tokens: Int64s | int, states: dict[int, int]) -> None:
        """`PrefixCache.commit`."""
        start_ns = perf_counter_ns()
        try:
            self.cache.commit(lease, tokens, states=states)
        finally:
            self.spent_ns += perf_counter_ns() - start_ns

    def release(self, lease: Lease) -> None:
        """`PrefixCache.release`."""
        start_ns = perf_counter_ns()
        try:
            self.cache.release(lease)
        finally:
            self.spent_ns += perf_counter_ns() - start_ns
