"""Every storage engine keeps the contract, as `unified_tree.controllers.testing` checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import bind_mount
import hf3fs_service
import mooncake_server
import pytest
import redis_server
import simm_double
from usrbio_double import UsrbioDouble

from unified_tree.controllers.storage import FileStorage, MemoryStorage, NullStorage, StorageEngine, StoredPool
from unified_tree.controllers.storage.hf3fs import Hf3fsSettings, Hf3fsStorage
from unified_tree.controllers.storage.mooncake import MooncakeSettings, MooncakeStorage
from unified_tree.controllers.storage.redis import RedisSettings, RedisStorage
from unified_tree.controllers.storage.simm import SimmSettings, SimmStorage
from unified_tree.controllers.storage.simm.simm_storage import SimmClient
from unified_tree.controllers.testing import Check, FaultyStorage, StorageFaults, StorageRig, storage_engine_checks

CAPACITY = 1 << 20
RIGS: dict[str, Callable[[Path], StorageRig]] = {
    "null": lambda _: StorageRig(open_engine=lambda pools, _: NullStorage(pools), keeps_pages=False),
    "memory": lambda _: StorageRig(open_engine=lambda pools, _: MemoryStorage(pools, CAPACITY), capacity_bytes=CAPACITY),
    "faulty without faults": lambda _: StorageRig(open_engine=faultless, capacity_bytes=CAPACITY),
    "file": lambda path: StorageRig(
        open_engine=lambda pools, store: FileStorage(pools, path / store, CAPACITY), capacity_bytes=CAPACITY
    ),
    "file, flushed": lambda path: StorageRig(
        open_engine=lambda pools, store: FileStorage(pools, path / store, CAPACITY, sync=True)
    ),
}


def faultless(pools: Sequence[StoredPool], _: str) -> StorageEngine:
    return FaultyStorage(MemoryStorage(pools, CAPACITY), StorageFaults(), seed=1)


SERVED = ("mooncake", "redis", "redis_cluster", "simm", "hf3fs", "hf3fs_mount", "hf3fs_usrbio")
"""Engines of real servers, SiMM of a double: fixtures of these names."""


@pytest.fixture(scope="module")
def mooncake() -> Iterator[StorageRig]:
    mooncake_server.skip_unless_it_runs()
    with mooncake_server.Mooncake() as server:
        yield StorageRig(
            open_engine=lambda pools, store: MooncakeStorage(
                pools, MooncakeSettings(master=server.master, key_prefix=store, **mooncake_server.SETTINGS)
            )
        )


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageRig]:
    redis_server.skip_unless_it_runs()
    with redis_server.Redis(tmp_path_factory.mktemp("redis"), over="unix") as server:
        yield StorageRig(
            open_engine=lambda pools, store: RedisStorage(
                pools, RedisSettings(address=server.address, key_prefix=store, **redis_server.PATIENT)
            )
        )


@pytest.fixture(scope="module")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageRig]:
    redis_server.skip_unless_it_runs()
    with redis_server.Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield StorageRig(
            open_engine=lambda pools, store: RedisStorage(
                pools, RedisSettings(address=cluster.address, cluster=True, key_prefix=store, **redis_server.PATIENT)
            )
        )


@pytest.fixture(scope="module")
def simm() -> Iterator[StorageRig]:
    with simm_double.SimmServer() as server:

        def opened(pools: Sequence[StoredPool], store: str) -> StorageEngine:
            settings = SimmSettings(manager_address=server.address, key_prefix=store)
            return SimmStorage(pools, settings, SimmClient(settings, simm_double.SimmModule(server)))

        yield StorageRig(open_engine=opened)


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hf3fs_service.MetadataService]:
    hf3fs_service.skip_unless_it_runs()
    with hf3fs_service.MetadataService(tmp_path_factory.mktemp("metadata")) as service:
        yield service


def hf3fs_rig(service: hf3fs_service.MetadataService, directory: Path, *modules: UsrbioDouble, **other: object) -> StorageRig:
    given = {**hf3fs_service.SETTINGS, **other}

    def opened(pools: Sequence[StoredPool], store: str) -> StorageEngine:
        settings = Hf3fsSettings(metadata=service.url, directory=str(directory), capacity_bytes=CAPACITY, rank=store, **given)
        return Hf3fsStorage(pools, settings, *modules)

    return StorageRig(open_engine=opened, keeps_other_formats=False)


@pytest.fixture
def hf3fs(metadata: hf3fs_service.MetadataService, tmp_path: Path) -> StorageRig:
    return hf3fs_rig(metadata, tmp_path)


@pytest.fixture
def hf3fs_mount(metadata: hf3fs_service.MetadataService, tmp_path: Path) -> Iterator[StorageRig]:
    bind_mount.skip_unless_it_runs()
    with bind_mount.BindMount(tmp_path) as mount:
        yield hf3fs_rig(metadata, mount.point, mount=str(mount.point))


@pytest.fixture
def hf3fs_usrbio(metadata: hf3fs_service.MetadataService, tmp_path: Path) -> Iterator[StorageRig]:
    with UsrbioDouble(tmp_path, seed=3) as usrbio:
        yield hf3fs_rig(metadata, tmp_path, usrbio, io="usrbio", ring_entries=4)


@pytest.fixture(params=[*RIGS, *SERVED])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> StorageRig:
    made: StorageRig = RIGS[request.param](tmp_path) if request.param in RIGS else request.getfixturevalue(request.param)
    return made


@pytest.mark.parametrize("check", storage_engine_checks(), ids=repr)
def test_every_engine_keeps_the_contract(check: Check, rig: StorageRig) -> None:
    check(rig)
