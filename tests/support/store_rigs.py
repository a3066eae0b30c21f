"""Every storage engine with what stands behind it, behind one face: opened, killed, frozen, filled up, and made a liar.

A server finds what an earlier one stored, under a prefix or in a directory of the rig. Every engine waits for its store longer
than any machine is slow, except Mooncake's, whose client has limits of its own.
"""

from __future__ import annotations

import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import bind_mount
import frozen
import hf3fs_pages
import hf3fs_service
import mooncake_server
import redis_server
from simm_double import SimmModule, SimmServer, State
from waiting import PATIENCE_S
from watchdog import until

from unified_tree.controllers.storage import FileStorage, StorageEngine, StorageRegistry, StoredPool
from unified_tree.controllers.storage.file.file_limits import FileLimits
from unified_tree.controllers.storage.mooncake import MooncakeSettings
from unified_tree.controllers.storage.mooncake.mooncake_storage import MooncakeClient
from unified_tree.controllers.storage.simm import SimmSettings, SimmStorage
from unified_tree.controllers.storage.simm.simm_storage import SimmClient

Pools = Sequence[StoredPool]
Stored = Mapping[str, set[bytes]]
"""Keys by pool."""
CAPACITY_BYTES = 4 << 20
BRIEF_S = 0.2


class StoreRig(ABC):
    """A kind of store that can be broken.

    Attributes:
        keeps: whether what was stored outlives the death of what stands behind it.
        is_sized: whether its room is given when it is opened.
    """

    keeps: bool
    is_sized: bool

    @abstractmethod
    def open(self, pools: Pools) -> StorageEngine:
        """An engine over it."""

    @abstractmethod
    def kill(self) -> None:
        """What stands behind it ends."""

    @abstractmethod
    def start(self) -> None:
        """And is there again."""

    @abstractmethod
    def freeze(self) -> None:
        """It stands still."""

    @abstractmethod
    def hurry(self, engine: Any) -> None:
        """An engine waits only briefly from now on, for what stands still."""

    @abstractmethod
    def thaw(self) -> None:
        """And goes on."""

    @abstractmethod
    def filled(self) -> Any:
        """A context in which it has no room for what it is given, or only for little of it."""

    @abstractmethod
    def shorten(self, pools: Pools, stored: Stored) -> None:
        """What is stored is there, and shorter than it should be."""

    def let_leases_end(self) -> None:  # noqa: B027, most know none
        """So much time passes for what stands behind it that who began something is taken to have ended."""

    def end(self) -> None:  # noqa: B027, most have nothing to end
        """End what it has started itself; nothing is attached any more."""


class FileRig(StoreRig):
    """A directory. What stands behind it is the file system, and other processes that write."""

    keeps = True
    is_sized = True

    def __init__(self, folder: Path) -> None:
        self._directory = folder / "store"
        self._capacity_bytes = CAPACITY_BYTES
        self._locks: list[int] = []

    def open(self, pools: Pools) -> StorageEngine:
        return FileStorage(pools, self._directory, self._capacity_bytes, limits=FileLimits(write_wait_s=PATIENCE_S))

    def kill(self) -> None:
        """Something else lies where the directory should be."""
        self._directory.write_text("no directory")

    def start(self) -> None:
        self._directory.unlink()

    def freeze(self) -> None:
        """Another process stands still in the middle of writing: it has the lock of every table."""
        for path in self._files("pages"):
            self._locks.append(os.open(path, os.O_RDWR))
            fcntl.flock(self._locks[-1], fcntl.LOCK_EX)

    def hurry(self, engine: Any) -> None:
        for table in engine._tables.values():
            table.writer._lock._wait_s = BRIEF_S

    def thaw(self) -> None:
        while self._locks:
            os.close(self._locks.pop())

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Room for ten values of each of the four pools."""
        self._capacity_bytes = 4 * (8192 + 10 * (4096 + 64))
        yield
        self._capacity_bytes = CAPACITY_BYTES

    def shorten(self, pools: Pools, stored: Stored) -> None:
        del pools, stored
        for path in self._files("pages"):
            os.truncate(path, path.stat().st_size // 2 // 4096 * 4096 + 100)

    def _files(self, kind: str) -> list[Path]:
        return sorted(self._directory.glob(f"*.{kind}"))


class RedisRig(StoreRig):
    """A real server."""

    keeps = False
    is_sized = False

    def __init__(self, server: redis_server.Redis, prefix: str) -> None:
        self._servers = [server]
        self._options: dict[str, Any] = {
            "address": server.address,
            "key_prefix": prefix,
            **redis_server.PATIENT,
            "retry_pause_s": 0.1,
        }

    def open(self, pools: Pools) -> StorageEngine:
        return StorageRegistry().open("redis", pools, **self._options)

    def kill(self) -> None:
        for server in self._servers:
            server.stop()

    def start(self) -> None:
        for server in self._servers:
            server.start()

    def freeze(self) -> None:
        for server in self._servers:
            server.pause()

    def hurry(self, engine: Any) -> None:
        redis_server.wait_for(engine, BRIEF_S)

    def thaw(self) -> None:
        for server in self._servers:
            server.resume()

    @contextmanager
    def filled(self) -> Iterator[None]:
        for server in self._servers:
            server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
            server.ask("CONFIG", "SET", "maxmemory", "1")
        yield
        for server in self._servers:
            server.ask("CONFIG", "SET", "maxmemory", "0")

    def shorten(self, pools: Pools, stored: Stored) -> None:
        [server] = self._servers  # a master's answers are those of one alone
        for pool in pools:
            for key in stored.get(pool.name, ()):
                name = f"{self._options['key_prefix']}:{pool.format_digest[:8].hex()}:{key.hex()}"
                assert server.ask("SET", name, bytes(pool.value_bytes - 1), "XX") == b"OK"


class RedisClusterRig(RedisRig):
    """Three real masters."""

    def __init__(self, cluster: redis_server.Cluster, prefix: str) -> None:
        super().__init__(cluster.servers[0], prefix)
        self._cluster, self._servers = cluster, cluster.servers
        self._options |= {"address": cluster.address, "cluster": True}

    def start(self) -> None:
        super().start()
        self._cluster.come_together()


class MooncakeRig(StoreRig):
    """A real master, and a process that gives it memory."""

    keeps = False
    is_sized = False

    def __init__(self, server: mooncake_server.Mooncake, prefix: str) -> None:
        self._server = server
        self._settings = {"master": server.master, **mooncake_server.SETTINGS}
        self._empty: mooncake_server.Mooncake | None = None
        self._prefix = prefix

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        """Until the peers have offered their memory anew."""
        self._server.start()
        client = MooncakeClient(MooncakeSettings(**self._settings))
        probe = f"{self._prefix}-probe"
        until(lambda: client._store.put(probe, b"a page") == 0, "the store takes pages again")
        client.close()

    def freeze(self) -> None:
        self._server.pause()

    def hurry(self, engine: Any) -> None:
        """It always does."""

    def thaw(self) -> None:
        self._server.resume()

    def open(self, pools: Pools) -> StorageEngine:
        return StorageRegistry().open("mooncake", pools, key_prefix=self._prefix, **self._settings)

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Another master, to which nobody has given memory yet."""
        self._empty = mooncake_server.Mooncake(segment_bytes=0)
        self._settings["master"] = self._empty.master
        yield
        self._empty.add_peer(32 << 20)

    def end(self) -> None:
        if self._empty is not None:
            self._empty.stop()

    def shorten(self, pools: Pools, stored: Stored) -> None:
        client = MooncakeClient(MooncakeSettings(**self._settings))
        for pool in pools:
            for key in stored.get(pool.name, ()):
                name = f"{self._prefix}-{pool.format_digest[:8].hex()}-{key.hex()}"
                assert client.remove([name]) == [0]
                assert client._store.put(name, bytes(pool.value_bytes - 1)) == 0
        client.close()


class Hf3fsRig(StoreRig):
    """A real metadata service, and a directory for the pages."""

    keeps = True
    is_sized = True

    def __init__(self, service: hf3fs_service.MetadataService, folder: Path, rank: str) -> None:
        self._service = service
        self._folder = folder
        self._settings: dict[str, Any] = {
            **hf3fs_service.SETTINGS,
            "directory": str(folder),
            "rank": rank,
            "capacity_bytes": CAPACITY_BYTES,
        }

    def open(self, pools: Pools) -> StorageEngine:
        return StorageRegistry().open("hf3fs", pools, **(self._settings | {"metadata": self._service.url}))

    def kill(self) -> None:
        self._service.kill()

    def start(self) -> None:
        self._service.start()
        self.let_leases_end()

    def let_leases_end(self) -> None:
        self._service.let_pass()

    def freeze(self) -> None:
        frozen.freeze(self._service.process)

    def hurry(self, engine: Any) -> None:
        hf3fs_pages.wait_for_service(engine, BRIEF_S)
        hf3fs_pages.wait_for_file(engine, BRIEF_S)

    def thaw(self) -> None:
        frozen.thaw(self._service.process)

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Room for some pages of each pool."""
        roomy = self._settings
        self._settings = roomy | {"rank": f"{roomy['rank']}-small", "capacity_bytes": 20 << 10}
        yield
        self._settings = roomy

    def shorten(self, pools: Pools, stored: Stored) -> None:
        del pools, stored
        os.truncate(self._path, 100)

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._settings['rank']}.pages"


class Hf3fsMountRig(Hf3fsRig):
    """The same, where the directory is a real mount and the service is well: it is the mount's daemon that is not."""

    def __init__(self, service: hf3fs_service.MetadataService, mount: bind_mount.BindMount, rank: str) -> None:
        super().__init__(service, mount.point, rank)
        self._settings["mount"] = str(mount.point)
        self._mount = mount

    def kill(self) -> None:
        self._mount.kill()
        self._mount.unmount()

    def start(self) -> None:
        self._mount.start()

    def freeze(self) -> None:
        self._drop_cache()
        frozen.freeze(self._mount.daemon)

    def thaw(self) -> None:
        frozen.thaw(self._mount.daemon)

    def _drop_cache(self) -> None:
        """So that the next read asks the daemon."""
        descriptor = os.open(self._path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


class SimmRig(StoreRig):
    """A double."""

    keeps = False
    is_sized = False

    def __init__(self) -> None:
        self._server = SimmServer()
        self._module = SimmModule(self._server)

    def open(self, pools: Pools) -> StorageEngine:
        settings = SimmSettings(
            manager_address=self._server.address,
            connect_timeout_s=PATIENCE_S,
            request_timeout_ms=int(1000 * PATIENCE_S),
            retry_pause_s=0.1,
            bounce_bytes=1 << 16,
        )
        return SimmStorage(pools, settings, SimmClient(settings, self._module))

    def kill(self) -> None:
        self._server.kill()
        self._server.hang_up()

    def start(self) -> None:
        self._server.listen()
        self._server.restart()

    def freeze(self) -> None:
        self._server.state = State.FROZEN

    def hurry(self, engine: Any) -> None:
        del engine
        self._module.flags["clnt_sync_req_timeout_ms"] = str(int(1000 * BRIEF_S))

    def thaw(self) -> None:
        self._server.state = State.UP

    @contextmanager
    def filled(self) -> Iterator[None]:
        """It evicts nearly everything at once."""
        self._server.capacity_bytes = 2000
        yield
        self._server.capacity_bytes = 64 << 20

    def shorten(self, pools: Pools, stored: Stored) -> None:
        del pools, stored
        with self._server.lock:
            for name, value in self._server.values.items():
                self._server.values[name] = value[:-1]

    def __enter__(self) -> SimmRig:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.hang_up()
