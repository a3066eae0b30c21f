"""A file by `preadv` and `pwritev`, in threads, so that a mount that does not answer is not waited for beyond the deadline.

Writes go straight from the caller's memory: what was not confirmed counts for nothing, so it does not matter if that memory
changes under a write that comes late. Reads must not come late into memory that belongs to somebody else by then; they go
through a small buffer of the thread, which stays in the processor's cache, and are copied on while the caller is still
there.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial

from unified_tree.controllers.storage.hf3fs.range_file import MOUNT_IS_GONE, Ending, FileRange, IoBatch, IoWorkers


class PosixFile:
    """A RangeFile over a descriptor.

    Args:
        descriptor: owned; closed when the last call has returned.
        workers: threads, which several files may use.
        piece_bytes: read at once into a thread's buffer.
        share_bytes: for which another thread is woken.
    """

    def __init__(self, descriptor: int, workers: IoWorkers, *, piece_bytes: int, share_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._share_bytes = share_bytes
        self._descriptor = descriptor
        self._workers = workers
        self._lock = threading.Lock()
        self._users = 1
        self._is_lost = False
        self._closed = False

    @property
    def is_lost(self) -> bool:
        """See RangeFile.is_lost."""
        return self._is_lost

    def read(self, ranges: Sequence[FileRange], deadline: float) -> list[Ending]:
        """See RangeFile.read. Cost: one copy in the kernel and one out of the cache."""
        return self._run(self._read, ranges, deadline)

    def write(self, ranges: Sequence[FileRange], deadline: float) -> list[Ending]:
        """See RangeFile.write. Cost: one copy in the kernel."""
        return self._run(self._write, ranges, deadline)

    def close(self) -> None:
        """See RangeFile.close."""
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            self._release()

    def _run(
        self, call: Callable[[FileRange, IoBatch[None]], Ending], ranges: Sequence[FileRange], deadline: float
    ) -> list[Ending]:
        endings = [Ending.UNTRIED] * len(ranges)

        def run(indices: range, batch: IoBatch[None]) -> None:
            for index in indices:
                with batch.lock:
                    if batch.is_abandoned:
                        return
                    endings[index] = Ending.UNKNOWN
                ending = self._used(call, ranges[index], batch)
                with batch.lock:
                    if not batch.is_abandoned:
                        endings[index] = ending

        step = self._share(ranges)
        shares = [range(start, min(start + step, len(ranges))) for start in range(0, len(ranges), step)]
        self._workers.run([partial(run, share) for share in shares], deadline)
        return endings

    def _share(self, ranges: Sequence[FileRange]) -> int:
        """How many ranges a thread gets: waking another one is worth it for so much."""
        size_bytes = sum(one.memory.nbytes for one in ranges)
        threads = min(self._workers.count, max(1, size_bytes // self._share_bytes))
        return max(1, -(-len(ranges) // threads))

    def _used(self, call: Callable[[FileRange, IoBatch[None]], Ending], one: FileRange, batch: IoBatch[None]) -> Ending:
        with self._lock:
            if self._closed:
                return Ending.FAILED
            self._users += 1
        try:
            return call(one, batch)
        except OSError as error:
            if error.errno in MOUNT_IS_GONE:
                self._is_lost = True
            return Ending.FAILED
        finally:
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self._workers.close_descriptor(self._descriptor)

    def _read(self, one: FileRange, batch: IoBatch[None]) -> Ending:
        buffer, memory, done = _buffer(self._piece_bytes), one.memory.cast("B"), 0
        while done < memory.nbytes:
            want = min(self._piece_bytes, memory.nbytes - done)
            got = os.preadv(self._descriptor, (buffer[:want],), one.offset_bytes + done)
            if not got:
                self._is_lost = True  # it was cut off
                return Ending.FAILED
            with batch.lock:
                if batch.is_abandoned:
                    return Ending.UNKNOWN
                memory[done : done + got] = buffer[:got]
            done += got
        return Ending.DONE

    def _write(self, one: FileRange, batch: IoBatch[None]) -> Ending:
        memory, done = one.memory.cast("B"), 0
        while done < memory.nbytes:
            if batch.is_abandoned:
                return Ending.UNKNOWN
            done += os.pwritev(self._descriptor, (memory[done:],), one.offset_bytes + done)
        return Ending.DONE


_BUFFERS = threading.local()


def _buffer(size_bytes: int) -> memoryview:
    """This thread's buffer, of so many bytes at least."""
    found = getattr(_BUFFERS, "memory", None)
    if found is None or found.nbytes < size_bytes:
        found = _BUFFERS.memory = memoryview(mmap.mmap(-1, size_bytes))
    assert isinstance(found, memoryview)
    return found
