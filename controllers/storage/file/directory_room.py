"""What the tables of a directory take on the disk, and whether one may take more.

What counts is what is used, not what a table could hold. So formats, models and capacities share a directory until their pages
fill it. When it is full, tables that no process uses go, the one that was unused for longest first. If none is left, a table
takes no further room: in its own buckets new values replace the least recently used ones.

Where all tables together cannot exceed the bound, which is so for one engine alone and for `shares`, nothing is asked before a
write. Else a writer holds `lock` while it takes new room, so that two of them do not take the same.

In a table one writes at a time: among threads by a lock, among processes by `flock`, which a killed process releases. The
kernel lets one thread write to a file at a time anyway (ext4, XFS), so finer locks would buy little and cost two calls a page.
A writer holds it for a few milliseconds; one that was stopped in between costs the others one wait, and then nothing but their
pages until it goes on.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from unified_tree.controllers.storage.file.file_limits import FileLimits
from unified_tree.controllers.storage.file.table_index import BLOCK_BYTES, MAGIC, TableShape
from unified_tree.controllers.storage.rate_limited_log import LOGGER
from unified_tree.terms.errors import StorageError

LOCK_NAME = "lock"
NEW = ".new"
"""Ends the name of a file that is being filled under the lock of the directory; of no use to anybody else."""
_TABLE_NAME = re.compile(r"([0-9a-f]{64}\.v[0-9]+)\.(index|pages)(\.new)?")
_STAT_BLOCK_BYTES = 512
_NOTES_BYTES = 2 * BLOCK_BYTES
"""What the file system may take to note where a new piece of both files is."""
_SIZES = struct.Struct("<QQQ")
_SIZES_AT = len(MAGIC)


@dataclass(slots=True)
class _Table:
    """What is known of a table that is not this engine's.

    Attributes:
        used_at_s: when it was last written to or read.
        used_bytes: on the disk.
    """

    used_at_s: float = 0.0
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OwnTable:
    """An open table of this engine.

    Attributes:
        index, pages: descriptors.
        shape: of the table.
        limit_bytes: that it may take; less than its shape would if it was made for a larger capacity.
    """

    index: int
    pages: int
    shape: TableShape
    limit_bytes: int

    @property
    def used_bytes(self) -> int:
        """What it takes on the disk."""
        return _used(os.fstat(self.index)) + _used(os.fstat(self.pages))


class DirectoryRoom:
    """The room in one directory, for one engine. Thread-safe but for `own`, which is filled when the engine is opened.

    Args:
        path: of the directory.
        bound_bytes: of all tables in it together.
        limits: how long to wait for other processes; after a wait in vain a writer waits no more, until it got the lock once.

    Attributes:
        own: the engine's tables by stem.
        freed_bytes: of tables that were deleted or made anew, to keep the bound.
    """

    def __init__(self, path: str, bound_bytes: int, limits: FileLimits) -> None:
        self._path = path
        self._bound_bytes = bound_bytes
        self._limits = limits
        self._threads = Lock()
        self._sure_at_ns: int | None = None
        self._was_in_vain = False
        self.own: dict[str, OwnTable] = {}
        self.freed_bytes = 0

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the lock of the directory; whether it was to be had in time for an opening. Raises OSError."""
        with self._held(self._limits.open_wait_s) as got:
            yield got

    @contextmanager
    def _held(self, wait_s: float) -> Iterator[bool]:
        lock = open_file(os.path.join(self._path, LOCK_NAME))
        try:
            yield try_lock(lock, fcntl.LOCK_EX, until=time.monotonic() + wait_s)
        finally:
            os.close(lock)

    @contextmanager
    def growth(self, table: OwnTable, value_count: int) -> Iterator[bool]:
        """Whether a table may take new room on the disk for so many values, while this is open. Raises OSError.

        Deletes tables that no process uses, if that makes the room. Cost: a `stat` where the bound cannot be exceeded; else one
        for each table of the directory.
        """
        if not value_count or self._changed_ns() == self._sure_at_ns:
            yield True
            return
        with self._threads, self._held(0 if self._was_in_vain else self._limits.write_wait_s) as got:
            self._was_in_vain = not got
            yield got and self._fits(table, value_count * table.shape.grown_bytes + _NOTES_BYTES)

    def _changed_ns(self) -> int | None:
        """When the directory changed; what it was when it was sure, if it is gone: then no process can use it."""
        try:
            return os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            return self._sure_at_ns

    def _fits(self, table: OwnTable, more_bytes: int) -> bool:
        changed_ns = self._changed_ns()
        others = self._others()
        possible = sum(min(own.limit_bytes, own.shape.disk_bytes) for own in self.own.values())
        is_bounded = all(own.shape.disk_bytes <= own.limit_bytes for own in self.own.values())
        if is_bounded and possible + sum(self._possible(stem, other) for stem, other in others.items()) <= self._bound_bytes:
            self._sure_at_ns = changed_ns
            return True
        if table.shape.disk_bytes > table.limit_bytes and table.used_bytes + more_bytes > table.limit_bytes:
            return False
        return self.make_room(more_bytes, others)

    def make_room(self, more_bytes: int, others: dict[str, _Table] | None = None) -> bool:
        """Delete tables that no process uses, the one unused for longest first, until so much more fits into the bound; whether
        it does. If it cannot, none is deleted. The lock of the directory is held. Raises OSError.
        """
        others = self._others() if others is None else others
        total = sum(own.used_bytes for own in self.own.values()) + sum(other.used_bytes for other in others.values())
        going: list[tuple[int, str]] = []
        try:
            for stem, other in sorted(others.items(), key=lambda item: item[1].used_at_s):
                if total + more_bytes <= self._bound_bytes:
                    break
                index = self._taken(stem)
                if index is not None:
                    going.append((index, stem))
                    total -= other.used_bytes
            if total + more_bytes > self._bound_bytes:
                return False
            for _, stem in going:
                self._delete(stem)
                what = f"the table {stem[:16]}… of another format or version, unused for longest, is deleted"
                self.gave_up(others[stem].used_bytes, what)
            return True
        finally:
            for index, _ in going:
                os.close(index)

    def held_bytes(self, own: Iterable[str]) -> int:
        """What is taken by tables other than those with these stems, and cannot be deleted now: they are in use, or none of
        ours. The lock of the directory is held. Raises OSError.
        """
        total = 0
        for stem, other in self._others().items():
            if stem not in own:
                index = self._taken(stem)
                if index is None:
                    total += other.used_bytes
                else:
                    os.close(index)
        return total

    def gave_up(self, size_bytes: int, what: str) -> None:
        """Say that something was given up to keep the bound."""
        self.freed_bytes += size_bytes
        LOGGER.warning("file storage %s: %s: %d bytes; the bound is %d bytes", self._path, what, size_bytes, self._bound_bytes)

    def forget_unfinished(self) -> None:
        """Delete what a killed process was filling. The lock of the directory is held. Raises OSError."""
        for name in os.listdir(self._path):
            match = _TABLE_NAME.fullmatch(name)
            if match and match[3]:
                os.unlink(os.path.join(self._path, name))

    def _others(self) -> dict[str, _Table]:
        """The tables that are not this engine's, by stem."""
        found: dict[str, _Table] = {}
        with os.scandir(self._path) as files:
            for file in files:
                match = _TABLE_NAME.fullmatch(file.name)
                if match and match[1] not in self.own and file.is_file(follow_symlinks=False):
                    status = file.stat(follow_symlinks=False)
                    table = found.setdefault(match[1], _Table())
                    table.used_at_s = max(table.used_at_s, status.st_mtime)
                    table.used_bytes += _used(status)
        return found

    def _possible(self, stem: str, table: _Table) -> int:
        """What a table can take on the disk, whoever writes to it; what it takes now if it is no table of this version."""
        try:
            index = os.open(os.path.join(self._path, f"{stem}.index"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return table.used_bytes
        try:
            start = os.pread(index, _SIZES_AT + _SIZES.size, 0)
        finally:
            os.close(index)
        if len(start) < _SIZES_AT + _SIZES.size or not start.startswith(MAGIC):
            return table.used_bytes
        ways, buckets, value_bytes = _SIZES.unpack_from(start, _SIZES_AT)
        return max(table.used_bytes, TableShape(ways=ways, buckets=buckets, value_bytes=value_bytes).disk_bytes)

    def _taken(self, stem: str) -> int | None:
        """A locked descriptor of a table's index, so that no process begins to use it; None if it is in use, or no table."""
        path = os.path.join(self._path, f"{stem}.index")
        if not os.path.lexists(path):
            return None
        index = open_file(path)
        try:
            start = os.pread(index, len(MAGIC) - 1, 0)  # without the version
            is_ours = (not start or start == MAGIC[:-1]) and try_lock(index, fcntl.LOCK_EX)
        except BaseException:
            os.close(index)
            raise
        if not is_ours:
            os.close(index)
            return None
        return index

    def _delete(self, stem: str) -> None:
        """Delete a table that is taken. The index goes last, for it shows that both are ours."""
        for kind in ("pages", "index"):
            path = os.path.join(self._path, f"{stem}.{kind}")
            if os.path.lexists(path):
                os.unlink(path)


def open_file(path: str) -> int:
    """A regular file, made if it is not there, that only its owner may read and write. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


def _used(status: os.stat_result) -> int:
    return status.st_blocks * _STAT_BLOCK_BYTES


_STEP_S = 0.0005


class WriterLock:
    """The exclusive lock to write to one table.

    Args:
        descriptor: of an open file that is locked for nothing else; not owned.
        wait_s: how long to wait for others; 0 after a wait that failed.
    """

    def __init__(self, descriptor: int, wait_s: float) -> None:
        self._descriptor = descriptor
        self._wait_s = wait_s
        self._process = os.getpid()
        self._threads = threading.Lock()
        self._was_in_vain = False

    def acquire(self) -> bool:
        """Whether the lock was acquired. Raises StorageError in a fork of the process that opened the table, because parent and
        child would hold the lock at the same time; OSError if the file system has no locks.
        """
        if os.getpid() != self._process:
            raise StorageError("this file storage was opened before the process was forked; open it anew in the new process")
        end = time.monotonic() + (0 if self._was_in_vain else self._wait_s)
        if not self._threads.acquire(timeout=0 if self._was_in_vain else self._wait_s):
            return False
        try:
            got = try_lock(self._descriptor, fcntl.LOCK_EX, until=end)
        except OSError:
            self._threads.release()
            raise
        self._was_in_vain = not got
        if not got:
            self._threads.release()
        return got

    def release(self) -> None:
        """Release the lock."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()


def try_lock(descriptor: int, kind: int, *, until: float | None = None) -> bool:
    """Lock a file (`fcntl.LOCK_EX` or `LOCK_SH`), trying again until `time.monotonic()` is `until`; whether it was locked."""
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if until is None or time.monotonic() >= until:
                return False
            time.sleep(_STEP_S)
        else:
            return True
