"""The interface of the CUDA engine to a stream, so that its scheduling can be tested without a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Mark(Protocol):
    """A point in the work of a stream."""

    def has_passed(self) -> bool:
        """Whether all work before it is done; does not wait. May raise RuntimeError if the device has failed."""
        ...

    def make_caller_wait(self) -> None:
        """Let later work of the caller's current stream wait for this point; returns at once."""
        ...

    def wait(self) -> None:
        """Block until all work before it is done. May raise RuntimeError if the device has failed."""
        ...


class Lane(Protocol):
    """A side stream: work given to it runs in order, beside the caller's."""

    def entered(self) -> AbstractContextManager[object]:
        """Within, this is the current stream."""
        ...

    def mark(self) -> Mark:
        """The point after all work given to this lane so far."""
        ...

    def mark_caller(self) -> Mark:
        """The point after all work given to the caller's current stream so far."""
        ...

    def follow(self, mark: Mark) -> None:
        """Let later work of this lane wait for a point of another stream; returns at once."""
        ...
