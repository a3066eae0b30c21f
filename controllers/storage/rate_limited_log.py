"""The log of the storage engines, rate-limited: a repeated fault, such as a full disk, logs one line a minute and not one a
page.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable

from unified_tree.inputs.printable import printable

LOGGER = logging.getLogger("unified_tree.storage")
LONGEST = 1000
"""Characters of an argument in a line."""


class RateLimitedLog:
    """Writes at most one message of a kind per pause, and adds to the next how many were suppressed.

    Args:
        pause_s: between two messages of one kind.
        clock: seconds; a test's own.
    """

    def __init__(self, pause_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause_s = pause_s
        self._clock = clock
        self._lock = threading.Lock()
        self._next_s: dict[Hashable, float] = {}
        self._left_out: dict[Hashable, int] = {}

    def warning(self, kind: Hashable, message: str, *arguments: object) -> None:
        """Log a warning. Use few kinds, because they are remembered."""
        self._write(logging.WARNING, kind, message, arguments)

    def info(self, kind: Hashable, message: str, *arguments: object) -> None:
        """Log information that is not a fault."""
        self._write(logging.INFO, kind, message, arguments)

    def _write(self, level: int, kind: Hashable, message: str, arguments: tuple[object, ...]) -> None:
        if not LOGGER.isEnabledFor(level):
            return
        with self._lock:
            now = self._clock()
            if now < self._next_s.get(kind, now):
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return
            self._next_s[kind] = now + self._pause_s
            left_out = self._left_out.pop(kind, 0)
        if left_out:
            message, arguments = f"{message} (and %d times more since the last such line)", (*arguments, left_out)
        shown = (printable(str(each), LONGEST) if isinstance(each, str | Exception) else each for each in arguments)
        LOGGER.log(level, message, *shown)
