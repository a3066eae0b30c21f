"""Which tables a directory holds, and who may make, keep or delete one.

All decisions here are made while `lock` in the directory is held, and only when an engine is opened. A user of a table holds a
shared lock on its index file, so a table that can be locked exclusively is unused.

- A table is kept if its size is between half and all of what this engine would create, so a small change of the capacity or of
the pools loses nothing. An unused one of up to twice the size is kept, too, if what is in it fits; it may grow up to the new
capacity. For any other an unused table makes place for a new one, into which its values move, the most recently used first, as
many as fit and as `FileLimits.move_bytes` allows.
- Tables of other pools (an older model's or another rank's) and of other versions count for the bound of the directory with
what they take on the disk. When it is reached, `directory_room` says what goes.
- Files with other names are never touched, nor files with such a name that are not a table of any version, because the index
file is missing or begins differently. They count for the bound all the same.

What is given up here is logged and counted (`StorageStats.freed_bytes`).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from unified_tree.controllers.storage.file.directory_room import NEW, DirectoryRoom, OwnTable, open_file, try_lock
from unified_tree.controllers.storage.file.file_limits import TableSettings
from unified_tree.controllers.storage.file.pool_table import SPARE_WAYS, PoolTable
from unified_tree.controllers.storage.file.table_entry import ENTRY_BYTES, entry, is_valid, last_use
from unified_tree.controllers.storage.file.table_index import HEADER_BYTES, VERSION, TableShape, shape_of
from unified_tree.controllers.storage.storage_engine import StoredPool
from unified_tree.terms.errors import ConfigurationError, StorageError


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
        self._room = DirectoryRoom(path, bound_bytes, settings.limits)

    @property
    def freed_bytes(self) -> int:
        """What was given up so far to keep the bound."""
        return self._room.freed_bytes

    def open(self, pools: Mapping[str, StoredPool], shapes: Mapping[str, TableShape]) -> dict[str, PoolTable]:
        """The pools' tables by name.

        Raises StorageError where the directory cannot be used, ConfigurationError where other processes use so much of it
        that no value fits beside it. Cost: O(tables in the directory), however many values are in them, unless values move.
        """
        room, tables = self._room, dict[str, PoolTable]()
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            with room.locked() as got, _Descriptors() as opened:
                if not got:
                    wait_s = self._settings.limits.open_wait_s
                    raise StorageError(f"file storage {self.path}: another process has been opening it for {wait_s:g} s")
                room.forget_unfinished()
                self._check_room(pools, shapes)
                found = {name: self._find(pool, shapes[name], opened) for name, pool in pools.items()}
                for name, pool in pools.items():  # nothing was changed so far, and nothing is refused from here on
                    table = self._open_table(pool, shapes[name], found[name], opened)
                    room.own[_stem(pool)] = table
                    tables[name] = PoolTable(table, room, self._settings)
                empty = [own for own in room.own.values() if os.fstat(own.pages).st_blocks == 0]
                room.make_room(sum(own.shape.grown_bytes for own in empty))
                now = time.time_ns()
                os.utime(self.path, ns=(now, now))  # others see that there is a table more that may grow
                opened.keep()
        except OSError as error:
            raise StorageError(
                f"file storage {self.path} cannot be opened: {error}; give a directory on a local file system in which "
                f"this process may make and write files"
            ) from error
        return tables

    def _find(self, pool: StoredPool, wanted: TableShape, opened: _Descriptors) -> _Found:
        """The table of a pool as it is. Raises as `open` if it would have to be changed, and is in use."""
        stem = os.path.join(self.path, _stem(pool))
        index, pages = opened.open(f"{stem}.index"), opened.open(f"{stem}.pages")
        shape = shape_of(os.pread(index, HEADER_BYTES, 0), pool)
        is_alike = shape is not None and wanted.slots // 2 <= shape.slots <= wanted.slots
        if not is_alike and not try_lock(index, fcntl.LOCK_EX):
            self._check_in_use(pool, stem, shape, wanted)
            is_alike = True
        return _Found(stem=stem, index=index, pages=pages, shape=shape, is_to_stay=is_alike)

    def _open_table(self, pool: StoredPool, wanted: TableShape, found: _Found, opened: _Descriptors) -> OwnTable:
        """The table of a pool, made anew or of another size if need be."""
        index, pages, shape, limit_bytes = found.index, found.pages, found.shape, wanted.disk_bytes
        old = OwnTable(index, pages, shape or wanted, limit_bytes)
        if shape is None:
            if old.used_bytes:
                what = f"{pool.name}: the table has no index that can be read, so it is made anew"
                self._room.gave_up(old.used_bytes, what)
            _make_anew(index, pages, wanted, pool)
            shape = wanted
        elif not found.is_to_stay and (not wanted.slots <= shape.slots <= 2 * wanted.slots or old.used_bytes > limit_bytes):
            index, pages = self._moved(pool, found.stem, old, wanted, opened)
            shape = wanted
        if not try_lock(index, fcntl.LOCK_SH):
            raise StorageError(f"file storage {self.path}: {found.stem}.index is locked by a program that is not this library")
        os.utime(index)
        return OwnTable(index, pages, shape, limit_bytes)

    def _check_in_use(self, pool: StoredPool, stem: str, found: TableShape | None, wanted: TableShape) -> None:
        """Raise unless a table of another size can be used together with the process that uses it now."""
        if found is None:
            raise StorageError(
                f"file storage {self.path}: {stem}.index is in use, and its first bytes are damaged; it can be made "
                f"anew when the processes that use it have ended"
            )
        if found.slots > wanted.slots:
            raise ConfigurationError(
                f"{pool.name}: another process uses {self.path} with room for {found.slots} values, and the capacity "
                f"given here is enough for {wanted.slots} only; give both the same"
            )

    def _moved(self, pool: StoredPool, stem: str, old: OwnTable, wanted: TableShape, opened: _Descriptors) -> tuple[int, int]:
        """A new table in the place of an unused one, with its most recently used values; both descriptors."""
        new_index, new_pages = (opened.open(f"{stem}.{kind}{NEW}") for kind in ("index", "pages"))
        _make_anew(new_index, new_pages, wanted, pool)
        new = OwnTable(new_index, new_pages, wanted, wanted.disk_bytes)
        old_bytes = old.used_bytes
        moved, left = move_values(old, new, self._settings)
        os.unlink(f"{stem}.index")  # without an index there is no table, whatever is killed before the next two calls
        for kind in ("pages", "index"):
            os.rename(f"{stem}.{kind}{NEW}", f"{stem}.{kind}")
        opened.close(old.index)
        opened.close(old.pages)
        if left:
            lost_bytes = max(0, old_bytes - new.used_bytes)
            what = f"{pool.name}: the table has another size now; {moved} values moved and {left} were given up, the oldest"
            self._room.gave_up(lost_bytes, what)
        return new_index, new_pages

    def _check_room(self, pools: Mapping[str, StoredPool], shapes: Mapping[str, TableShape]) -> None:
        """Raise ConfigurationError if what others hold leaves no room for a value of every pool; nothing was changed then."""
        need_bytes = sum(HEADER_BYTES + shape.grown_bytes for shape in shapes.values())
        held_bytes = self._room.held_bytes({_stem(pool) for pool in pools.values()})
        if held_bytes and held_bytes + need_bytes > self.bound_bytes:
            raise ConfigurationError(
                f"other processes use {held_bytes} bytes of {self.path} for other pools, which with {need_bytes} for one value "
                f"of each pool is more than the capacity of {self.bound_bytes}; give a directory to each, or say by `shares` "
                f"how many divide this one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The files of a table before anything was changed.

    Attributes:
        stem: their path without its end.
        index, pages: descriptors.
        shape: None if there is no table that can be read.
        is_to_stay: it is used as it is; else it is locked exclusively.
    """

    stem: str
    index: int
    pages: int
    shape: TableShape | None
    is_to_stay: bool


class _Descriptors:
    """Files that are closed again unless the opening of the engine succeeds."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def open(self, path: str) -> int:
        """See `open_file`."""
        self._open.append(open_file(path))
        return self._open[-1]

    def close(self, descriptor: int) -> None:
        """Close one now."""
        self._open.remove(descriptor)
        os.close(descriptor)

    def keep(self) -> None:
        """They belong to the engine now."""
        self._open.clear()

    def __enter__(self) -> _Descriptors:
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in self._open:
            os.close(descriptor)


def _make_anew(index: int, pages: int, shape: TableShape, pool: StoredPool) -> None:
    for descriptor in (index, pages):
        os.ftruncate(descriptor, 0)
    os.pwrite(index, shape.header(pool.format_digest), 0)


def _stem(pool: StoredPool) -> str:
    return f"{pool.format_digest.hex()}.v{VERSION}"


_READ_BYTES = 1 << 20


def move_values(old: OwnTable, new: OwnTable, settings: TableSettings) -> tuple[int, int]:
    """Copy values of one table to another that is empty; how many, and how many did not fit or could not be read or written.

    Raises OSError if the index cannot be read. Cost: O(entries of the old table), and at most `move_bytes` of values.
    """
    shape = new.shape
    most = settings.limits.move_bytes // shape.written_bytes
    kept_ways = shape.ways - 1 if shape.ways >= SPARE_WAYS else shape.ways
    taken: dict[int, int] = {}
    found = sorted(_entries(old), reverse=True)
    moved = 0
    page = memoryview(bytearray(shape.value_bytes))
    padding = bytes(shape.written_bytes - shape.value_bytes)
    for generation, (used_ns, old_slot, key) in enumerate(found, start=1):
        bucket = int.from_bytes(key[:8], "little") % shape.buckets
        way = taken.get(bucket, 0)
        if way == kept_ways or moved == most:
            continue
        slot = bucket * shape.ways + way
        try:
            if os.preadv(old.pages, (page,), old_slot * old.shape.stride_bytes) != shape.value_bytes:
                continue
            if os.pwritev(new.pages, (page, padding), slot * shape.stride_bytes) != shape.written_bytes:
                break
            os.pwrite(new.index, entry(key, generation, slot, used_ns), HEADER_BYTES + slot * ENTRY_BYTES)
        except OSError as error:
            settings.faults.failed("write", error)
            break
        taken[bucket] = way + 1
        moved += 1
    return moved, len(found) - moved


def _entries(table: OwnTable) -> Iterator[tuple[int, int, bytes]]:
    """Last use, slot and key of every valid entry."""
    slot, slots = 0, table.shape.slots
    while slot < slots:
        read = os.pread(table.index, min(_READ_BYTES, (slots - slot) * ENTRY_BYTES), HEADER_BYTES + slot * ENTRY_BYTES)
        if len(read) < ENTRY_BYTES:
            return
        for at in range(0, len(read) // ENTRY_BYTES * ENTRY_BYTES, ENTRY_BYTES):
            one = read[at : at + ENTRY_BYTES]
            if any(one[:8]) and is_valid(one, slot):
                yield last_use(one), slot, one[:32]
            slot += 1
