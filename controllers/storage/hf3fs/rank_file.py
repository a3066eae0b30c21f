"""A rank's file on its mount: made, given its size, and marked with the epoch in which the metadata service knows it.

The mark is the file's last 4096 bytes. A file that was deleted, restored or is another one bears another mark or none; the
service then forgets what it knew. It is no seal of the pages: those carry their own. A file that is neither empty nor marked
may be somebody else's: the service takes it only if it knows the rank already.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import zlib
from pathlib import Path

from unified_tree.controllers.storage.hf3fs.file_layout import TRAILER_BYTES, FileLayout
from unified_tree.terms.errors import StorageError

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
