"""The time limits and batch sizes of a file store, and its faults."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from unified_tree.controllers.storage.engine_settings import BYTES, LONGEST_S, SECONDS, Bounds, check_settings
from unified_tree.controllers.storage.rate_limited_log import RateLimitedLog


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Limits of one engine; other engines in the same directory may have different ones.

    Attributes:
        open_wait_s: for another process that is opening the directory; then opening it fails.
        write_wait_s: of `put`, `remove` and `clear` for another process that writes; then pages are DROPPED, and until that
            process has released its lock once they are so at once. 0 never waits.
        bytes_per_lock: maximum bytes written while the writer lock is held, but at least one value.
        refresh_s: a use is recorded only if the last recorded one is longer ago. So recency has this resolution, and hot values
            cost no writes. 0 records every use.
        move_bytes: maximum bytes of values that move into a table of another size when the engine is opened with another
            capacity; the others, used longest ago, are given up.
        full_pause_s: for so long after the disk was full, new values overwrite old ones; if that fails too, they are dropped.

    Raises ConfigurationError for invalid values.
    """

    open_wait_s: float = 10.0
    write_wait_s: float = 1.0
    bytes_per_lock: int = 8 << 20
    refresh_s: float = 1.0
    move_bytes: int = 4 << 30
    full_pause_s: float = 10.0

    def __post_init__(self) -> None:
        any_wait = Bounds(0, LONGEST_S)
        check_settings(
            "file",
            self,
            {
                "open_wait_s": SECONDS,
                "write_wait_s": any_wait,
                "bytes_per_lock": BYTES,
                "move_bytes": BYTES,
                "refresh_s": any_wait,
                "full_pause_s": any_wait,
            },
        )

    @property
    def refresh_ns(self) -> int:
        """The same in nanoseconds."""
        return round(self.refresh_s * 1e9)

    @property
    def full_pause_ns(self) -> int:
        """The same in nanoseconds."""
        return round(self.full_pause_s * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """Attributes:
    sync: put returns when the values would survive a power failure.
    clock_ns: nanoseconds since 1970.
    limits: of the engine.
    faults: told what fails.
    """

    sync: bool
    clock_ns: Callable[[], int]
    limits: FileLimits
    faults: FileFaults


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
