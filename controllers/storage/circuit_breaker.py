"""A circuit breaker: an unreachable store is retried once per pause, not by every call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from unified_tree.controllers.storage.rate_limited_log import RateLimitedLog
from unified_tree.controllers.storage.setting_checks import SECONDS, check_number


class CircuitBreaker:
    """Lets calls through to a store until one fails; then one call per pause, until one succeeds.

    Every admitted call must report its outcome. One that does not, because it raised another error, costs a pause.

    Args:
        pause_s: between two tries of an unreachable store.
        is_reachable: whether the client believes to be connected, without a call of the store; must be quick.
        clock: seconds; replaceable for tests.
        store: its name in the log.

    Raises ConfigurationError for an invalid pause.
    """

    def __init__(
        self,
        pause_s: float,
        is_reachable: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        *,
        store: str = "the store",
    ) -> None:
        check_number("pause_s", pause_s, float, SECONDS)
        self._pause_s = pause_s
        self._is_reachable = is_reachable
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at: float | None = None
        self._failures = 0
        self._store = store
        self._log = RateLimitedLog()

    @property
    def is_open(self) -> bool:
        """Whether the store is believed to be unreachable."""
        return self._retry_at is not None

    @property
    def failures(self) -> int:
        """How often the store failed so far; a waiter compares it to detect a failure meanwhile."""
        return self._failures

    def admits(self) -> bool:
        """Whether a call may go to the store now. Cost: microseconds."""
        with self._lock:
            now = self._clock()
            if self._retry_at is not None and now < self._retry_at:
                return False
            if self._retry_at is None and self._is_reachable():
                return True
            self._open(now)
            return self._is_reachable()

    def succeeded(self) -> None:
        """The store answered."""
        with self._lock:
            if self._retry_at is not None:
                self._log.info("answers", "%s answers again", self._store)
            self._retry_at = None

    def failed(self) -> None:
        """The store did not answer, or refused the connection."""
        with self._lock:
            self._failures += 1
            self._open(self._clock())

    def _open(self, now: float) -> None:
        if self._retry_at is None:
            message = "%s does not answer: all its pages are misses until it does; it is asked again every %g s"
            self._log.warning("away", message, self._store, self._pause_s)
        self._retry_at = now + self._pause_s
