"""What every storage engine promises; of one that keeps nothing, what is left of it."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import bind_mount
import hf3fs_service
import mooncake_server
import pytest
import redis_server
import simm_double
from usrbio_double import UsrbioDouble

from unified_tree.controllers.storage import (
    FaultyStorage,
    FileStorage,
    MemoryStorage,
    NullStorage,
    Outcome,
    StorageEngine,
    StorageFaults,
    StoredPool,
    check_can_hold,
)
from unified_tree.controllers.storage.hf3fs import Hf3fsSettings, Hf3fsStorage
from unified_tree.controllers.storage.mooncake import MooncakeSettings, MooncakeStorage
from unified_tree.controllers.storage.redis import RedisSettings, RedisStorage
from unified_tree.controllers.storage.simm import SimmSettings, SimmStorage
from unified_tree.controllers.storage.simm.simm_client import SimmClient
from unified_tree.errors import PageError, StorageError

SIZES = {"full": 1088, "mamba": 320}
POOLS = [StoredPool(name=name, format_digest=sha256(name.encode()).digest(), value_bytes=size) for name, size in SIZES.items()]
ENGINES: dict[str, Callable[[Path], StorageEngine]] = {
    "null": lambda _: NullStorage(POOLS),
    "memory": lambda _: MemoryStorage(POOLS, capacity_bytes=1 << 20),
    "faulty without faults": lambda _: FaultyStorage(MemoryStorage(POOLS, capacity_bytes=1 << 20), StorageFaults(), seed=1),
    "file": lambda path: FileStorage(POOLS, path, 1 << 20),
    "file, flushed": lambda path: FileStorage(POOLS, path, 1 << 20, sync=True),
}


SERVED = ("mooncake", "redis", "redis_cluster", "simm", "hf3fs", "hf3fs_mount", "hf3fs_usrbio")
"""Engines of real servers, SiMM of a double: fixtures of these names, each giving what opens one on an empty store."""
RANKS = itertools.count()
"""Ranks of 3FS that nobody has used."""


@pytest.fixture(scope="module")
def mooncake() -> Iterator[Callable[[], StorageEngine]]:
    mooncake_server.skip_unless_it_runs()
    with mooncake_server.Mooncake() as server:
        prefixes = (f"conformance-{number}" for number in itertools.count())
        yield lambda: MooncakeStorage(
            POOLS, MooncakeSettings(master=server.master, key_prefix=next(prefixes), **mooncake_server.SETTINGS)
        )


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], StorageEngine]]:
    redis_server.skip_unless_it_runs()
    with redis_server.Redis(tmp_path_factory.mktemp("redis"), over="unix") as server:
        prefixes = (f"conformance-{number}" for number in itertools.count())
        yield lambda: RedisStorage(POOLS, RedisSettings(address=server.address, key_prefix=next(prefixes)))


@pytest.fixture(scope="module")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], StorageEngine]]:
    redis_server.skip_unless_it_runs()
    with redis_server.Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        prefixes = (f"conformance-{number}" for number in itertools.count())
        yield lambda: RedisStorage(POOLS, RedisSettings(address=cluster.address, cluster=True, key_prefix=next(prefixes)))


@pytest.fixture(scope="module")
def simm() -> Iterator[Callable[[], StorageEngine]]:
    with simm_double.SimmServer() as server:
        prefixes = (f"conformance-{number}" for number in itertools.count())

        def opened() -> StorageEngine:
            settings = SimmSettings(manager_address=server.address, key_prefix=next(prefixes))
            return SimmStorage(POOLS, settings, SimmClient(settings, simm_double.SimmModule(server)))

        yield opened


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hf3fs_service.MetadataService]:
    hf3fs_service.skip_unless_it_runs()
    with hf3fs_service.MetadataService(tmp_path_factory.mktemp("metadata")) as service:
        yield service


def hf3fs_settings(service: hf3fs_service.MetadataService, directory: Path, **other: object) -> Hf3fsSettings:
    settings = {**hf3fs_service.SETTINGS, "io_timeout_s": 1.8, "request_timeout_s": 5.0, **other}
    return Hf3fsSettings(metadata=service.url, directory=str(directory), capacity_bytes=1 << 20, **settings)


@pytest.fixture
def hf3fs(metadata: hf3fs_service.MetadataService, tmp_path: Path) -> Callable[[], StorageEngine]:
    return lambda: Hf3fsStorage(POOLS, hf3fs_settings(metadata, tmp_path, rank=f"p{next(RANKS)}"))


@pytest.fixture
def hf3fs_mount(metadata: hf3fs_service.MetadataService, tmp_path: Path) -> Iterator[Callable[[], StorageEngine]]:
    bind_mount.skip_unless_it_runs()
    with bind_mount.BindMount(tmp_path) as mount:
        settings = hf3fs_settings(metadata, mount.point, rank=f"m{next(RANKS)}", mount=str(mount.point))
        yield lambda: Hf3fsStorage(POOLS, settings)


@pytest.fixture
def hf3fs_usrbio(metadata: hf3fs_service.MetadataService, tmp_path: Path) -> Iterator[Callable[[], StorageEngine]]:
    with UsrbioDouble(tmp_path, seed=3) as usrbio:
        settings = hf3fs_settings(metadata, tmp_path, rank=f"u{next(RANKS)}", io="usrbio", ring_entries=4)
        yield lambda: Hf3fsStorage(POOLS, settings, usrbio)


@pytest.fixture(params=[*ENGINES, *SERVED])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorageEngine]:
    made = ENGINES[request.param](tmp_path) if request.param in ENGINES else request.getfixturevalue(request.param)()
    yield made
    made.close()


def keeps(engine: StorageEngine) -> bool:
    return not isinstance(engine, NullStorage)


def keys(*numbers: int) -> list[bytes]:
    return [sha256(str(number).encode()).digest() for number in numbers]


def filled(pool: str, *numbers: int) -> list[memoryview]:
    return [memoryview(bytearray(random.Random(f"{pool} {number}").randbytes(SIZES[pool]))) for number in numbers]


def empty(pool: str, count: int) -> list[memoryview]:
    return [memoryview(bytearray(SIZES[pool])) for _ in range(count)]


def test_what_is_put_is_got(engine: StorageEngine) -> None:
    stored = engine.put("full", keys(1, 2, 3), filled("full", 1, 2, 3))
    assert stored == [Outcome.DONE if keeps(engine) else Outcome.DROPPED] * 3
    assert engine.exists("full", keys(2, 9, 1)).tolist() == [keeps(engine), False, keeps(engine)]
    pages = empty("full", 3)
    there = Outcome.DONE if keeps(engine) else Outcome.MISSING
    assert engine.get("full", keys(3, 9, 1), pages) == [there, Outcome.MISSING, there]
    if keeps(engine):
        assert [pages[0], pages[2]] == filled("full", 3, 1)
    assert engine.get("mamba", keys(1), empty("mamba", 1)) == [Outcome.MISSING], "pools do not share keys"


def test_the_old_value_stays(engine: StorageEngine) -> None:
    engine.put("mamba", keys(1), filled("mamba", 1))
    again = engine.put("mamba", keys(1), filled("mamba", 2))
    if keeps(engine):
        assert again == [Outcome.PRESENT]
        pages = empty("mamba", 1)
        engine.get("mamba", keys(1), pages)
        assert pages == filled("mamba", 1)


def test_what_is_removed_or_cleared_is_missing(engine: StorageEngine) -> None:
    for pool in SIZES:
        engine.put(pool, keys(1, 2, 3), filled(pool, 1, 2, 3))
    engine.remove("full", keys(2, 9))
    assert engine.exists("full", keys(1, 2, 3)).tolist() == [keeps(engine), False, keeps(engine)]
    engine.clear()
    assert not any(engine.exists(pool, keys(1, 2, 3)).any() for pool in SIZES)
    if keeps(engine):
        assert engine.put("full", keys(2), filled("full", 2)) == [Outcome.DONE]


def test_its_figures_name_every_pool_from_the_beginning(engine: StorageEngine) -> None:
    assert set(engine.stats().pools) == set(SIZES), "by which the cache knows what an engine was opened for"


def test_an_empty_batch_is_nothing(engine: StorageEngine) -> None:
    assert engine.exists("full", []).shape == (0,)
    assert engine.get("full", [], []) == engine.put("full", [], []) == []
    engine.remove("full", [])
    engine.register([])


def test_a_batch_that_does_not_fit_is_refused(engine: StorageEngine) -> None:
    with pytest.raises(StorageError, match="'swa' is none of the pools"):
        engine.exists("swa", keys(1))
    with pytest.raises(PageError, match="a key must be 32 bytes"):
        engine.exists("full", [b"../../etc/passwd"])
    with pytest.raises(PageError, match="twice in one batch"):
        engine.exists("full", keys(1, 1))
    with pytest.raises(PageError, match="2 keys for 1 pages"):
        engine.put("full", keys(1, 2), filled("full", 1))
    with pytest.raises(PageError, match="1088 bytes, not of 320"):
        engine.put("full", keys(1), filled("mamba", 1))
    with pytest.raises(PageError, match="writable"):
        engine.get("full", keys(1), [page.toreadonly() for page in empty("full", 1)])


def test_counts(engine: StorageEngine) -> None:
    engine.put("full", keys(1, 2), filled("full", 1, 2))
    engine.exists("full", keys(1, 5, 6))
    engine.get("full", keys(1, 7), empty("full", 2))
    counts = engine.stats().pools["full"]
    assert counts.queries == 3
    assert sum(counts.gets.values()) == sum(counts.puts.values()) == 2
    assert counts.written_bytes == keeps(engine) * 2 * 1088
    assert counts.read_bytes == keeps(engine) * 1088
    assert engine.stats().pools["mamba"].queries == 0


def test_a_closed_engine_takes_nothing(engine: StorageEngine) -> None:
    engine.close()
    engine.close()
    engine.stats()
    for call in (
        engine.clear,
        lambda: engine.exists("full", []),
        lambda: engine.remove("full", []),
        lambda: engine.register([]),
    ):
        with pytest.raises(StorageError, match="closed"):
            call()


def test_an_engine_keeps_what_it_says_it_can(engine: StorageEngine) -> None:
    check_can_hold(engine.capabilities, POOLS)


def test_threads_at_once_get_whole_values(engine: StorageEngine) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(100):
            number = choose.randrange(20)
            engine.put("full", keys(number), filled("full", number))
            pages = empty("full", 1)
            if engine.get("full", keys(number), pages) == [Outcome.DONE] and pages != filled("full", number):
                wrong.append(number)
            if choose.random() < 0.3:
                engine.remove("full", keys(number))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
