"""The guard around every engine: what an engine sees of its callers, and they of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from waiting import PATIENCE_S

from unified_tree.controllers.storage import Capabilities, GuardedStorage, Outcome, StoredPool
from unified_tree.controllers.storage.guarded_storage import CircuitBreaker
from unified_tree.terms.errors import PageError, StorageError

POOL = StoredPool(name="full", format_digest=bytes(32), value_bytes=64)
KEYS = [bytes([number]) * 32 for number in range(3)]


class Scripted(GuardedStorage):
    """Notes its calls and answers as it is told."""

    def __init__(self) -> None:
        super().__init__("scripted", [POOL])
        self.calls: list[str] = []
        self.is_there = True
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(zero_copy=False)

    def _admits(self) -> bool:
        return self.is_there

    def _is_degraded(self) -> bool:
        return not self.is_there

    def _register(self, buffers: Sequence[memoryview]) -> None:
        self.calls.append(f"register {len(buffers)}")

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool]:
        self.calls.append(f"exists {pool}")
        return [True] * len(keys)

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        self.entered.set()
        assert self.go_on.wait(PATIENCE_S) and "close" not in self.calls
        self.calls.append(f"get {pool} {len(pages)}")
        return [Outcome.DONE] * len(keys)

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        self.calls.append(f"put {pool} {len(pages)}")
        return [Outcome.FAILED] * len(keys)

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        self.calls.append(f"remove {pool} {len(keys)}")

    def _clear(self) -> None:
        self.calls.append("clear")

    def _close(self) -> None:
        self.calls.append("close")


def pages(count: int) -> list[memoryview]:
    return [memoryview(bytearray(64)) for _ in range(count)]


def test_calls_reach_the_engine_and_are_counted() -> None:
    engine = Scripted()
    engine.register(pages(2))
    assert engine.exists("full", KEYS).all()
    assert engine.get("full", KEYS[:2], pages(2)) == [Outcome.DONE] * 2
    assert engine.put("full", KEYS, pages(3)) == [Outcome.FAILED] * 3
    engine.remove("full", KEYS)
    engine.clear()
    assert engine.calls == ["register 2", "exists full", "get full 2", "put full 3", "remove full 3", "clear"]
    counts = engine.stats().pools["full"]
    assert (counts.queries, counts.present, counts.read_bytes, counts.written_bytes) == (3, 3, 128, 0)
    assert (counts.gets, counts.puts) == ({Outcome.DONE: 2}, {Outcome.FAILED: 3})


def test_nothing_wrong_and_nothing_empty_reaches_the_engine() -> None:
    engine = Scripted()
    for keys in ([b"short"], [KEYS[0]] * 2):
        with pytest.raises(PageError):
            engine.remove("full", keys)
    with pytest.raises(StorageError, match="'swa' is none of the pools"):
        engine.get("swa", KEYS, pages(3))
    with pytest.raises(PageError, match="3 keys for 2 pages"):
        engine.put("full", KEYS, pages(2))
    engine.remove("full", [])
    assert engine.exists("full", []).size == 0 and engine.get("full", [], []) == engine.put("full", [], []) == []
    assert not engine.calls


def test_a_store_that_is_away_is_a_miss_without_being_asked() -> None:
    engine = Scripted()
    engine.is_there = False
    assert not engine.exists("full", KEYS).any()
    assert engine.get("full", KEYS, pages(3)) == [Outcome.MISSING] * 3
    assert engine.put("full", KEYS, pages(3)) == [Outcome.DROPPED] * 3
    assert not engine.calls and engine.stats().is_degraded
    assert engine.stats().pools["full"].puts == {Outcome.DROPPED: 3}


def test_close_waits_for_calls_under_way_and_is_idempotent() -> None:
    engine = Scripted()
    engine.go_on.clear()
    threads = [threading.Thread(target=lambda: engine.get("full", KEYS, pages(3)))]
    threads[0].start()
    assert engine.entered.wait(PATIENCE_S)
    threads += [threading.Thread(target=engine.close) for _ in range(2)]
    for closing in threads[1:]:
        closing.start()
    engine.go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    engine.close()
    assert engine.calls == ["get full 3", "close"]
    with pytest.raises(StorageError, match="the scripted storage was closed"):
        engine.clear()
    assert engine.stats().pools["full"].gets == {Outcome.DONE: 3}


class World:
    now = 0.0
    reachable = True


def made() -> tuple[CircuitBreaker, World]:
    world = World()
    return CircuitBreaker(2.0, lambda: world.reachable, lambda: world.now), world


def test_all_calls_pass_until_one_fails() -> None:
    breaker, _ = made()
    assert breaker.admits() and breaker.admits()
    breaker.succeeded()
    assert breaker.admits()
    assert not breaker.is_open
    breaker.failed()
    assert not breaker.admits()
    assert breaker.failures == 1


def test_one_call_a_pause_until_one_succeeds() -> None:
    breaker, world = made()
    breaker.failed()
    world.now = 1.9
    assert not breaker.admits()
    world.now = 2.0
    assert breaker.admits()
    assert not breaker.admits(), "the second waits for what the first finds"
    breaker.failed()
    world.now = 3.9
    assert not breaker.admits()
    world.now = 4.0
    assert breaker.admits()
    breaker.succeeded()
    assert breaker.admits() and breaker.admits()


def test_a_try_that_says_nothing_costs_a_pause() -> None:
    breaker, world = made()
    breaker.failed()
    world.now = 2.0
    assert breaker.admits()
    world.now = 3.9
    assert not breaker.admits()
    world.now = 4.0
    assert breaker.admits()


def test_a_client_without_a_connection_is_not_called() -> None:
    breaker, world = made()
    world.reachable = False
    assert not breaker.admits() and breaker.is_open
    world.now, world.reachable = 1.0, True
    assert not breaker.admits()
    world.now = 2.0
    assert breaker.admits()
    breaker.succeeded()
    assert not breaker.is_open
