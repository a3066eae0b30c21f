"""Writing a trace, with an account of what is missing in it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from unified_tree.controllers.workbench.recorder.block_hashes import BlockHasher
    from unified_tree.controllers.workbench.recorder.trace_files import TraceFiles
    from unified_tree.controllers.workbench.recorder.trace_lines import RecordedRequest, TraceLine

LOG = logging.getLogger("unified_tree.recorder")
DISK_FAILED: Final = "the disk failed"
TOO_LONG: Final = "too long"
RETRY_S = 10.0
"""So long a disk that failed is left alone. Requests until then are lost."""
SAY_EVERY_S = 60.0


class TraceWriter:
    """Writes requests into files, and never raises: what cannot be written is counted.

    Args:
        hasher: of the prompts.
        files: where the lines go.
        retry_s: so long a disk that failed is left alone.
        time_s: a clock that never goes back.

    Attributes:
        recorded: how many requests were written.
        lost: how many were not, by reason.

    A line that follows lost requests says so (`lost_before`), and so does the log, at most once a minute. One thread writes.
    """

    def __init__(
        self,
        hasher: BlockHasher,
        files: TraceFiles,
        *,
        retry_s: float = RETRY_S,
        time_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hasher = hasher
        self.files = files
        self.recorded = 0
        self.lost: Counter[str] = Counter()
        self._retry_s = retry_s
        self._time_s = time_s
        self._told_lost = 0
        self._failed_at: float | None = None
        self._said_at: float | None = None

    def write(self, request: RecordedRequest) -> None:
        """Hash a request and write it. Cost: as `BlockHasher.extend`, and one system call."""
        self.write_line(request.line(self.hasher))

    def write_line(self, line: TraceLine) -> None:
        """Write a line."""
        lost = self.lost.total()
        text = line.text(lost - self._told_lost)
        if not line.is_readable or len(text) > self.files.file_bytes:
            self.lose(TOO_LONG)
            return
        if self._failed_at is not None and self._time_s() - self._failed_at < self._retry_s:
            self.lose(DISK_FAILED)
            return
        try:
            self.files.write(text)
        except OSError as error:
            self._failed_at = self._time_s()
            self.lose(DISK_FAILED, printable(str(error), 300))
        else:
            self._failed_at = None
            self._told_lost = lost
            self.recorded += 1

    def lose(self, reason: str, why: str = "") -> None:
        """A request will be missing."""
        self.lost[reason] += 1
        now = self._time_s()
        if self._said_at is None or now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            LOG.warning("%s%s", self.summary(), f" ({why})" if why else "")

    def summary(self) -> str:
        """One line: what was recorded, and what was lost."""
        text = f"recorded {self.recorded:,} requests in {printable(str(self.files.directory), 300)}"
        if not self.lost:
            return text
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in self.lost.copy().items())
        return f"{text}; lost {self.lost.total():,} ({reasons})"

    def close(self) -> None:
        """Close the files. Idempotent."""
        self.files.close()
