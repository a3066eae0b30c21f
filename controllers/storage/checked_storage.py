"""The only path from a store into the cache: every page is sealed before it is put and verified before it is used."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.latency import LatencyStats
from unified_tree.controllers.latency_counter import LatencyCounter
from unified_tree.controllers.storage.checksums import xxh3_128_digest
from unified_tree.controllers.storage.page_seal import is_intact, seal
from unified_tree.controllers.storage.rate_limited_log import RateLimitedLog
from unified_tree.controllers.storage.storage_engine import Outcome, SealingEngine
from unified_tree.errors import StorageError

if TYPE_CHECKING:
    from unified_tree.controllers.storage.storage_engine import StorageEngine


class CheckedStorage:
    """Seals and verifies a StorageEngine's pages. An engine that raises counts as a failed call, and the request continues.

    An engine that answers for more or fewer keys than it was asked for has failed, too. One that raises anything but
    StorageError ends the job that called it; that is counted in `errors` as well.

    A page that differs from what was put is CORRUPT, counted, and removed from the store, so that the next put can replace it.

    Args:
        engine: any.

    Attributes:
        engine: the same.
    """

    def __init__(self, engine: StorageEngine) -> None:
        xxh3_128_digest(b"")  # raises now, and not at the first page, if xxhash is not installed
        self.engine = engine
        self._sealing = engine if isinstance(engine, SealingEngine) else None
        self._lock = threading.Lock()
        self._log = RateLimitedLog()
        self._quarantined: dict[str, int] = {}
        self._errors = 0
        self._last_error: str | None = None
        self._latencies: dict[tuple[str, str], LatencyCounter] = {}

    @property
    def quarantined(self) -> dict[str, int]:
        """How many corrupt pages were found so far, by pool; a copy."""
        with self._lock:
            return dict(self._quarantined)

    @property
    def errors(self) -> tuple[int, str | None]:
        """How many calls failed as a whole so far, and the last message."""
        with self._lock:
            return self._errors, self._last_error

    @property
    def latencies(self) -> dict[tuple[str, str], LatencyStats]:
        """The latencies of the engine's calls so far, by pool and `exists`, `get` or `put`; a copy."""
        with self._lock:
            return {call: latency.snapshot() for call, latency in self._latencies.items()}

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """Which keys seem to be stored, shape [keys]; none if the store fails."""
        try:
            with self._timed(pool, "exists"):
                found = np.asarray(self.engine.exists(pool, keys), np.bool_)
                if found.shape != (len(keys),):
                    raise StorageError(f"{pool}: asked for {len(keys)} keys, the engine answered for {found.size}")
                return found
        except StorageError as error:
            self._failed(str(error))
            return np.zeros(len(keys), np.bool_)

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """Read pages with their trailers (`HostPool.page_memory`): DONE, MISSING, FAILED or CORRUPT for each.

        Only a page that is DONE may be used. Cost: the engine's, and one pass over each page.
        """
        try:
            with self._timed(pool, "get"):
                outcomes = self._answered(pool, keys, self._verified(pool, keys, pages))
        except StorageError as error:
            self._failed(str(error))
            return [Outcome.FAILED] * len(keys)
        if Outcome.CORRUPT in outcomes:
            self._quarantine(pool, [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is Outcome.CORRUPT])
        return outcomes

    def _verified(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        if self._sealing is not None:
            return self._sealing.get_verified(pool, keys, pages, is_intact)
        outcomes = self.engine.get(pool, keys, pages)
        for index, outcome in enumerate(outcomes):
            if outcome is Outcome.DONE and not is_intact(pages[index], keys[index]):
                outcomes[index] = Outcome.CORRUPT
        return outcomes

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """Write the trailers of pages that are not stored yet, and store them: DONE, PRESENT, DROPPED or FAILED for each."""
        try:
            with self._timed(pool, "put"):
                if self._sealing is not None:
                    return self._answered(pool, keys, self._sealing.put_sealed(pool, keys, pages, seal))
                for key, page in zip(keys, pages, strict=True):
                    seal(page, key)
                return self._answered(pool, keys, self.engine.put(pool, keys, pages))
        except StorageError as error:
            self._failed(str(error))
            return [Outcome.FAILED] * len(keys)

    @staticmethod
    def _answered(pool: str, keys: Sequence[bytes], outcomes: list[Outcome]) -> list[Outcome]:
        if len(outcomes) != len(keys):
            raise StorageError(f"{pool}: given {len(keys)} keys, the engine answered for {len(outcomes)}")
        return outcomes

    def count_failure(self, problem: str) -> None:
        """Count a failure, including one before the store was reached, so that `errors` covers every page that could not be
        stored.
        """
        with self._lock:
            self._errors += 1
            self._last_error = problem

    def _failed(self, problem: str) -> None:
        self.count_failure(problem)
        self._log.warning("failed", "storage failed, and the request goes on without it: %s", problem)

    @contextmanager
    def _timed(self, pool: str, call: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            took = perf_counter() - start
            with self._lock:
                latency = self._latencies.get((pool, call))
                if latency is None:
                    latency = self._latencies[pool, call] = LatencyCounter()
                latency.add(took)

    def _quarantine(self, pool: str, keys: list[bytes]) -> None:
        with self._lock:
            self._quarantined[pool] = self._quarantined.get(pool, 0) + len(keys)
        message = "storage returned %d pages of pool %r that are not what was put; they are not used, and removed from it"
        self._log.warning(pool, message, len(keys), pool)
        try:
            self.engine.remove(pool, keys)
        except StorageError as error:
            self._failed(str(error))
