"""Nothing that is wrong gets through, whatever the store does; the registry; the memory store's bound."""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from unified_tree.controllers.pools import HostLayout
from unified_tree.controllers.storage import (
    Capabilities,
    CheckedStorage,
    GuardedStorage,
    MemoryStorage,
    NullStorage,
    Outcome,
    StorageEngine,
    StorageRegistry,
    StoredPool,
    storage_registry,
)
from unified_tree.controllers.testing import FaultyStorage, StorageFaults
from unified_tree.terms.errors import ConfigurationError

POOL = StoredPool(name="full", format_digest=bytes(32), value_bytes=320)
FAULTS = ("slow", "raising", "partial", "lost", "torn", "corrupt")


def key(number: int) -> bytes:
    return sha256(str(number).encode()).digest()


def body(number: int) -> bytes:
    return random.Random(number).randbytes(256)


def page(number: int) -> memoryview:
    return memoryview(bytearray(body(number)) + bytearray(64))


def history(fault: str, seed: int) -> tuple[list[Outcome], int]:
    waits: list[int] = []
    faulty = FaultyStorage(MemoryStorage([POOL]), StorageFaults(**{fault: 0.3}), seed=seed, wait=lambda: waits.append(1))
    store, choose, seen = CheckedStorage(faulty), random.Random(seed), []
    for _ in range(200):
        numbers = choose.sample(range(30), 4)
        keys, pages = [key(n) for n in numbers], [memoryview(bytearray(320)) for _ in numbers]
        store.put("full", keys[:2], [page(n) for n in numbers[:2]])
        store.exists("full", keys)
        outcomes = store.get("full", keys, pages)
        for number, got, outcome in zip(numbers, pages, outcomes, strict=True):
            assert outcome is not Outcome.DONE or got[:256] == body(number), "a wrong byte was served"
        seen += outcomes
    assert (store.errors[0] > 0) == (fault == "raising")
    assert sum(store.quarantined.values()) == seen.count(Outcome.CORRUPT)
    store.engine.close()
    return seen, len(waits)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_miss_and_never_a_wrong_byte(fault: str) -> None:
    seen, waits = history(fault, 7)
    assert history(fault, 7) == (seen, waits)
    assert seen.count(Outcome.DONE) > 100
    assert (Outcome.CORRUPT in seen) == (fault in {"torn", "corrupt"})
    assert (waits > 0) == (fault == "slow")


def test_a_page_under_another_key_is_noticed_and_healed() -> None:
    engine = MemoryStorage([POOL])
    store, wrong = CheckedStorage(engine), page(1)
    store.put("full", [key(1)], [wrong])
    engine.put("full", [key(2)], [wrong])
    assert store.get("full", [key(2)], [page(0)]) == [Outcome.CORRUPT]
    assert store.quarantined == {"full": 1}
    assert store.put("full", [key(2)], [page(2)]) == [Outcome.DONE]
    assert store.get("full", [key(2)], [page(0)]) == [Outcome.DONE]


def test_memory_evicts_what_was_used_longest_ago() -> None:
    engine = MemoryStorage([POOL], capacity_bytes=3 * 320)
    engine.put("full", [key(n) for n in range(3)], [page(n) for n in range(3)])
    engine.get("full", [key(0)], [page(9)])
    engine.put("full", [key(3)], [page(3)])
    assert engine.exists("full", [key(n) for n in range(4)]).tolist() == [True, False, True, True]
    with pytest.raises(ConfigurationError, match="320 bytes, not 319"):
        MemoryStorage([POOL], capacity_bytes=319)


class Picky(NullStorage):
    """Cannot keep much."""

    closed = 0

    @property
    def capabilities(self) -> Capabilities:
        """Small values of one layout."""
        return Capabilities(zero_copy=False, layouts=frozenset({HostLayout.PAGE_FIRST}), largest_value_bytes=100)

    def close(self) -> None:
        Picky.closed += 1
        super().close()


def test_what_an_engine_cannot_keep_is_refused_when_it_is_opened() -> None:
    registry = StorageRegistry()
    registry.register("picky", Picky)
    with pytest.raises(ConfigurationError, match=r"full: its pages are page_first_direct.*320 bytes, the engine's largest 100"):
        registry.open("picky", [POOL])
    assert Picky.closed == 1
    assert "picky" not in StorageRegistry().names, "registries share nothing"


class Half:
    """What a package may take for an engine."""

    closed = 0

    def __init__(self, pools: Sequence[StoredPool], path: str = "") -> None:
        del pools, path

    def get(self) -> None:
        """No signature of an engine's, but its name."""

    def close(self) -> None:
        Half.closed += 1


class Unfinished(GuardedStorage):
    """Abstract still."""

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool]:
        raise NotImplementedError


def buggy(pools: Sequence[StoredPool], path: str = "") -> StorageEngine:
    """A factory with a mistake in it."""
    raise TypeError(f"{len(pools)} + {path}")


def test_a_factory_is_told_what_is_wrong_with_it() -> None:
    registry = StorageRegistry()
    for name, factory in {"half": Half, "unfinished": Unfinished, "buggy": buggy, "nothing": lambda _: None}.items():
        registry.register(name, factory)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match=r"opens a Half, which is no .* lacks capabilities, register, exists, put, rem"
    ):
        registry.open("half", [POOL])
    assert Half.closed == 1
    with pytest.raises(ConfigurationError, match="'nothing' opens a NoneType"):
        registry.open("nothing", [POOL])
    with pytest.raises(
        ConfigurationError, match=r"Unfinished'> is not whole, it lacks _clear, _get, _put, _remove, capabilities"
    ):
        registry.open("unfinished", [POOL])
    with pytest.raises(TypeError, match=r"1 [+] there"):
        registry.open("buggy", [POOL], path="there")
    with pytest.raises(ConfigurationError, match=r"'buggy' cannot be opened with colour: .*'colour'; its options are path"):
        registry.open("buggy", [POOL], colour="red")
    with pytest.raises(ConfigurationError, match="missing a required argument: 'directory'; its options are directory, cap"):
        registry.open("file", [POOL])


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(**_: Any) -> list[EntryPoint]:
        where = "unified_tree.controllers.storage:"
        group = storage_registry.ENTRY_POINT_GROUP
        return [EntryPoint("nothing", where + "NullStorage", group), EntryPoint("broken", where + "Absent", group)]

    monkeypatch.setattr(storage_registry, "entry_points", installed)
    registry = StorageRegistry()
    assert registry.names == sorted(["broken", "file", "memory", "nothing", "null"])
    assert isinstance(registry.open("nothing", [POOL]), NullStorage)
    with pytest.raises(ConfigurationError, match="'broken' of an installed package cannot be loaded"):
        registry.open("broken", [POOL])
    with pytest.raises(ConfigurationError, match="no storage engine is called 'disk'; known are broken"):
        registry.open("disk", [POOL])
    with pytest.raises(ConfigurationError, match="cannot be opened with"):
        registry.open("null", [POOL], colour="red")
    with pytest.raises(ConfigurationError, match="non-empty"):
        registry.register("", NullStorage)
    for wrong in ([], [POOL, POOL]):
        with pytest.raises(ConfigurationError, match="different names"):
            registry.open("null", wrong)


def test_another_packages_name_replaces_none_of_this_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    group = storage_registry.ENTRY_POINT_GROUP
    points = [EntryPoint("null", "elsewhere:Null", group), EntryPoint("redis", "elsewhere:Redis", group)]
    own = EntryPoint("redis", "unified_tree.controllers.storage:MemoryStorage", group)
    for given in ([*points, own], [own, *points]):
        monkeypatch.setattr(storage_registry, "entry_points", lambda given=given, **_: given)
        registry = StorageRegistry()
        assert isinstance(registry.open("null", [POOL]), NullStorage)
        assert type(registry.open("redis", [POOL], capacity_bytes=1 << 20)).__name__ == "MemoryStorage"
