"""One writer at a time in a table: among threads by a lock, among processes by `flock`, which a killed process releases.

The kernel lets one thread write to a file at a time anyway (ext4, XFS), so finer locks would buy little and cost two calls
a page. A writer holds it for a few milliseconds; one that was stopped in between costs the others one wait, and then nothing
but their pages until it goes on.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time

from unified_tree.terms.errors import StorageError

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
