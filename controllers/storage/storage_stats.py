"""The counters of an engine by pool, and snapshots of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unified_tree.controllers.storage.storage_engine import Outcome

_OUTCOMES = tuple(Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPoolStats:
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
    freed_bytes: of values that the engine gave up to keep its bound when it was opened or grew: those of pools that it was not
        opened for, and of tables of another size. It logs each time.
    """

    pools: Mapping[str, StoredPoolStats]
    is_degraded: bool = False
    freed_bytes: int = 0


class StorageCounters:
    """The counters of an engine. Thread-safe. Cost: about a microsecond a batch."""

    def __init__(self, value_bytes: Mapping[str, int]) -> None:
        self._pools = {name: _PoolCounters(size) for name, size in value_bytes.items()}
        self._lock = threading.Lock()

    def queried(self, pool: str, asked: int, present: int) -> None:
        """Count one `exists`."""
        with self._lock:
            counters = self._pools[pool]
            counters.queries += asked
            counters.present += present

    def got(self, pool: str, outcomes: Sequence[Outcome]) -> None:
        """Count one `get`."""
        with self._lock:
            _add(self._pools[pool].gets, outcomes)

    def put(self, pool: str, outcomes: Sequence[Outcome]) -> None:
        """Count one `put`."""
        with self._lock:
            _add(self._pools[pool].puts, outcomes)

    def snapshot(self, *, is_degraded: bool = False, freed_bytes: int = 0) -> StorageStats:
        """A snapshot."""
        with self._lock:
            return StorageStats(
                pools={name: counters.frozen() for name, counters in self._pools.items()},
                is_degraded=is_degraded,
                freed_bytes=freed_bytes,
            )


class _PoolCounters:
    """Of one pool."""

    def __init__(self, value_bytes: int) -> None:
        self.value_bytes = value_bytes
        self.queries = self.present = 0
        self.gets = [0] * len(_OUTCOMES)
        self.puts = [0] * len(_OUTCOMES)

    def frozen(self) -> StoredPoolStats:
        gets, puts = _named(self.gets), _named(self.puts)
        return StoredPoolStats(
            queries=self.queries,
            present=self.present,
            gets=gets,
            puts=puts,
            read_bytes=gets.get(Outcome.DONE, 0) * self.value_bytes,
            written_bytes=puts.get(Outcome.DONE, 0) * self.value_bytes,
        )


def _add(counts: list[int], outcomes: Sequence[Outcome]) -> None:
    left = len(outcomes)
    for index, outcome in enumerate(_OUTCOMES):
        if not left:
            return
        found = outcomes.count(outcome)
        counts[index] += found
        left -= found


def _named(counts: list[int]) -> dict[Outcome, int]:
    return {outcome: count for outcome, count in zip(_OUTCOMES, counts, strict=True) if count}
