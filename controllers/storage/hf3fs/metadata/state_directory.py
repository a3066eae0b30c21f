"""The metadata service's state on disk: a snapshot, and journals of what changed since.

`metadata` is the snapshot of some generation g, `journal.g` what followed, and `journal.g+1` and so on what followed that. A
snapshot is taken while the service goes on: the next journal is begun first, then the snapshot is written beside the old one,
part by part, then flushed and renamed over it; with that the journals before its own count for nothing. Until then the old
snapshot and all journals count, so whatever the process was doing when it was killed, what is there is one snapshot and the
changes up to the last that was answered.

After a power failure the journal's end may be missing, unless it is flushed for every change (`sync`). A journal says how many
bytes of the one before it count; where those are missing it does not count either.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from unified_tree.controllers.storage.hf3fs.metadata import change_record
from unified_tree.controllers.storage.hf3fs.metadata.rank_image import RankImage, unpacked
from unified_tree.controllers.storage.hf3fs.metadata.snapshot_file import (
    SNAPSHOT_NAME,
    SnapshotFile,
    journal_path,
    journals,
    write_all,
)
from unified_tree.controllers.storage.setting_checks import MAX_BYTES, Bounds, check_number
from unified_tree.errors import ConfigurationError, StorageError


class StateDirectory:
    """A directory that one service at a time uses.

    Args:
        path: made if it is not there, for this user only.
        sync: every change is flushed to the disk before it is answered.
        journal_bytes: a snapshot is due when the journal is longer than this and than two snapshots.
        flush_bytes: of a snapshot, between two flushes to the disk.

    Raises StorageError where it cannot be used, or another service does; ConfigurationError for invalid sizes.
    """

    def __init__(self, path: Path, *, sync: bool = False, journal_bytes: int = 16 << 20, flush_bytes: int = 8 << 20) -> None:
        if type(sync) is not bool:
            raise ConfigurationError(f"sync must be True or False, not {sync!r}")
        check_number("journal_bytes", journal_bytes, int, Bounds(1, MAX_BYTES))
        check_number("flush_bytes", flush_bytes, int, Bounds(1, MAX_BYTES))
        self._path = path
        self._sync = sync
        self._smallest_bytes = self._due_bytes = journal_bytes
        self._flush_bytes = flush_bytes
        self._generation = 0
        self._journal = -1
        self._valid_bytes = 0
        self._changed_bytes = 0
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
        snapshot = self._path / SNAPSHOT_NAME
        try:
            found = unpacked(snapshot.read_bytes()) if snapshot.exists() else ([], True, 0)
            ranks, is_clean, generation = found
            chain = self._chain(generation)
            self._generation = max([generation, *journals(self._path)])
        except (OSError, StorageError) as error:
            raise StorageError(f"{snapshot} cannot be read: {error}; move it away to start with an empty service") from error
        by_name, changes = {rank.rank: rank for rank in ranks}, 0
        try:
            for journal in chain:
                changes += change_record.replay(journal, by_name)
        except (ValueError, KeyError) as error:
            raise StorageError(
                f"the journals of {self._path} contradict their snapshot: {error!r}; move all of them away"
            ) from error
        for rank in by_name.values():
            for image in rank.namespaces.values():
                image.without_shared_pages()
        return by_name, is_clean and not changes

    @property
    def is_due(self) -> bool:
        """Whether the journal has grown so long that a snapshot would be shorter."""
        return self._changed_bytes > self._due_bytes

    def new_snapshot(self) -> SnapshotFile:
        """A snapshot that may be made and then begun."""
        return SnapshotFile(self._path, self._generation + 1, self._flush_bytes)

    def begin(self, snapshot: SnapshotFile) -> None:
        """From now on changes go to the journal of a snapshot that was made. Raises OSError; then they go where they went
        before.
        """
        record = change_record.begun(snapshot.generation, self._valid_bytes)
        try:
            write_all(snapshot.journal, record)
            if self._sync:
                os.fdatasync(snapshot.journal)
        except OSError:
            os.ftruncate(snapshot.journal, 0)  # an empty file is nobody's journal
            raise
        if self._journal >= 0:
            os.close(self._journal)
        self._journal, self._generation, self._valid_bytes = snapshot.taken_journal(), snapshot.generation, len(record)

    def finished(self, snapshot: SnapshotFile, before_bytes: int) -> None:
        """A snapshot counts; so many bytes of changes (`changed_bytes` when it was begun) are part of it."""
        self._changed_bytes -= before_bytes
        self._due_bytes = max(self._smallest_bytes, 2 * snapshot.size_bytes)

    def failed(self) -> None:
        """A snapshot could not be written. The next is due when the journal has grown by what makes one worth it."""
        self._due_bytes = self._changed_bytes + self._smallest_bytes

    @property
    def changed_bytes(self) -> int:
        """Of all changes since the snapshot that counts was begun."""
        return self._changed_bytes

    def append(self, record: bytes) -> None:
        """Write a change. Raises OSError; then part of it may be there, and nothing may follow before the next snapshot."""
        write_all(self._journal, record)
        if self._sync:
            os.fdatasync(self._journal)
        self._valid_bytes += len(record)
        self._changed_bytes += len(record)

    def close(self) -> None:
        """Close the journal, and unlock the directory."""
        for descriptor in (self._journal, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._journal = self._lock = -1

    def _chain(self, generation: int) -> list[bytes]:
        """The journals since the snapshot of a generation, each as far as it counts; the last one's length is remembered."""
        chain: list[bytes] = []
        while (journal := self._read(generation)) is not None:
            _, follows_bytes = change_record.beginning(journal) or (0, 0)
            if chain:
                if self._valid_bytes < follows_bytes:  # a power failure took the end of the one before
                    break
                chain[-1] = chain[-1][:follows_bytes]
            self._valid_bytes = change_record.valid_bytes(journal)
            chain.append(journal)
            generation += 1
        return chain

    def _read(self, generation: int) -> bytes | None:
        """A journal; None where there is none, or none that was begun."""
        path = journal_path(self._path, generation)
        journal = path.read_bytes() if path.exists() else b""
        begun = change_record.beginning(journal)
        return journal if begun is not None and begun[0] == generation else None
