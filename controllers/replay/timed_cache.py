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


class Stopwatch:
    """Nanoseconds inside its `with` blocks, errors included; the caller may set `ns` back to zero."""

    __slots__ = ("_start_ns", "ns")

    def __init__(self) -> None:
        self.ns = 0

    def __enter__(self) -> None:
        self._start_ns = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.ns += perf_counter_ns() - self._start_ns


class TimedCache:
    """The calls of a scheduler, timed; building the key counts as well.

    Attributes:
        cache: what is timed.
        spent: in the library, `poll` apart.
        polled: in `poll`, which is no one request's.
    """

    __slots__ = ("cache", "polled", "spent")

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.polled = Stopwatch()
        self.spent = Stopwatch()

    def prefetch(self, request: int, tokens: Int64s) -> bool:
        """`PrefixCache.prefetch` for a key of these tokens."""
        with self.spent:
            return self.cache.prefetch(request, Key(tokens))

    def prefetched(self, request: int) -> bool:
        """`PrefixCache.prefetched`, and the time as that of `poll`."""
        with self.polled:
            return self.cache.prefetched(request)

    def acquire(
        self, tokens: Int64s, checkpoints: tuple[int, ...], priority: int, request: int | None = None, *, go_on: bool = False
    ) -> Lease:
        """`PrefixCache.acquire` for a key of these tokens.

        Args:
            request: whose prefetch it was; None where there is no store.
            go_on: whether a later prompt goes on from its answer.
        """
        with self.spent:
            return self.cache.acquire(Key(tokens), checkpoints, priority=priority, save_output=go_on, request=request)

    def poll(self) -> None:
        """`PrefixCache.poll`."""
        with self.polled:
            self.cache.poll()

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
        with self.spent:
            self.cache.allocate(lease, length_tokens)

    def advance(self, lease: Lease, computed_tokens: int) -> None:
        """`PrefixCache.advance`."""
        with self.spent:
            self.cache.advance(lease, computed_tokens)

    def commit(self, lease: Lease, tokens: Int64s | int, states: dict[int, int]) -> None:
        """`PrefixCache.commit`."""
        with self.spent:
            self.cache.commit(lease, tokens, states=states)

    def release(self, lease: Lease) -> None:
        """`PrefixCache.release`."""
        with self.spent:
            self.cache.release(lease)
