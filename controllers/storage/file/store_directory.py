"""Which tables a directory holds, and who may make, keep or delete one.

All decisions here are made while `lock` in the directory is held, and only when an engine is opened. A user of a table holds a
shared lock on its index file, so a table that can be locked exclusively is unused.

- A table is kept if its size is between half and all of what this engine would create, so a small change of the capacity or of
the pools loses nothing. Any other is emptied and created anew, unless it is in use and not too large.
- Tables of other pools (an older model's or another rank's) and of other versions count for the bound of the directory with
their disk use. While it is exceeded, unused ones are deleted, the longest unused first.
- Files with other names are never touched, nor files with such a name that are not a table of any version, because the index
file is missing or begins differently. They count for the bound all the same.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from unified_tree.controllers.storage.file.pool_table import PoolTable
from unified_tree.controllers.storage.file.table_settings import TableSettings
from unified_tree.controllers.storage.file.table_shape import HEADER_BYTES, MAGIC, VERSION, TableShape, shape_of
from unified_tree.controllers.storage.file.writer_lock import try_lock
from unified_tree.controllers.storage.stored_pool import StoredPool
from unified_tree.errors import ConfigurationError, StorageError

LOCK_NAME = "lock"
_TABLE_NAME = re.compile(r"([0-9a-f]{64}\.v[0-9]+)\.(?:index|pages)")
_STAT_BLOCK_BYTES = 512


class StoreDirectory:
    """Opens the tables of one engine.

    Args:
        path: of the directory, made if it is not there.
        bound_bytes: of all tables in it together.
        settings: of the engine.
    """

    def __init__(self, path: str, bound_bytes: int, settings: TableSettings) -> None:
        self.path = path
        self.bound_bytes = bound_bytes
        self._settings = settings

    def open(self, pools: Mapping[str, StoredPool], shapes: Mapping[str, TableShape]) -> dict[str, PoolTable]:
        """The pools' tables by name.

        Raises StorageError where the directory cannot be used, ConfigurationError where other processes use so much of it
        that the bound cannot be kept. Cost: O(tables in the directory), however many values are in them.
        """
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            with self._locked(), ExitStack() as opened:
                tables: dict[str, PoolTable] = {}
                own_bytes = 0
                for name, pool in pools.items():
                    index, pages, shape = self._open_table(pool, shapes[name], opened)
                    tables[name] = PoolTable(index, pages, shape, self._settings)
                    own_bytes += shape.disk_bytes
                self._make_room({_stem(pool) for pool in pools.values()}, own_bytes)
                opened.pop_all()
        except OSError as error:
            raise StorageError(
                f"file storage {self.path} cannot be opened: {error}; give a directory on a local file system in which "
                f"this process may make and write files"
            ) from error
        return tables

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock, wait_s = _open(os.path.join(self.path, LOCK_NAME)), self._settings.limits.open_wait_s
        try:
            if not try_lock(lock, fcntl.LOCK_EX, until=time.monotonic() + wait_s):
                raise StorageError(f"file storage {self.path}: another process has been opening it for {wait_s:g} s")
            yield
        finally:
            os.close(lock)

    def _open_table(self, pool: StoredPool, wanted: TableShape, opened: ExitStack) -> tuple[int, int, TableShape]:
        """Descriptors of index and pages, and the shape that the table has now."""
        stem = os.path.join(self.path, _stem(pool))
        index, pages = _open(f"{stem}.index"), -1
        opened.callback(os.close, index)
        pages = _open(f"{stem}.pages")
        opened.callback(os.close, pages)
        found = shape_of(os.pread(index, HEADER_BYTES, 0), pool)
        if found is None or not wanted.slots // 2 <= found.slots <= wanted.slots:
            if try_lock(index, fcntl.LOCK_EX):
                for descriptor in (index, pages):
                    os.ftruncate(descriptor, 0)
                os.pwrite(index, wanted.header(pool.format_digest), 0)
                found = wanted
            elif found is None:
                raise StorageError(
                    f"file storage {self.path}: {stem}.index is in use, and its first bytes are damaged; it can be made "
                    f"anew when the processes that use it have ended"
                )
            elif found.slots > wanted.slots:
                raise ConfigurationError(
                    f"{pool.name}: another process uses {self.path} with room for {found.slots} values, and the capacity "
                    f"given here is enough for {wanted.slots} only; give both the same"
                )
        if not try_lock(index, fcntl.LOCK_SH):
            raise StorageError(f"file storage {self.path}: {stem}.index is locked by a program that is not this library")
        os.utime(index)
        return index, pages, found

    def _make_room(self, own: set[str], own_bytes: int) -> None:
        """Delete tables of other pools until all fit into the bound."""
        others = self._others(own)
        total = own_bytes + sum(size for _, size in others.values())
        for stem, (_, size) in sorted(others.items(), key=lambda item: item[1][0]):
            if total <= self.bound_bytes:
                return
            if self._delete(stem):
                total -= size
        if total > self.bound_bytes:
            raise ConfigurationError(
                f"other processes use {total - own_bytes} bytes of {self.path} for other pools, which with the {own_bytes} "
                f"of this one is more than the capacity of {self.bound_bytes}; give a directory to each, or say by `shares` "
                f"how many divide this one"
            )

    def _others(self, own: set[str]) -> dict[str, tuple[float, int]]:
        """When tables that are not this engine's were last written to, and the bytes that they occupy, by stem."""
        found: dict[str, tuple[float, int]] = {}
        with os.scandir(self.path) as files:
            for file in files:
                match = _TABLE_NAME.fullmatch(file.name)
                if match and match[1] not in own and file.is_file(follow_symlinks=False):
                    status = file.stat(follow_symlinks=False)
                    time_s, size = found.get(match[1], (0.0, 0))
                    found[match[1]] = (max(time_s, status.st_mtime), size + status.st_blocks * _STAT_BLOCK_BYTES)
        return found

    def _delete(self, stem: str) -> bool:
        """Delete a table that nobody uses; whether it was one. The index goes last, for it shows that both are ours."""
        paths = [os.path.join(self.path, f"{stem}.{kind}") for kind in ("pages", "index")]
        if not os.path.lexists(paths[1]):
            return False
        index = _open(paths[1])
        try:
            start = os.pread(index, len(MAGIC) - 1, 0)  # without the version
            if (start and start != MAGIC[:-1]) or not try_lock(index, fcntl.LOCK_EX):
                return False
            for path in paths:
                if os.path.lexists(path):
                    os.unlink(path)
        finally:
            os.close(index)
        return True


def _stem(pool: StoredPool) -> str:
    return f"{pool.format_digest.hex()}.v{VERSION}"


def _open(path: str) -> int:
    """A regular file, made if it is not there, that only its owner may read and write. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor
