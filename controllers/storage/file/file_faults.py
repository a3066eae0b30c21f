"""The faults of a file store: whether writing or reading fails now, and rate-limited logging of them."""

from __future__ import annotations

import errno

from unified_tree.controllers.storage.rate_limited_log import RateLimitedLog

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_no_room(error: OSError) -> bool:
    """Whether an error means that the disk, the quota or the file is full."""
    return error.errno in _NO_ROOM


class FileFaults:
    """The faults of one engine. Thread-safe.

    Args:
        directory: named in every warning.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._failing: set[str] = set()
        self._log = RateLimitedLog()

    @property
    def is_failing(self) -> bool:
        """Whether the last write or the last read failed."""
        return bool(self._failing)

    def failed(self, doing: str, error: OSError | str) -> None:
        """Record a failure and log it, rate-limited by kind. `doing` is "write" or "read"."""
        self._failing.add(doing)
        kind = (doing, error.errno if isinstance(error, OSError) else error)
        message = "file storage %s: cannot %s: %s; such pages are misses"
        self._log.warning(kind, message, self._directory, doing, error)

    def succeeded(self, doing: str) -> None:
        """Record a success."""
        if doing in self._failing:
            self._failing.discard(doing)
            self._log.info(("again", doing), "file storage %s: can %s again", self._directory, doing)
