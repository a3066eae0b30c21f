"""A storage engine whose calls are seen, and held where a test wants to: between a cache and the engine proper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from unified_tree.controllers.storage import AnsweringEngine, Capabilities, Outcome, SealingEngine, StorageEngine
from unified_tree.controllers.storage.storage_engine import StorageStats

Keys = Sequence[bytes]
Pages = Sequence[memoryview]


def nothing(pool: str, keys: Keys) -> None:
    """Of all that could be done before a read."""
    del pool, keys


class WatchedStorage:
    """Passes every call on.

    Args:
        engine: that does the work; closed with this one.

    Attributes:
        scheduler: the thread that must never ask a store for anything; the one that makes this.
        intruders: what it asked all the same.
        under_way: numbers of the calls that have begun and not ended.
        gate: calls wait before it while it is closed.
        held: how many have.
        before_get: called with the pool and the keys before values are read.
        stored: keys that are stored, as the engine said, by pool.
    """

    def __init__(self, engine: StorageEngine) -> None:
        self.engine = engine
        self.scheduler = threading.get_ident()
        self.intruders: list[str] = []
        self.under_way: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.held = 0
        self.before_get: Callable[[str, Keys], object] = nothing
        self.stored: dict[str, set[bytes]] = {}
        self._numbers = 0
        self._lock = threading.Lock()

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        if threading.get_ident() == self.scheduler:
            self.intruders.append(name)
        with self._lock:
            self._numbers += 1
            number = self._numbers
            self.under_way.add(number)
            self.held += not self.gate.is_set()
        try:
            self.gate.wait()
            yield
        finally:
            with self._lock:
                self.under_way.discard(number)

    @property
    def capabilities(self) -> Capabilities:
        return self.engine.capabilities

    def register(self, buffers: Pages) -> None:
        self.engine.register(buffers)

    def exists(self, pool: str, keys: Keys) -> Any:
        with self._call("exists"):
            return self.engine.exists(pool, keys)

    def take_unanswered(self) -> Any:
        return self.engine.take_unanswered() if isinstance(self.engine, AnsweringEngine) else None

    def get(self, pool: str, keys: Keys, pages: Pages) -> list[Outcome]:
        with self._call("get"):
            self.before_get(pool, keys)
            return self.engine.get(pool, keys, pages)

    def put(self, pool: str, keys: Keys, pages: Pages) -> list[Outcome]:
        with self._call("put"):
            return self._noted(pool, keys, self.engine.put(pool, keys, pages))

    def remove(self, pool: str, keys: Keys) -> None:
        with self._call("remove"):
            self.engine.remove(pool, keys)

    def clear(self) -> None:
        with self._call("clear"):
            self.engine.clear()

    def stats(self) -> StorageStats:
        return self.engine.stats()

    def close(self) -> None:
        self.engine.close()

    def _noted(self, pool: str, keys: Keys, outcomes: list[Outcome]) -> list[Outcome]:
        done = {key for key, outcome in zip(keys, outcomes, strict=True) if outcome in (Outcome.DONE, Outcome.PRESENT)}
        self.stored.setdefault(pool, set()).update(done)
        return outcomes


class WatchedSealing(WatchedStorage):
    """The same of an engine that seals on the way."""

    engine: SealingEngine

    def get_verified(self, pool: str, keys: Keys, pages: Pages, verify: Callable[[memoryview, bytes], bool]) -> list[Outcome]:
        with self._call("get"):
            self.before_get(pool, keys)
            return self.engine.get_verified(pool, keys, pages, verify)

    def put_sealed(self, pool: str, keys: Keys, pages: Pages, seal: Callable[[memoryview, bytes], None]) -> list[Outcome]:
        with self._call("put"):
            return self._noted(pool, keys, self.engine.put_sealed(pool, keys, pages, seal))


def watched(engine: StorageEngine) -> WatchedStorage:
    """Around an engine, and one that seals if that does."""
    return WatchedSealing(engine) if isinstance(engine, SealingEngine) else WatchedStorage(engine)
