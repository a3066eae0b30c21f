"""The transfers behind a simulated server's cache, in steps of its clock, and the requests that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.replay.paced_engine import PacedEngine
    from unified_tree.controllers.replay.served_request import ServedRequest
    from unified_tree.controllers.replay.timed_cache import TimedCache


class HostTraffic:
    """Time passes for transfers when the server says so.

    Args:
        cache: polled.
        engine: what moves pages behind it; None without a host tier, and then nothing happens here.
        step_ms: of the server.

    Attributes:
        loading: requests that wait for what their lease loads back, by admission.
    """

    def __init__(self, cache: TimedCache, engine: PacedEngine | None, step_ms: float) -> None:
        self.loading: list[ServedRequest] = []
        self._cache = cache
        self._engine = engine
        self._step_ns = round(step_ms * 1e6)

    @property
    def is_on(self) -> bool:
        """Whether there is a host tier."""
        return self._engine is not None

    def poll(self, step: int) -> bool:
        """Bring transfers up to a step and begin those that are due. Whether any has ended."""
        if self._engine is None:
            return False
        clock, ended_count = self._engine.clock, self._engine.ended_count
        clock.advance(max(0, step * self._step_ns - clock.now))
        self._cache.poll()
        return self._engine.ended_count != ended_count

    def take_arrived(self) -> list[ServedRequest]:
        """The requests whose load has ended, well or not; they do not wait any more."""
        arrived = [entry for entry in self.loading if entry.lease is not None and not entry.lease.is_loading]
        self.loading = [entry for entry in self.loading if entry not in arrived] if arrived else self.loading
        return arrived

    @property
    def next_step(self) -> int | None:
        """The step at which the next transfer ends; None if none is under way."""
        next_ns = self._engine.next_event_ns if self._engine is not None else None
        return None if next_ns is None else -(-next_ns // self._step_ns)

    @property
    def missing_tokens(self) -> int:
        """Tokens that are still to be computed by those who wait."""
        return sum(entry.target - entry.lease.cached_tokens for entry in self.loading if entry.lease is not None)
