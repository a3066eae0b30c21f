"""A store in a directory of a local file system, which several processes may use at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from unified_tree.controllers.storage.file.file_limits import FileFaults, FileLimits, TableSettings
from unified_tree.controllers.storage.file.pool_table import Seal, Verify
from unified_tree.controllers.storage.file.store_directory import StoreDirectory
from unified_tree.controllers.storage.file.table_index import shapes_within
from unified_tree.controllers.storage.guarded_storage import GuardedStorage
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome, StoredPool
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError, StorageError

_LARGEST_VALUE_BYTES = 1 << 30


class FileStorage(GuardedStorage):
    """A StorageEngine over files, which evicts the least recently used of 32 values.

    Values are atomic: a process that is killed while writing leaves the previous value. A full disk or an error of the file
    system is a miss and one logged warning; disk use stays bounded. The files are sparse, because values are aligned to large
    blocks; copy them with a program that supports sparse files. See `pool_table` for the files, `store_directory` for what
    becomes of tables of another size, of another version or of other pools.

    Args:
        pools: what it keeps.
        directory: its path; made, for this user only, if it is not there. Only tables and a file `lock` are written there.
        capacity_bytes: bound of all tables in the directory, other pools' included; or, to be exact, of each pool by its name.
            A single number is divided equally among pools with values of 64 KiB and more, and smaller values get as many places
            as there would be for values of 64 KiB. What the file system takes to note where pieces of its files are, on ext4
            4096 bytes for 340 values, is not counted.
        shares: engines with other pools (other ranks) that divide directory and capacity; each gets as much.
        sync: whether put waits until values would survive a power failure: two flushes of the disk for some pages together.
        clock_ns: nanoseconds since 1970, the same for all processes of the directory.
        limits: how long it waits, and how much it does at once.

    Raises ConfigurationError for invalid options, for a capacity that does not hold one value of every pool, and if other
    processes use so much of the directory that the capacity cannot be kept. Raises StorageError, naming the path, if the
    directory cannot be used.

    `exists` costs one `pread` of 2 KiB a key. Puts are DROPPED while the disk is full, or while another process writes for
    longer than the limit; `remove` and `clear` then raise StorageError. `clear` takes what other processes put as well. The
    engine is degraded while the last write or the last read failed. In a fork of the process that made it, `put`, `remove` and
    `clear` raise StorageError. What is stored stays in the directory when the engine is closed.
    """

    def __init__(
        self,
        pools: Iterable[StoredPool],
        directory: str | os.PathLike[str],
        capacity_bytes: int | Mapping[str, int],
        *,
        shares: int = 1,
        sync: bool = False,
        clock_ns: Callable[[], int] = time.time_ns,
        limits: FileLimits | None = None,
    ) -> None:
        super().__init__("file", pools)
        if type(sync) is not bool:
            raise ConfigurationError(f"sync must be True or False, not {repr_of(sync)}")
        if not callable(clock_ns):
            raise ConfigurationError(f"clock_ns must be a function, not {repr_of(clock_ns)}")
        if limits is not None and type(limits) is not FileLimits:
            raise ConfigurationError(f"limits must be FileLimits, not {repr_of(limits)}")
        path = _path_of(directory)
        bound_bytes, shapes = shapes_within(capacity_bytes, shares, self._pools)
        self._faults = FileFaults(path)
        settings = TableSettings(sync=sync, clock_ns=clock_ns, limits=limits or FileLimits(), faults=self._faults)
        self._directory = StoreDirectory(path, bound_bytes, settings)
        self._tables = self._directory.open(self._pools, shapes)

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""
        return Capabilities(zero_copy=True, largest_value_bytes=_LARGEST_VALUE_BYTES, survives_restart=True)

    def get_verified(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview], verify: Verify) -> list[Outcome]:
        """See SealingEngine.get_verified."""
        return self._guarded_get(pool, keys, pages, lambda: self._tables[pool].get(keys, pages, verify))

    def put_sealed(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview], seal: Seal) -> list[Outcome]:
        """See SealingEngine.put_sealed."""
        return self._guarded_put(pool, keys, pages, lambda: self._tables[pool].writer.put(keys, pages, seal), writable=True)

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool | None]:
        return self._tables[pool].has(keys)

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        return self._tables[pool].get(keys, pages, None)

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        return self._tables[pool].writer.put(keys, pages, None)

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        if not self._tables[pool].writer.remove(keys):
            raise StorageError(f"{pool}: values could not be removed: the file system fails, or somebody is writing")

    def _clear(self) -> None:
        left = [name for name, table in self._tables.items() if not table.writer.clear()]
        if left:
            raise StorageError(f"{', '.join(left)}: could not be cleared: the file system fails, or somebody is writing")

    def _is_degraded(self) -> bool:
        return self._faults.is_failing

    def _freed_bytes(self) -> int:
        return self._directory.freed_bytes

    def _close(self) -> None:
        for table in self._tables.values():
            table.close()


def _path_of(directory: object) -> str:
    path = os.fspath(directory) if isinstance(directory, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigurationError(f"directory must be a path, not {repr_of(directory)}")
    return os.path.abspath(path)
