"""What an engine counts, by pool."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from unified_tree.controllers.storage.storage_engine import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    """Of one pool, since the engine was made.

    Attributes:
        queries, present: keys asked for by `exists`, and those that were there.
        gets, puts: pages by outcome; outcomes that did not happen are left out.
        read_bytes, written_bytes: of the pages that were DONE.
    """

    queries: int = 0
    present: int = 0
    gets: Mapping[Outcome, int] = field(default_factory=dict)
    puts: Mapping[Outcome, int] = field(default_factory=dict)
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStats:
    """Attributes:
    pools: counts by pool name.
    is_degraded: the store cannot be used at present, and everything is a miss.
    """

    pools: Mapping[str, PoolCounts]
    is_degraded: bool = False


class Tally:
    """Counts of an engine; any thread may add. Cost: O(batch)."""

    def __init__(self, value_bytes: Mapping[str, int]) -> None:
        self._value_bytes = dict(value_bytes)
        self._pools = {name: PoolCounts() for name in value_bytes}
        self._lock = threading.Lock()

    def queried(self, pool: str, asked: int, present: int) -> None:
        """Count one `exists`."""
        with self._lock:
            counts = self._pools[pool]
            self._pools[pool] = replace(counts, queries=counts.queries + asked, present=counts.present + present)

    def got(self, pool: str, outcomes: Iterable[Outcome]) -> None:
        """Count one `get`."""
        with self._lock:
            counts = self._pools[pool]
            gets, done = _added(counts.gets, outcomes)
            self._pools[pool] = replace(counts, gets=gets, read_bytes=counts.read_bytes + done * self._value_bytes[pool])

    def put(self, pool: str, outcomes: Iterable[Outcome]) -> None:
        """Count one `put`."""
        with self._lock:
            counts = self._pools[pool]
            puts, done = _added(counts.puts, outcomes)
            self._pools[pool] = replace(counts, puts=puts, written_bytes=counts.written_bytes + done * self._value_bytes[pool])

    def snapshot(self, *, is_degraded: bool = False) -> StorageStats:
        """The counts of now."""
        with self._lock:
            return StorageStats(pools=dict(self._pools), is_degraded=is_degraded)


def _added(before: Mapping[Outcome, int], outcomes: Iterable[Outcome]) -> tuple[dict[Outcome, int], int]:
    """The counts with these added, and how many of these were DONE."""
    after, done = dict(before), 0
    for outcome in outcomes:
        after[outcome] = after.get(outcome, 0) + 1
        done += outcome is Outcome.DONE
    return after, done
