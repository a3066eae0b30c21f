"""The pages that a store listed and then did not give, remembered for a while.

A store may list a page for minutes that it can no longer give, because the node that held it is gone or its disk is bad.
Without this memory every request of the prefix would ask for the page again and wait for the same failure.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class FailedReads:
    """A bounded set of pages that are not to be asked for. Thread-safe.

    Args:
        capacity: pages; the ones that failed longest ago leave first.
        keep_s: how long a page stays in it; 0 keeps none.
        clock: seconds.
    """

    def __init__(self, capacity: int, keep_s: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._keep_s = keep_s
        self._clock = clock
        self._lock = threading.Lock()
        self._until_s: OrderedDict[tuple[str, bytes], float] = OrderedDict()
        self._skipped = 0

    def __len__(self) -> int:
        with self._lock:
            self._expire()
            return len(self._until_s)

    @property
    def skipped(self) -> int:
        """How often a look-up found a page in it so far."""
        return self._skipped

    def add(self, pool: str, keys: Sequence[bytes]) -> None:
        """Remember pages that were not given; of too many the first ones, where a prefix ends. Cost: O(keys)."""
        if not self._keep_s:
            return
        with self._lock:
            until_s = self._clock() + self._keep_s
            for key in reversed(keys):
                self._until_s[pool, key] = until_s
                self._until_s.move_to_end((pool, key))
            while len(self._until_s) > self._capacity:
                self._until_s.popitem(last=False)

    def among(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_] | None:
        """Which of these pages failed lately, shape [keys]; None if none did. Cost: O(1) while nothing is remembered."""
        if not self._until_s:
            return None
        with self._lock:
            self._expire()
            failed = np.fromiter(((pool, key) in self._until_s for key in keys), np.bool_, len(keys))
            count = int(np.count_nonzero(failed))
            self._skipped += count
        return failed if count else None

    def discard(self, pool: str, keys: Iterable[bytes]) -> None:
        """Forget pages that were written anew. Cost: O(1) while nothing is remembered."""
        if self._until_s:
            with self._lock:
                for key in keys:
                    self._until_s.pop((pool, key), None)

    def clear(self) -> None:
        """Forget all: the store that failed to give them is another one now, or works again."""
        with self._lock:
            self._until_s.clear()

    def _expire(self) -> None:
        now = self._clock()
        while self._until_s and next(iter(self._until_s.values())) <= now:
            self._until_s.popitem(last=False)
