"""The interface between the engine and the file of a rank: read and write these ranges of it, by threads for calls that may
never return.

A mount whose daemon is frozen blocks without limit, and nothing interrupts it. The caller waits until its deadline and no
longer. A thread that is stuck stays so until the call returns, and then goes on; while all are, nothing is begun. They are
daemons, so that they do not keep a process from ending.

A file of a mount is read and written by `preadv` and `pwritev` in such threads. Writes go straight from the caller's memory:
what was not confirmed counts for nothing, so it does not matter if that memory changes under a write that comes late. Reads
must not come late into memory that has another owner by then; they go through a small buffer of the thread, which stays
in the processor's cache, and are copied on while the caller is still there.
"""

from __future__ import annotations

import errno
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Generic, Protocol, TypeVar

MOUNT_IS_GONE = frozenset({errno.ENOTCONN, errno.ESTALE, errno.ENODEV, errno.EBADF, errno.ENXIO, errno.ECONNABORTED})
"""Numbers of errors after which a file must be opened anew: its descriptor does not come back with the mount."""


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

    After a call no thread touches the memory, except that what is being written may still be read. Each call ends by its
    deadline, an instant of `time.monotonic`, whatever the file system does. None raises for what fails but StorageError.
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


Result = TypeVar("Result")


class IoBatch(Generic[Result]):
    """Calls that one caller waits for together.

    Attributes:
        lock: held whenever results change; whoever holds it and sees `is_abandoned` false may touch the caller's memory.
        is_abandoned: the caller has gone.
        results: of each call; None for those that have not ended.
    """

    def __init__(self, calls: list[Callable[[IoBatch[Result]], Result]]) -> None:
        self.lock = threading.Lock()
        self.is_abandoned = False
        self.results: list[Result | None] = [None] * len(calls)
        self._calls = calls
        self._left = len(calls)
        self._done = threading.Event()

    def run(self, index: int) -> None:
        """Make a call, unless the caller has gone."""
        with self.lock:
            if self.is_abandoned:
                return
        result = self._calls[index](self)
        with self.lock:
            self.results[index] = result
            self._left -= 1
            if not self._left:
                self._done.set()

    def wait(self, deadline: float) -> None:
        """Until all have ended, or the deadline; from then on the caller's memory is not touched."""
        self._done.wait(max(0.0, deadline - time.monotonic()))
        with self.lock:
            self.is_abandoned = True


def close_descriptor(descriptor: int, wait_s: float) -> None:
    """Close a file in a thread of its own, and wait for that no longer than this: a frozen mount holds up even that."""

    def close() -> None:
        with suppress(OSError):  # a mount that is gone says so, but the descriptor is closed
            os.close(descriptor)

    thread = threading.Thread(target=close, name="hf3fs close", daemon=True)
    thread.start()
    thread.join(wait_s)


class IoWorkers:
    """At most so many threads; each begins when there is work and ends when there was none for a while.

    Args:
        count: of threads.
        name: of them.
        idle_s: after which a thread without work ends.
        close_wait_s: how long closing a file is waited for.

    Attributes:
        count: the same.
    """

    def __init__(self, count: int, name: str, *, idle_s: float, close_wait_s: float) -> None:
        self.count = count
        self._idle_s = idle_s
        self._close_wait_s = close_wait_s
        self._name = name
        self._work: queue.SimpleQueue[tuple[IoBatch[object], int] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._running: list[IoBatch[object]] = []
        self._closed = False

    @property
    def are_all_stuck(self) -> bool:
        """Whether every thread is at work for a caller that has gone: nothing would be begun."""
        with self._lock:
            return len(self._running) >= self.count and all(batch.is_abandoned for batch in self._running)

    def run(self, calls: list[Callable[[IoBatch[Result]], Result]], deadline: float) -> IoBatch[Result]:
        """Make the calls and wait until the deadline; see the batch for what became of them. No call may raise."""
        batch = IoBatch(calls)
        if calls:
            with self._lock:
                wanted = 0 if self._closed else min(self.count - self._threads, len(calls))
                self._threads += wanted
                for index in range(len(calls)):
                    self._work.put((batch, index))  # type: ignore[arg-type]
            for _ in range(wanted):
                threading.Thread(target=self._loop, name=self._name, daemon=True).start()
            batch.wait(deadline)
        return batch

    def close_descriptor(self, descriptor: int) -> None:
        """Close a file, and wait for that as long as the settings say."""
        close_descriptor(descriptor, self._close_wait_s)

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        with self._lock:
            self._closed = True
            threads = self._threads
        for _ in range(threads):
            self._work.put(None)

    def _loop(self) -> None:
        while True:
            try:
                found = self._work.get(timeout=self._idle_s)
            except queue.Empty:
                found = None
            with self._lock:
                if found is None:
                    if self._closed or self._work.empty():
                        self._threads -= 1
                        return
                    continue
                batch, index = found
                self._running.append(batch)
            try:
                batch.run(index)
            finally:
                with self._lock:
                    self._running.remove(batch)


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
