"""A snapshot while it is written: a file beside the one that counts, which it replaces in one step when it is whole."""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from unified_tree.controllers.storage.hf3fs.metadata import change_record

SNAPSHOT_NAME = "metadata"
_JOURNAL_NAME = re.compile(r"journal\.([0-9]{1,19})")
_U32 = struct.Struct("<I")


class SnapshotFile:
    """The snapshot of one generation, and the file of the journal that begins with it. One call at a time, from any thread.

    Args:
        directory: of the state.
        generation: larger than that of any journal in the directory.
        flush_bytes: that are written between two flushes, so that neither the last one nor the journal's waits for all of it.

    `make`, `write` and `finish` block as long as the disk does, and raise OSError; then call `abandon`.
    """

    def __init__(self, directory: Path, generation: int, flush_bytes: int) -> None:
        self.generation = generation
        self.size_bytes = 0
        self.journal = -1
        self._directory = directory
        self._flush_bytes = flush_bytes
        self._unflushed_bytes = 0
        self._checksum = 0
        self._descriptor = -1
        self._new = directory / f"{SNAPSHOT_NAME}.new"

    def make(self) -> None:
        """Make the empty files."""
        path = journal_path(self._directory, self.generation)
        if path.exists() and not _is_ours(path):
            raise FileExistsError(f"{path} is there already, and no journal of this service")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self.journal = os.open(path, flags | os.O_APPEND, 0o600)
        self._descriptor = os.open(self._new, flags, 0o600)
        self._flush_directory()

    def taken_journal(self) -> int:
        """The journal's descriptor, which is the caller's from now on."""
        taken, self.journal = self.journal, -1
        return taken

    def write(self, data: bytes) -> None:
        """Write what comes next."""
        self._checksum = zlib.crc32(data, self._checksum)
        write_all(self._descriptor, data)
        self.size_bytes += len(data)
        self._unflushed_bytes += len(data)
        if self._unflushed_bytes >= self._flush_bytes:
            os.fdatasync(self._descriptor)
            self._unflushed_bytes = 0

    def finish(self) -> None:
        """Let it count, from when it is on the disk; the journals before it go."""
        write_all(self._descriptor, _U32.pack(self._checksum))
        os.fsync(self._descriptor)
        self._new.rename(self._directory / SNAPSHOT_NAME)
        self._flush_directory()
        for generation in journals(self._directory):
            path = journal_path(self._directory, generation)
            if generation < self.generation and _is_ours(path):
                path.unlink()
        self._close()

    def abandon(self) -> None:
        """Close its files; what counted before still does. The journal stays where it was taken."""
        self._close()
        if self.journal >= 0:
            os.close(self.journal)
            self.journal = -1

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _flush_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def journal_path(directory: Path, generation: int) -> Path:
    """Where the journal of a generation lies."""
    return directory / f"journal.{generation}"


def journals(directory: Path) -> Iterator[int]:
    """Generations of which there is a file by the name of a journal, in no order."""
    for name in os.listdir(directory):
        found = _JOURNAL_NAME.fullmatch(name)
        if found and name == f"journal.{int(found[1])}":
            yield int(found[1])


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _is_ours(path: Path) -> bool:
    """Whether a file is a journal of this service, or empty as one is that was not begun."""
    with path.open("rb") as file:
        start = file.read(change_record.BEGUN_BYTES)
    return not start or change_record.beginning(start) is not None
