"""The interface between the engine and the file of a rank: read and write these ranges of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Ending(Enum):
    """How reading or writing one range ended."""

    DONE = "done"
    """All of it was read or written."""
    FAILED = "failed"
    """It was not, and nothing is under way any more."""
    UNTRIED = "untried"
    """There was no time to begin it: others have not ended."""
    UNKNOWN = "unknown"
    """It had not ended in time. A write may still happen; memory that was given to be read into is left alone."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of the file and of memory, equally many.

    Attributes:
        offset_bytes: where in the file.
        memory: contiguous bytes, writable to be read into.
    """

    offset_bytes: int
    memory: memoryview


class RangeFile(Protocol):
    """An open file. Calls may come from several threads at once.

    After a call nobody touches the memory, except that what is being written may still be read. Each call ends by its deadline,
    an instant of `time.monotonic`, whatever the file system does. None raises for what fails but StorageError.
    """

    def read(self, ranges: Sequence[FileRange], deadline: float) -> list[Ending]:
        """Fill memory from the file; what lies beyond its end is FAILED."""
        ...

    def write(self, ranges: Sequence[FileRange], deadline: float) -> list[Ending]:
        """Write memory to the file."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it must be opened anew: its mount went away, or it went away."""
        ...

    def close(self) -> None:
        """Close it; what is under way is not waited for."""
        ...
