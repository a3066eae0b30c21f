"""A rank that can be used: its file is open, and the metadata service knows it in the epoch that the file bears.

A rank's file on its mount: made, given its size, and marked with the epoch in which the metadata service knows it.

The mark is the file's last 4096 bytes. A file that was deleted, restored or is another one bears another mark or none; the
service then forgets what it knew. It is no seal of the pages: those carry their own. A file that is neither empty nor marked
may be somebody else's: the service takes it only if it knows the rank already.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import stat
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from unified_tree.controllers.storage.hf3fs.file_layout import TRAILER_BYTES, FileLayout
from unified_tree.controllers.storage.hf3fs.hf3fs_settings import Hf3fsSettings
from unified_tree.controllers.storage.hf3fs.metadata_client import MetadataClient
from unified_tree.controllers.storage.hf3fs.range_file import IoBatch, IoWorkers, PosixFile, RangeFile
from unified_tree.controllers.storage.hf3fs.usrbio_file import UsrbioFile
from unified_tree.terms.errors import ConfigurationError, StorageError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class OpenRank:
    """The file, the epoch that every question to the service must name, and how long a lease lasts."""

    file: RangeFile
    epoch: int
    lease_s: float


class RankOpener:
    """Opens a rank, the first time and again after its mount or the service lost it.

    Args:
        settings: where the file is, and how it is read.
        layout: of it.
        client: of the metadata service.
        workers: in whose threads the file system is asked.
        usrbio: in place of the module `hf3fs_fuse.io`, for tests.
    """

    def __init__(
        self, settings: Hf3fsSettings, layout: FileLayout, client: MetadataClient, workers: IoWorkers, usrbio: Any = None
    ) -> None:
        self._settings = settings
        self._layout = layout
        self._client = client
        self._workers = workers
        self._path = Path(settings.directory) / f"{settings.rank}.pages"
        self._usrbio = self._wanted_usrbio(usrbio)

    def open(self, *, first: bool) -> OpenRank:
        """The rank. The first time its file is made, and another layout replaced; later neither.

        Raises StorageError, after both of the settings' time-outs at the latest.
        """
        deadline = time.monotonic() + self._settings.io_timeout_s
        file = self._bounded(
            deadline, lambda: self._opened_file(first), lambda file: self._workers.close_descriptor(file.descriptor)
        )
        try:
            seen = self._bounded(deadline, file.epoch)
            opened = self._client.open(self._layout, seen, may_replace=first)
            if opened.lease_s <= self._settings.io_timeout_s:
                kind = ConfigurationError if first else StorageError
                raise kind(
                    f"hf3fs: io_timeout_s must be shorter than the service's lease of {opened.lease_s} s, "
                    f"which {self._settings.io_timeout_s} is not"
                )
            if seen != opened.epoch:
                self._bounded(deadline, lambda: file.mark(opened.epoch, preallocate=self._settings.preallocate))
            ranges = self._bounded(deadline, lambda: self._range_file(file.descriptor), lambda made: made.close())
        except BaseException:
            self._workers.close_descriptor(file.descriptor)
            raise
        return OpenRank(ranges, opened.epoch, opened.lease_s)

    def _opened_file(self, first: bool) -> RankFile:
        mount = self._settings.mount
        if mount and not os.path.ismount(mount):
            raise StorageError(f"hf3fs: nothing is mounted at {mount}")
        if mount and not Path(os.path.realpath(self._path.parent)).is_relative_to(os.path.realpath(mount)):
            raise StorageError(f"hf3fs: the directory {self._path.parent} is not on the mount {mount}")
        return RankFile(self._path, self._layout, may_make=first or bool(mount))

    def _range_file(self, descriptor: int) -> RangeFile:
        if self._usrbio is None:
            return self._posix_file(descriptor)
        mount = self._usrbio.extract_mount_point(str(self._path))
        if mount is None:
            if self._settings.io == "auto":
                return self._posix_file(descriptor)
            raise StorageError(f"hf3fs: {self._path} is not on a mount of 3FS, which usrbio needs; io can be posix")
        slot_bytes = max(region.stride_bytes for region in self._layout.regions.values())
        return UsrbioFile(self._usrbio, descriptor, mount, self._settings.ring_entries, slot_bytes, self._settings.close_wait_s)

    def _posix_file(self, descriptor: int) -> PosixFile:
        settings = self._settings
        return PosixFile(descriptor, self._workers, piece_bytes=settings.piece_bytes, share_bytes=settings.share_bytes)

    def _wanted_usrbio(self, given: Any) -> ModuleType | Any | None:
        if self._settings.io == "posix" or given is not None:
            return given if self._settings.io != "posix" else None
        try:
            return importlib.import_module("hf3fs_fuse.io")
        except ImportError as error:
            if self._settings.io == "auto":
                return None
            raise ConfigurationError(
                f"hf3fs: the module hf3fs_fuse cannot be imported ({error}); it is built with 3FS. io can be posix"
            ) from error

    def _bounded(
        self, deadline: float, call: Callable[[], Result], discard: Callable[[Result], object] = lambda _: None
    ) -> Result:
        """What a call of the file system returns or raises, if it does so in time; else it is discarded when it comes."""

        def run(batch: IoBatch[tuple[Result | None, BaseException | None]]) -> tuple[Result | None, BaseException | None]:
            try:
                result = call()
            except (OSError, StorageError, ValueError) as error:
                return None, error
            with batch.lock:
                if not batch.is_abandoned:
                    return result, None
            discard(result)
            return None, None

        batch = self._workers.run([run], deadline)
        with batch.lock:
            [answer] = batch.results
        if answer is None:
            raise StorageError(f"hf3fs: the file system does not answer within {self._settings.io_timeout_s} s: {self._path}")
        result, error = answer
        if isinstance(error, StorageError):
            raise error
        if error is not None:
            raise StorageError(f"hf3fs: {self._path} cannot be used: {error}") from error
        return result  # type: ignore[return-value]


_MARK = struct.Struct("<8sQQ")
_MAGIC = b"UT3FSfil"
_CHECKSUM = struct.Struct("<I")
UNMARKED = -1
"""In place of an epoch: the file holds something, and nothing shows that it is ours."""
_CANNOT = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV})


class RankFile:
    """An open file of this layout. These calls may block as long as the file system does.

    Args:
        path: of the file.
        layout: of its regions.
        may_make: make it if it is not there.

    Raises StorageError where it cannot be opened, or is no regular file.

    Attributes:
        descriptor: the caller's to close.
    """

    def __init__(self, path: Path, layout: FileLayout, *, may_make: bool) -> None:
        self._path = path
        self._layout = layout
        try:
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self.descriptor = os.open(path, flags | (os.O_CREAT if may_make else 0), 0o600)
        except OSError as error:
            raise StorageError(f"hf3fs: {path} cannot be opened: {error}") from error
        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            os.close(self.descriptor)
            raise StorageError(f"hf3fs: {path} is not a regular file")

    def epoch(self) -> int:
        """The epoch that the file bears; 0 for an empty one or another layout's, UNMARKED for one without a mark of ours.

        Raises StorageError.
        """
        try:
            size = os.fstat(self.descriptor).st_size
            mark = os.pread(self.descriptor, _MARK.size + _CHECKSUM.size, max(0, size - TRAILER_BYTES))
        except OSError as error:
            raise StorageError(f"hf3fs: {self._path} cannot be read: {error}") from error
        if not size:
            return 0
        if len(mark) < _MARK.size + _CHECKSUM.size or _checked(mark[: _MARK.size]) != mark:
            return UNMARKED
        magic, file_bytes, epoch = _MARK.unpack_from(mark)
        if magic != _MAGIC or file_bytes != size:
            return UNMARKED
        return int(epoch) if size == self._layout.file_bytes else 0

    def mark(self, epoch: int, *, preallocate: bool) -> None:
        """Give the file its size and let it bear an epoch. Raises StorageError.

        Args:
            preallocate: reserve its room on the disk, where the file system can.
        """
        wanted = self._layout.file_bytes
        mark = _checked(_MARK.pack(_MAGIC, wanted, epoch)).ljust(TRAILER_BYTES, b"\0")
        try:
            if os.fstat(self.descriptor).st_size != wanted:
                os.ftruncate(self.descriptor, wanted)
            if preallocate:
                _reserve_room(self.descriptor, wanted)
            os.pwrite(self.descriptor, mark, self._layout.trailer_at)
        except OSError as error:
            raise StorageError(f"hf3fs: {self._path} cannot be given {wanted} bytes: {error}") from error


def _reserve_room(descriptor: int, size_bytes: int) -> None:
    """The system's `fallocate`: `os.posix_fallocate` writes to every block where the file system has none."""
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if call(descriptor, 0, 0, size_bytes):
        number = ctypes.get_errno()
        if number not in _CANNOT:
            raise OSError(number, os.strerror(number))


def _checked(mark: bytes) -> bytes:
    return mark + _CHECKSUM.pack(zlib.crc32(mark))
