"""A storage engine: pages in an SQLite file, which several processes of one machine may open.

A package offers it as `sqlite = "sqlite_engine:SqliteStorage"` in the entry-point group `unified_tree.storage`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from itertools import starmap

from unified_tree.controllers.storage import Capabilities, GuardedStorage, Outcome, StoredPool

TABLE = "CREATE TABLE IF NOT EXISTS pages (format BLOB, key BLOB, value BLOB, PRIMARY KEY (format, key)) WITHOUT ROWID"
SELECT = "SELECT value FROM pages WHERE format = ? AND key = ?"
INSERT = "INSERT OR IGNORE INTO pages VALUES (?, ?, ?)"
DELETE = "DELETE FROM pages WHERE format = ? AND key = ?"
DELETE_ALL = "DELETE FROM pages WHERE format = ?"


class SqliteStorage(GuardedStorage):
    """A StorageEngine over one file. The format's digest is part of every key, so pools of other formats never meet in it.

    The guard checks and counts; the methods here see a known pool, a batch that fits, and never a closed engine.
    """

    def __init__(self, pools: Sequence[StoredPool], path: str) -> None:
        super().__init__("sqlite", pools)
        self._formats = {pool.name: pool.format_digest for pool in pools}
        self._lock = threading.Lock()  # calls come from several threads; a connection takes one at a time
        self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._file.execute(TABLE)

    @property
    def capabilities(self) -> Capabilities:
        """Pages are copied once more, and survive this process."""
        return Capabilities(zero_copy=False, survives_restart=True)

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool]:
        with self._lock:
            return [self._file.execute(SELECT, (self._formats[pool], key)).fetchone() is not None for key in keys]

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        def read(key: bytes, page: memoryview) -> Outcome:
            row = self._file.execute(SELECT, (self._formats[pool], key)).fetchone()
            if row is None:
                return Outcome.MISSING
            page[:] = row[0]
            return Outcome.DONE

        with self._lock:
            return list(starmap(read, zip(keys, pages, strict=True)))

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        def write(key: bytes, page: memoryview) -> Outcome:
            is_new = self._file.execute(INSERT, (self._formats[pool], key, page)).rowcount
            return Outcome.DONE if is_new else Outcome.PRESENT

        with self._lock:
            return list(starmap(write, zip(keys, pages, strict=True)))

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        with self._lock:
            self._file.executemany(DELETE, [(self._formats[pool], key) for key in keys])

    def _clear(self) -> None:
        with self._lock:
            self._file.executemany(DELETE_ALL, [(digest,) for digest in self._formats.values()])

    def _close(self) -> None:
        self._file.close()
