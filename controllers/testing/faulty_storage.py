"""A wrapper of any store that injects faults. One seed decides which faults, and when.

Every call draws from a generator seeded with the seed and the call's number, so removing one call's faults does not change the
others'. The wrapped engine stays consistent; only calls and replies are altered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from random import Random

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome, StorageEngine, StorageStats
from unified_tree.terms.errors import ConfigurationError, StorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFaults:
    """Probabilities of faults, per call or per page.

    Attributes:
        slow: a call waits first.
        raising: a call raises StorageError, having done nothing.
        partial: a batch ends early; the rest of its pages FAILED.
        lost: a page was put, as it seems, but is not kept; or is there, but is not found.
        torn: the second half of a page is zeros, when put or when read.
        corrupt: one bit of a page is flipped, when read.
        stale: a page is listed, and never given: FAILED. Of each key once and for all.
        full: a page is not taken: DROPPED.

    Raises ConfigurationError for values outside 0 … 1.
    """

    slow: float = 0.0
    raising: float = 0.0
    partial: float = 0.0
    lost: float = 0.0
    torn: float = 0.0
    corrupt: float = 0.0
    stale: float = 0.0
    full: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) <= 1:
                raise ConfigurationError(f"{field.name} must be a probability, which {getattr(self, field.name)!r} is not")


class FaultyStorage:
    """A StorageEngine around another, with faults.

    Args:
        engine: what really keeps the pages; closed with this one.
        faults: how often what goes wrong.
        seed: same seed, same calls: same faults.
        wait: what a slow call does; None for nothing. It may sleep, or advance a virtual clock.
    """

    def __init__(
        self, engine: StorageEngine, faults: StorageFaults, *, seed: int, wait: Callable[[], None] | None = None
    ) -> None:
        self._engine = engine
        self._faults = faults
        self._seed = seed
        self._wait = wait
        self._lock = threading.Lock()
        self._calls = 0

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities: the other engine's."""
        return self._engine.capabilities

    def register(self, buffers: Sequence[memoryview]) -> None:
        """See StorageEngine.register."""
        self._engine.register(buffers)

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """See StorageEngine.exists; may be slow, raise, overlook keys, or list stale ones."""
        random = self._begin()
        found = self._engine.exists(pool, keys)
        lost = np.fromiter((random.random() < self._faults.lost for _ in keys), np.bool_, len(keys))
        found &= ~lost
        if self._faults.stale:
            found |= np.fromiter(map(self._is_stale, keys), np.bool_, len(keys))
        return found

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.get; all faults."""
        if len(keys) != len(pages):
            return self._engine.get(pool, keys, pages)  # which refuses them
        random = self._begin()
        end = self._end(random, len(keys))
        outcomes = self._engine.get(pool, keys[:end], pages[:end])
        for index, outcome in enumerate(outcomes):
            if self._faults.stale and self._is_stale(keys[index]):
                outcomes[index] = Outcome.FAILED
            elif random.random() < self._faults.lost:
                outcomes[index] = Outcome.MISSING
            elif outcome is Outcome.DONE:
                self._spoil(random, pages[index])
        return outcomes + [Outcome.FAILED] * (len(keys) - end)

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.put; all faults but a flipped bit. The caller's pages are left as they are."""
        if len(keys) != len(pages):
            return self._engine.put(pool, keys, pages)  # which refuses them
        random = self._begin()
        end = self._end(random, len(keys))
        kept = [index for index in range(end) if random.random() >= self._faults.lost]
        given = [self._torn(random, pages[index]) for index in kept]
        outcomes = [Outcome.DONE] * end + [Outcome.FAILED] * (len(keys) - end)
        for index, outcome in zip(kept, self._engine.put(pool, [keys[index] for index in kept], given), strict=True):
            outcomes[index] = outcome
        if self._faults.full:
            dropped = [key for key in keys if random.random() < self._faults.full]
            self._engine.remove(pool, dropped)
            outcomes = [Outcome.DROPPED if key in dropped else outcome for key, outcome in zip(keys, outcomes, strict=True)]
        return outcomes

    def remove(self, pool: str, keys: Sequence[bytes]) -> None:
        """See StorageEngine.remove; may be slow or raise."""
        self._begin()
        self._engine.remove(pool, keys)

    def clear(self) -> None:
        """See StorageEngine.clear; no faults."""
        self._engine.clear()

    def stats(self) -> StorageStats:
        """See StorageEngine.stats: what the other engine saw."""
        return self._engine.stats()

    def close(self) -> None:
        """See StorageEngine.close; closes the other engine."""
        self._engine.close()

    def _begin(self) -> Random:
        with self._lock:
            self._calls += 1
            number = self._calls
        random = Random(f"{self._seed} {number}")
        if random.random() < self._faults.slow and self._wait is not None:
            self._wait()
        if random.random() < self._faults.raising:
            raise StorageError(f"call {number} fails, as seed {self._seed} decided")
        return random

    def _is_stale(self, key: bytes) -> bool:
        return Random(f"{self._seed} {key.hex()}").random() < self._faults.stale

    def _end(self, random: Random, count: int) -> int:
        return random.randrange(count) if count and random.random() < self._faults.partial else count

    def _spoil(self, random: Random, page: memoryview) -> None:
        if random.random() < self._faults.torn:
            half = len(page) // 2
            page[half:] = bytes(len(page) - half)
        if random.random() < self._faults.corrupt:
            page[random.randrange(len(page))] ^= 1 << random.randrange(8)

    def _torn(self, random: Random, page: memoryview) -> memoryview:
        if random.random() >= self._faults.torn:
            return page
        half = len(page) // 2
        return memoryview(bytes(page[:half]) + bytes(len(page) - half))
