"""What goes wrong in a store of files, said once a kind: a full disk would otherwise write a line a page."""

from __future__ import annotations

import errno
import logging
import threading

_LOG = logging.getLogger("unified_tree.storage.file")
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_no_room(error: OSError) -> bool:
    """Whether an error means that the disk, the quota or the file is full."""
    return error.errno in _NO_ROOM


class FaultLog:
    """One warning for each kind of failure of one engine, and whether the last write or read was one.

    Args:
        directory: named in every warning.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._said: set[tuple[str, object]] = set()
        self._failing: set[str] = set()

    @property
    def is_failing(self) -> bool:
        """Whether what was tried last, of writing or reading, failed."""
        return bool(self._failing)

    def failed(self, doing: str, error: OSError | str) -> None:
        """Note a failure; the first of its kind is logged. `doing` is "write" or "read"."""
        kind = (doing, error.errno if isinstance(error, OSError) else error)
        with self._lock:
            self._failing.add(doing)
            is_new = kind not in self._said
            self._said.add(kind)
        if is_new:
            _LOG.warning("file storage %s: cannot %s: %s; such pages are misses (said once)", self._directory, doing, error)

    def succeeded(self, doing: str) -> None:
        """Note that it works, or works again."""
        if doing in self._failing:
            with self._lock:
                self._failing.discard(doing)
