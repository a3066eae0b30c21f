"""A storage engine: pages in an SQLite file, which several processes of one machine may open.

A package offers it as `sqlite = "sqlite_engine:SqliteStorage"` in the entry-point group `unified_tree.storage`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from typing import Any

from unified_tree import StorageError
from unified_tree.controllers.storage import Capabilities, GuardedStorage, Outcome, StoredPool

TABLE = "CREATE TABLE IF NOT EXISTS pages (format BLOB, key BLOB, value BLOB, PRIMARY KEY (format, key)) WITHOUT ROWID"
EXISTS = "SELECT key FROM pages WHERE format = ? AND key IN"
SELECT = "SELECT key, value FROM pages WHERE format = ? AND key IN"
INSERT = "INSERT INTO pages VALUES {} ON CONFLICT DO NOTHING RETURNING key"
DELETE = "DELETE FROM pages WHERE format = ? AND key IN"
DELETE_ALL = "DELETE FROM pages WHERE format IN"
MOST_KEYS = 4096  # of one statement, which takes at most 32,766 values


class SqliteStorage(GuardedStorage):
    """A StorageEngine over one file. The format's digest is part of every key, so pools of other formats never meet in it.

    The guard checks and counts; the methods here see a known pool, a batch that fits, and never a closed engine. A batch is one
    statement, unless it has over `MOST_KEYS` keys. A statement waits for another process at most `timeout_s`, and then the
    batch fails with StorageError.
    """

    def __init__(self, pools: Sequence[StoredPool], path: str, timeout_s: float = 5.0) -> None:
        super().__init__("sqlite", pools)
        self._formats = {pool.name: pool.format_digest for pool in pools}
        self._lock = threading.Lock()  # calls come from several threads; a connection takes one at a time
        self._file = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
        self._file.execute(TABLE)

    @property
    def capabilities(self) -> Capabilities:
        """Pages are copied once more, and survive this process."""
        return Capabilities(zero_copy=False, survives_restart=True)

    def _run(self, statement: str, values: Sequence[object]) -> list[Any]:
        with self._lock:
            try:
                return self._file.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise StorageError(f"sqlite: {error}") from error

    def _rows(self, statement: str, pool: str, keys: Sequence[bytes]) -> list[Any]:
        rows = []
        for first in range(0, len(keys), MOST_KEYS):
            some = keys[first : first + MOST_KEYS]
            rows += self._run(statement + marks(len(some)), (self._formats[pool], *some))
        return rows

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool]:
        stored = {key for (key,) in self._rows(EXISTS, pool, keys)}
        return [key in stored for key in keys]

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        stored = dict(self._rows(SELECT, pool, keys))
        for key, page in zip(keys, pages, strict=True):
            if key in stored:
                page[:] = stored[key]
        return [Outcome.DONE if key in stored else Outcome.MISSING for key in keys]

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        rows = [(self._formats[pool], key, page) for key, page in zip(keys, pages, strict=True)]
        new = set()
        for first in range(0, len(rows), MOST_KEYS):
            some = rows[first : first + MOST_KEYS]
            values = [value for row in some for value in row]
            new |= {key for (key,) in self._run(INSERT.format(",".join([marks(3)] * len(some))), values)}
        return [Outcome.DONE if key in new else Outcome.PRESENT for key in keys]

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        self._rows(DELETE, pool, keys)

    def _clear(self) -> None:
        self._run(DELETE_ALL + marks(len(self._formats)), list(self._formats.values()))

    def _close(self) -> None:
        self._file.close()


def marks(count: int) -> str:
    """The place of so many values in a statement: `(?,?)` for two."""
    return f"({','.join('?' * count)})"
