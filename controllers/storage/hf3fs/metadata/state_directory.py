"""The metadata service's state on disk: a snapshot, and a journal of what changed since.

`metadata` is the snapshot of some generation g and `journal.g` what followed. A new snapshot is written beside the old one,
flushed and renamed over it; with it the old journal counts for nothing. Whatever the process was doing when it was killed,
what is there is one snapshot and the changes up to the last that was answered. After a power failure the journal's end may
be missing, unless it is flushed for every change (`sync`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from unified_tree.controllers.storage.hf3fs.metadata import change_record
from unified_tree.controllers.storage.hf3fs.metadata.rank_image import RankImage, packed, unpacked
from unified_tree.errors import StorageError

_SMALLEST_JOURNAL_BYTES = 16 << 20


class StateDirectory:
    """A directory that one service at a time uses.

    Args:
        path: made if it is not there, for this user only.
        sync: every change is flushed to the disk before it is answered.

    Raises StorageError where it cannot be used, or another service does.
    """

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self._path = path
        self._sync = sync
        self._generation = 0
        self._journal = -1
        self._journal_bytes = self._snapshot_bytes = 0
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"the state directory {path} cannot be used: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StorageError(f"another metadata service uses the state directory {path}") from error

    def load(self) -> tuple[dict[str, RankImage], bool]:
        """The ranks by name, and whether the last service ended in peace (or there was none). Raises StorageError."""
        snapshot = self._path / "metadata"
        try:
            found = unpacked(snapshot.read_bytes()) if snapshot.exists() else ([], True, 0)
            ranks, is_clean, self._generation = found
            journal = self._journal_path(self._generation)
            changes = journal.read_bytes() if journal.exists() else b""
        except (OSError, StorageError) as error:
            raise StorageError(f"{snapshot} cannot be read: {error}; move it away to start with an empty service") from error
        by_name = {rank.rank: rank for rank in ranks}
        try:
            change_record.replay(changes, by_name)
        except (ValueError, KeyError) as error:
            raise StorageError(f"{journal} contradicts its snapshot: {error!r}; move both away") from error
        for rank in by_name.values():
            for image in rank.namespaces.values():
                image.without_shared_pages()
        return by_name, is_clean and not changes

    @property
    def is_due(self) -> bool:
        """Whether the journal has grown so long that a snapshot would be shorter."""
        return self._journal_bytes > max(_SMALLEST_JOURNAL_BYTES, 2 * self._snapshot_bytes)

    def snapshot(self, ranks: Iterable[RankImage], *, is_clean: bool = False) -> None:
        """Write everything, and begin a journal. Raises OSError; then what was there before still counts."""
        generation = self._generation + 1
        data = packed(ranks, is_clean=is_clean, generation=generation)
        made = self._path / "metadata.new"
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        journal = os.open(
            self._journal_path(generation), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            made.rename(self._path / "metadata")
        except OSError:
            os.close(journal)
            raise
        if self._journal >= 0:
            os.close(self._journal)
        self._journal, self._generation = journal, generation
        self._journal_bytes, self._snapshot_bytes = 0, len(data)
        self._flush_directory()
        for old in self._path.glob("journal.*"):
            if old != self._journal_path(generation):
                old.unlink(missing_ok=True)

    def append(self, record: bytes) -> None:
        """Write a change. Raises OSError; then part of it may be there, and nothing may follow before the next snapshot."""
        _write_all(self._journal, record)
        self._journal_bytes += len(record)
        if self._sync:
            os.fdatasync(self._journal)

    def close(self) -> None:
        """Let go of the directory."""
        for descriptor in (self._journal, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._journal = self._lock = -1

    def _journal_path(self, generation: int) -> Path:
        return self._path / f"journal.{generation}"

    def _flush_directory(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
