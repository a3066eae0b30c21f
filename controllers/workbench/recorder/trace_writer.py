"""Writing a trace, with an account of what is missing in it.

The files of a recording are bounded each, and bounded together. A folder belongs to one recorder at a time. Files are named by
ascending numbers, so that the folder itself is a trace in the order of time. A new file is begun when a line does not fit;
before, the oldest go until all that are left and a whole new one fit into the bound. What is begun by another recording is
never appended to.

A line is written by one call, without a buffer of ours. If the disk takes only a part of it, the file is cut back to its last
whole line, so that a full disk leaves a trace that can be read.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from unified_tree.inputs.arguments import integer
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from unified_tree.controllers.workbench.recorder.block_hashes import BlockHasher


LOG = logging.getLogger("unified_tree.recorder")
DISK_FAILED: Final = "the disk failed"
TOO_LONG: Final = "empty or too long"
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


MAX_TOKENS = 1 << 26
"""A reader takes a longer prompt or answer for a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A request that was served, before it is hashed.

    Attributes:
        time_ms: when it came, in milliseconds since 1970.
        tokens, answer: of its prompt and of its answer, native int64; an answer that is not known is empty.
        namespace: what keeps its prompt apart from equal ones: a cache salt, an adapter.
        prompt_tokens, output_tokens: their lengths as the engine counts them.
        cached_tokens: the first tokens that the engine did not compute; None if it did not say.
    """

    time_ms: int
    tokens: bytes | memoryview
    namespace: str = ""
    prompt_tokens: int
    output_tokens: int = 0
    cached_tokens: int | None = None
    answer: bytes | memoryview = b""

    def line(self, hasher: BlockHasher) -> TraceLine:
        """The request without its tokens. Cost: one hash for each block."""
        chain, ids = hasher.extend(hasher.begin(self.namespace), self.tokens)
        answer = hasher.extend(chain, self.answer)[1] if self.answer else []
        count = self.prompt_tokens // hasher.block_tokens
        return TraceLine(
            time_ms=self.time_ms,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            ids=ids[:count],
            answer_ids=answer,
            block_tokens=hasher.block_tokens,
            cached_tokens=self.cached_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLine:
    """One line of a trace.

    Attributes:
        ids: of the prompt's whole blocks.
        answer_ids: of the blocks that go on from there and end in the answer, where its tokens are known.
        others: see RecordedRequest and BlockHasher.
    """

    time_ms: int
    prompt_tokens: int
    output_tokens: int
    ids: list[int]
    block_tokens: int
    cached_tokens: int | None = None
    answer_ids: list[int]

    @property
    def is_readable(self) -> bool:
        """Whether a reader takes its lengths."""
        return 0 < self.prompt_tokens <= MAX_TOKENS and 0 <= self.output_tokens <= MAX_TOKENS

    def text(self, lost: int = 0) -> bytes:
        """The line as JSON with its line feed, after so many requests that are missing."""
        fields: dict[str, object] = {
            "timestamp": self.time_ms,
            "input_length": self.prompt_tokens,
            "output_length": self.output_tokens,
            "hash_ids": self.ids,
            "block_size": self.block_tokens,
        }
        if self.answer_ids:
            fields["output_hash_ids"] = self.answer_ids
        if self.cached_tokens is not None:
            fields["cached_tokens"] = self.cached_tokens
        if lost:
            fields["lost_before"] = lost
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


NAME = re.compile(r"requests-(\d{6,18})\.jsonl", re.ASCII)
LOCK_NAME = ".recording"
MIB = 1 << 20
DEFAULT_FILE_BYTES = 64 * MIB
DEFAULT_TOTAL_BYTES = 1024 * MIB


class Disk:
    """The disk of this machine. Each call may raise OSError."""

    def create(self, path: Path) -> int:
        """Open a new file for writing; its descriptor. Only the owner may read the file."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write some of the data; how much."""
        return os.write(descriptor, data)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file, and go on writing there."""
        os.ftruncate(descriptor, size)
        os.lseek(descriptor, size, os.SEEK_SET)

    def close(self, descriptor: int) -> None:
        """Close it."""
        os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Delete a file."""
        path.unlink()


class TraceFiles:
    """The rotating files of one recorder.

    Args:
        directory: made if it is not there.
        file_bytes: a file has no more.
        total_bytes: all files together have no more, also those of earlier recordings in this folder.
        disk: for tests.

    Attributes:
        file_bytes: as given.

    Raises ConfigurationError for bounds that are no numbers, or a total of less than two files. Nothing is opened before the
    first line.
    """

    def __init__(
        self,
        directory: Path,
        *,
        file_bytes: int | Any = DEFAULT_FILE_BYTES,
        total_bytes: int | Any = DEFAULT_TOTAL_BYTES,
        disk: Disk | None = None,
    ) -> None:
        self.file_bytes = integer(file_bytes, "file_bytes", ConfigurationError, minimum=1)
        self._total_bytes = integer(total_bytes, "total_bytes", ConfigurationError, minimum=1)
        if self._total_bytes < 2 * self.file_bytes:
            raise ConfigurationError(f"all files must have room for two of {self.file_bytes:,} bytes, not {total_bytes:,}")
        self.directory = directory
        self._disk = Disk() if disk is None else disk
        self._lock: int | None = None
        self._descriptor: int | None = None
        self._path = directory
        self._size = 0

    def open(self) -> None:
        """Make the folder and take it for this recorder. Idempotent; `write` does it, too.

        Raises OSError if that cannot be done, and BlockingIOError if another recorder has it.
        """
        if self._lock is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # a system without such locks
            pass
        except OSError as error:
            os.close(lock)
            raise BlockingIOError(error.errno, "another recorder writes there", str(self.directory)) from error
        self._lock = lock

    def write(self, line: bytes) -> None:
        """Write a line of at most `file_bytes`. Raises OSError; the files then hold whole lines as before.

        Cost: one system call, and for a new file a look at the folder.
        """
        assert len(line) <= self.file_bytes
        self.open()
        if self._descriptor is not None and self._size + len(line) > self.file_bytes:
            self._end_file()
        if self._descriptor is None:
            self._begin_file()
        assert self._descriptor is not None
        try:
            written = 0
            while written < len(line):
                written += self._disk.write(self._descriptor, memoryview(line)[written:])
        except OSError:
            self._take_back()
            raise
        self._size += len(line)

    def _begin_file(self) -> None:
        numbers = self._found()
        kept = sum(size for _, size in numbers.values())
        for number in sorted(numbers):
            if kept + self.file_bytes <= self._total_bytes:
                break
            path, size = numbers[number]
            self._disk.remove(path)
            kept -= size
        self._path = self.directory / f"requests-{max(numbers, default=0) + 1:06}.jsonl"
        self._descriptor = self._disk.create(self._path)
        self._size = 0

    def _found(self) -> dict[int, tuple[Path, int]]:
        """The recorded files by number, with their sizes."""
        found = {}
        with os.scandir(self.directory) as entries:
            for entry in entries:
                named = NAME.fullmatch(entry.name)
                if named and entry.is_file(follow_symlinks=False):
                    found[int(named[1])] = Path(entry.path), entry.stat(follow_symlinks=False).st_size
        return found

    def _take_back(self) -> None:
        """Cut the file after its last whole line, and end it."""
        assert self._descriptor is not None
        with suppress(OSError):
            self._disk.truncate(self._descriptor, self._size)
        self._end_file()
        if self._size == 0:
            with suppress(OSError):
                self._disk.remove(self._path)

    def _end_file(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                self._disk.close(descriptor)

    def close(self) -> None:
        """End the file and give up the folder. Idempotent."""
        self._end_file()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
