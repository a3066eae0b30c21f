"""A file by 3FS's USRBIO: requests and pages go through rings of shared memory between this process and the daemon.

Each way has a ring and as much shared memory as pages may be in flight, in slots. Completions come in any order, late, or
never; each is known by its userdata, a number that is never used twice. A slot belongs to its request until the completion
has come, be that calls later, so that a late read lands where nobody looks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from unified_tree.controllers.storage.hf3fs.range_file import MOUNT_IS_GONE, Ending, FileRange, close_descriptor


class UsrbioFile:
    """A RangeFile over rings.

    Args:
        usrbio: the module `hf3fs_fuse.io`, or what does the same.
        descriptor: of a file on its mount; owned.
        mount: of 3FS.
        entries: of each ring.
        slot_bytes: of the largest range.
        close_wait_s: how long closing the descriptor is waited for.

    Raises OSError where the daemon does not take the file or the rings; the descriptor is then the caller's still.
    """

    def __init__(self, usrbio: Any, descriptor: int, mount: str, entries: int, slot_bytes: int, close_wait_s: float) -> None:
        self._close_wait_s = close_wait_s
        self._usrbio = usrbio
        self._descriptor = descriptor
        self._closing = threading.Lock()
        self._is_open = True
        with ExitStack() as undo:
            usrbio.register_fd(descriptor)
            undo.callback(usrbio.deregister_fd, descriptor)
            self._reading = _Ring(usrbio, mount, descriptor, entries, slot_bytes, is_reading=True)
            undo.callback(self._reading.close)
            self._writing = _Ring(usrbio, mount, descriptor, entries, slot_bytes, is_reading=False)
            undo.pop_all()

    @property
    def is_lost(self) -> bool:
        """See RangeFile.is_lost."""
        return self._reading.is_lost or self._writing.is_lost

    def read(self, ranges: Sequence[FileRange], deadline: float) -> list[Ending]:
        """See RangeFile.read. Cost: a copy out of shared memory."""
        return self._reading.run(ranges, deadline)

    def write(self, ranges: Sequence[FileRange], deadline: float) -> list[Ending]:
        """See RangeFile.write. Cost: a copy into shared memory."""
        return self._writing.run(ranges, deadline)

    def close(self) -> None:
        """See RangeFile.close; calls that are inside end first."""
        with self._closing:
            if not self._is_open:
                return
            self._is_open = False
        self._reading.close()
        self._writing.close()
        self._usrbio.deregister_fd(self._descriptor)
        close_descriptor(self._descriptor, self._close_wait_s)


class _Ring:
    """One way. One thread at a time prepares and waits, the others wait for it."""

    def __init__(self, usrbio: Any, mount: str, descriptor: int, entries: int, slot_bytes: int, *, is_reading: bool) -> None:
        self.is_lost = False
        self._descriptor = descriptor
        self._is_reading = is_reading
        self._slot_bytes = slot_bytes
        self._lock = threading.Lock()
        self._free = list(range(entries))
        self._flying: dict[int, int] = {}
        self._next = 0
        self._memory = SharedMemory(create=True, size=entries * slot_bytes)
        assert self._memory.buf is not None
        self._bytes = self._memory.buf
        try:
            self._iov: Any = usrbio.make_iovec(self._memory, mount)
            self._ring: Any = usrbio.make_ioring(mount, entries, for_read=is_reading)
        except BaseException:
            self._iov = None
            self._memory.close()
            raise
        finally:
            self._memory.unlink()  # the name; the memory stays while it is mapped

    def run(self, ranges: Sequence[FileRange], deadline: float) -> list[Ending]:
        """Read or write ranges, as many at once as there are slots."""
        endings = [Ending.UNTRIED] * len(ranges)
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return endings
        mine: dict[int, int] = {}
        try:
            if self._ring is not None:
                self._move(ranges, endings, mine, deadline)
        except OSError:
            self.is_lost = True  # what was prepared may not have been submitted
        finally:
            self._lock.release()
        for index in mine.values():
            endings[index] = Ending.UNKNOWN
        return endings

    def close(self) -> None:
        """Free ring and memory; the daemon keeps what is under way by itself."""
        with self._lock:
            if self._ring is not None:
                self._ring = self._iov = None
                self._memory.close()

    def _move(self, ranges: Sequence[FileRange], endings: list[Ending], mine: dict[int, int], deadline: float) -> None:
        """`mine` is left with what was begun and has not ended."""
        if self._flying:
            self._collect(ranges, endings, mine, 0, 0.0)
        next_index = 0
        while (left := deadline - time.monotonic()) > 0:  # what is begun is submitted at once, never by a later call
            while self._free and next_index < len(ranges):
                self._begin(ranges[next_index], next_index, mine)
                next_index += 1
            if not mine:
                return
            wanted = len(mine) if next_index == len(ranges) else 1  # slots that are stuck hold up nobody
            self._collect(ranges, endings, mine, wanted, left)

    def _begin(self, one: FileRange, index: int, mine: dict[int, int]) -> None:
        slot = self._free.pop()
        start, size = slot * self._slot_bytes, one.memory.nbytes
        if not self._is_reading:
            self._bytes[start : start + size] = one.memory.cast("B")
        number, self._next = self._next, self._next + 1
        try:
            self._ring.prepare(
                self._iov[start : start + size], self._is_reading, self._descriptor, one.offset_bytes, userdata=number
            )
        except BaseException:
            self._free.append(slot)
            raise
        self._flying[number] = slot
        mine[number] = index

    def _collect(
        self, ranges: Sequence[FileRange], endings: list[Ending], mine: dict[int, int], at_least: int, left_s: float
    ) -> None:
        """Take in what has ended, of this call or of earlier ones."""
        for ended in self._ring.submit().wait(min_results=at_least, timeout=timedelta(seconds=left_s)):
            slot = self._flying.pop(ended.userdata, None)
            if slot is None:
                continue
            index = mine.pop(ended.userdata, None)
            if index is not None:
                memory = ranges[index].memory
                if ended.result == memory.nbytes:
                    if self._is_reading:
                        start = slot * self._slot_bytes
                        memory.cast("B")[:] = self._bytes[start : start + memory.nbytes]
                    endings[index] = Ending.DONE
                else:
                    endings[index] = Ending.FAILED
                    self.is_lost |= -ended.result in MOUNT_IS_GONE or (self._is_reading and ended.result == 0)
            self._free.append(slot)
