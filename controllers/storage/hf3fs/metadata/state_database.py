"""The metadata service's state on disk: an SQLite database in WAL mode, which one service at a time uses.

    service     is_clean: the last service ended while nobody read or wrote
    rank        name, epoch
    namespace   number, rank, name, format, stride_bytes, page_count; in the order of the file
    page        namespace, write_order, page, key, checksum; primary key (namespace, write_order), no other index

Keys are looked up in memory (`page_table`). Only changes come here, as one transaction a request, which is committed before
the request is answered. A process that is killed therefore loses nothing that was answered. New rows lie side by side, and so
do those of the pages that are evicted together, so that a commit writes few of the database's pages; deletes of keys that were
written at different times write one each.

`synchronous` is NORMAL: a commit is written, and not flushed. A power failure takes at most the commits since the last
checkpoint, and none without those after it. `sync` makes it FULL: each commit is flushed.

A checkpoint flushes the log and moves it into the database. It blocks as long as the disk does. So it has a connection of its
own and runs in another thread, while SQLite lets the service commit.

SQLite has no checksums in the database file, so each row of `page` bears one.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path
from typing import Any

from unified_tree.controllers.storage.engine_settings import MAX_BYTES, SECONDS, Bounds, check_number
from unified_tree.controllers.storage.hf3fs.metadata.page_table import Shape, StoredNamespace, StoredRank
from unified_tree.terms.errors import ConfigurationError, StorageError

DATABASE_NAME = "metadata"
_VERSION = 4
_PAGE_BYTES = 1024
"""Of the database's own pages: 20 rows. A commit writes whole ones, also for one row of each."""
_SCHEMA = f"""
    PRAGMA page_size = {_PAGE_BYTES};
    BEGIN;
    CREATE TABLE service (is_clean INTEGER NOT NULL);
    CREATE TABLE rank (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL);
    CREATE TABLE namespace (
        number INTEGER PRIMARY KEY, rank TEXT NOT NULL, name TEXT NOT NULL,
        format TEXT NOT NULL, stride_bytes INTEGER NOT NULL, page_count INTEGER NOT NULL
    );
    CREATE TABLE page (
        namespace INTEGER NOT NULL, write_order INTEGER NOT NULL, page INTEGER NOT NULL, key BLOB NOT NULL,
        checksum INTEGER NOT NULL, PRIMARY KEY (namespace, write_order)
    ) WITHOUT ROWID;
    INSERT INTO service VALUES (1);
    PRAGMA user_version = {_VERSION};
    COMMIT;
"""
_ADD = "INSERT INTO page VALUES (?, ?, ?, ?, ?)"
_REMOVE = "DELETE FROM page WHERE namespace = ? AND write_order = ?"
_CLEAR = "DELETE FROM page WHERE namespace = ?"
_HELD = "SELECT write_order, page, key, checksum FROM page WHERE namespace = ? ORDER BY write_order"
_MARK = "UPDATE service SET is_clean = ?"
_Change = tuple[str, Iterable[tuple[Any, ...]]]
"""A statement, and the rows it is executed for."""


class StateDatabase:
    """The database. One thread at a time, but for `checkpoint`.

    A change that the disk does not take raises StorageError, stays here, and is written before the next one.

    Args:
        directory: made if it is not there, for this user only.
        sync: every commit is flushed to the disk.
        log_bytes: a log that is longer is begun anew by the next checkpoint; commits wait for the last part of that.
        commit_wait_s: how long commits and checkpoints wait for each other before they fail; less than clients wait.

    Raises StorageError where it cannot be used, or another service does; ConfigurationError for invalid options.
    """

    def __init__(self, directory: Path, *, sync: bool = False, log_bytes: int = 64 << 20, commit_wait_s: float = 1.0) -> None:
        if type(sync) is not bool:
            raise ConfigurationError(f"sync must be True or False, not {sync!r}")
        check_number("log_bytes", log_bytes, int, Bounds(1, MAX_BYTES))
        check_number("commit_wait_s", commit_wait_s, float, SECONDS)
        self._path = directory / DATABASE_NAME
        self._log_bytes = log_bytes
        self._wait_s = commit_wait_s
        self._unwritten: list[_Change] = []
        self._commits = self._checkpointed_commits = 0
        self._last_number = 0
        self._orders: dict[int, WriteOrders] = {}
        self._lock = _locked(directory)
        try:
            with _readable(self._path):
                self._connection = _opened(self._path, sync, commit_wait_s)
        except StorageError:
            os.close(self._lock)
            raise

    def load(self) -> tuple[dict[str, StoredRank], bool]:
        """The ranks by name, and whether the last service ended in peace (or there was none). Raises StorageError."""
        ask = self._connection.execute
        with _readable(self._path):
            [problem] = ask("PRAGMA quick_check(1)").fetchone()
            if problem != "ok":
                raise ValueError(problem)
            [is_clean] = ask("SELECT is_clean FROM service").fetchone()
            ranks = {name: StoredRank(epoch) for name, epoch in ask("SELECT name, epoch FROM rank")}
            for number, rank, name, *shape in ask("SELECT * FROM namespace ORDER BY number").fetchall():
                ranks[rank].namespaces[name] = StoredNamespace(number, Shape(*shape), self._held(number))
                self._last_number = number
        return ranks, bool(is_clean)

    @property
    def is_behind(self) -> bool:
        """Whether there are changes that the disk did not take."""
        return bool(self._unwritten)

    def open_rank(self, name: str, epoch: int, shapes: Mapping[str, Shape]) -> StoredRank:
        """Begin a rank, without keys, in the place of the one of that name. Where that fails, nothing has changed."""
        assert not self._unwritten
        opened = StoredRank(
            epoch, {of: StoredNamespace(self._last_number + i, shape) for i, (of, shape) in enumerate(shapes.items(), 1)}
        )
        rows = [(of.number, name, space, *astuple(of.shape)) for space, of in opened.namespaces.items()]
        self._commit(
            [
                ("DELETE FROM page WHERE namespace IN (SELECT number FROM namespace WHERE rank = ?)", [(name,)]),
                ("DELETE FROM namespace WHERE rank = ?", [(name,)]),
                ("INSERT OR REPLACE INTO rank VALUES (?, ?)", [(name, epoch)]),
                ("INSERT INTO namespace VALUES (?, ?, ?, ?, ?, ?)", rows),
            ]
        )
        self._last_number += len(rows)
        self._orders |= {of.number: WriteOrders() for of in opened.namespaces.values()}
        return opened

    def add(self, namespace: int, pages: Mapping[bytes, int]) -> None:
        """These keys have these pages now, which no key had."""
        orders = self._orders[namespace]
        self._change(_ADD, [_row(namespace, orders.next(page), page, key) for key, page in pages.items()])

    def remove(self, namespace: int, pages: Sequence[int]) -> None:
        """No key has these pages any more."""
        orders = self._orders[namespace]
        self._change(_REMOVE, [(namespace, orders[page]) for page in pages])

    def clear(self, namespace: int) -> None:
        """No key of the namespace has a page. Cost: O(its keys)."""
        self._change(_CLEAR, [(namespace,)])

    def reorder(self, namespace: int, pages: Mapping[bytes, int]) -> None:
        """All keys and pages, the least recently used first. Cost: O(them)."""
        self.write()
        orders = self._orders[namespace]
        if any(orders[page] > orders[following] for page, following in pairwise(pages.values())):
            rows = (_row(namespace, orders.next(page), page, key) for key, page in pages.items())
            self._commit([(_CLEAR, [(namespace,)]), (_ADD, rows)])

    def mark(self, *, is_clean: bool) -> None:
        """The service begins (which is not clean), or ends while nobody reads or writes."""
        self._change(_MARK, [(is_clean,)])

    def write(self) -> None:
        """Write what the disk did not take."""
        if self._unwritten:
            self._commit(self._unwritten)
            self._unwritten = []

    def checkpoint(self) -> None:
        """Flush what was committed, and make room in the log. One call at a time, from any thread. Raises StorageError."""
        commits = self._commits
        if commits == self._checkpointed_commits:
            return
        try:
            with closing(_connected(self._path, self._wait_s)) as connection:
                _, log_pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if log_pages * _PAGE_BYTES > self._log_bytes:  # it had no end while changes came: commits wait for the rest
                    connection.execute("PRAGMA wal_checkpoint(RESTART)")
        except sqlite3.Error as error:
            raise StorageError(f"the log of {self._path} cannot be moved: {error}") from error
        self._checkpointed_commits = commits

    def close(self) -> None:
        """Close the database, and unlock the directory. What the disk did not take is lost."""
        self._connection.close()
        os.close(self._lock)

    def _held(self, namespace: int) -> dict[bytes, int]:
        held: dict[bytes, int] = {}
        orders = self._orders[namespace] = WriteOrders()
        for order, page, key, checksum in self._connection.execute(_HELD, (namespace,)):
            if checksum != _checksum(namespace, page, key) or orders[page] or key in held:
                raise ValueError(f"page {page} is damaged")
            held[key] = page
            orders.put(page, order)
        return held

    def _change(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        self._unwritten.append((statement, rows))
        self.write()

    def _commit(self, changes: Sequence[_Change]) -> None:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            for statement, rows in changes:
                connection.executemany(statement, rows)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.rollback()
            raise StorageError(f"{self._path} cannot be written: {error}") from error
        self._commits += 1


def _locked(directory: Path) -> int:
    """The descriptor of a lock that one process holds."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"the state directory {directory} cannot be used: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StorageError(f"another metadata service uses the state directory {directory}") from error
    return lock


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, LookupError, sqlite3.Error) as error:
        raise StorageError(f"{path} cannot be read: {error}; move it away to start with an empty service") from error


def _opened(path: Path, sync: bool, commit_wait_s: float) -> sqlite3.Connection:
    if not path.exists():
        _make(path)
    connection = _connected(path, commit_wait_s)
    try:
        [version] = connection.execute("PRAGMA user_version").fetchone()  # 0 of an empty file
        if version != _VERSION:
            raise ValueError(f"it is of version {version}, not {_VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
    except BaseException:
        connection.close()
        raise
    return connection


def _make(path: Path) -> None:
    """A new database, which takes its place when it is whole."""
    new = path.with_name(f"{path.name}.new")
    for left_over in (new, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        left_over.unlink(missing_ok=True)  # SQLite would apply the log of a database that was moved away to this one
    new.touch(mode=0o600)
    with closing(_connected(new, 0.0)) as connection:
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.executescript(_SCHEMA)
    new.rename(path)


def _connected(path: Path, wait_s: float) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)


def _row(namespace: int, order: int, page: int, key: bytes) -> tuple[Any, ...]:
    return namespace, order, page, key, _checksum(namespace, page, key)


def _checksum(namespace: int, page: int, key: bytes) -> int:
    return zlib.crc32(b"%d %d " % (namespace, page) + key)


class WriteOrders:
    """Numbers of rows by page; no more of a page than its last. Cost: 8 bytes a page, and O(1) a call."""

    def __init__(self) -> None:
        self._last = 0
        self._orders = array("q")

    def __getitem__(self, page: int) -> int:
        """Of a page that a key has. Of another it is that of its last key, or 0."""
        return self._orders[page] if page < len(self._orders) else 0

    def put(self, page: int, order: int) -> None:
        """The row of a page, the last one of all."""
        assert order > self._last
        self._last = order
        if page >= len(self._orders):
            self._orders.frombytes(bytes(8 * (page + 1 - len(self._orders))))
        self._orders[page] = order

    def next(self, page: int) -> int:
        """The number of a new row."""
        self.put(page, self._last + 1)
        return self._last
