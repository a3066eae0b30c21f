"""A double of 3FS's USRBIO binding (`hf3fs_fuse.io`), written from its public calls; the pages lie in files of a directory.

Completions come in random order. What goes wrong is decided by a test: short and failed requests, requests that take long
and land much later, a daemon that does not answer at all, or is dead. Nothing waits: the double's clock leaps over the time
in which nothing comes.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import TracebackType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prepared request."""

    is_read: bool
    memory: memoryview
    descriptor: int
    offset: int
    userdata: Any

    def carry_out(self, size: int) -> int:
        """Move so many bytes; how many were, or -errno."""
        try:
            if self.is_read:
                return os.preadv(self.descriptor, [self.memory[:size]], self.offset)
            return os.pwrite(self.descriptor, self.memory[:size], self.offset)
        except OSError as error:
            return -int(error.errno or errno.EIO)


@dataclass(frozen=True, slots=True)
class Completion:
    """What `wait` gives."""

    result: int
    userdata: Any


class LeapingClock:
    """The machine's clock, ahead by what was not waited. It stands for the module `time`."""

    def __init__(self) -> None:
        self.leapt_s = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return time.monotonic() + self.leapt_s


class UsrbioDouble:
    """Does what the module `hf3fs_fuse.io` does, for files below a directory, its mount.

    Attributes:
        fate: of each request: how many of its bytes are moved, or -errno; None keeps it back until `let_go`. Nothing goes
            wrong by default.
        before_answers: called when requests were carried out, before `wait` tells.
        is_frozen: no request is carried out.
        dead: the errno of every call; 0 for none.
        registered: descriptors.
        shared: names of the shared memory that was given.
        clock: whoever calls a double that does not answer must go by it.
    """

    def __init__(self, mount: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.mount = mount
        self.fate: Callable[[Request], int | None] = lambda request: request.memory.nbytes
        self.before_answers: Callable[[], None] = lambda: None
        self.is_frozen = False
        self.dead = 0
        self.registered: set[int] = set()
        self.shared: set[str] = set()
        self.rings: list[Ring] = []
        self.clock = LeapingClock()

    def register_fd(self, descriptor: int) -> None:
        self._live()
        assert descriptor not in self.registered
        self.registered.add(descriptor)

    def deregister_fd(self, descriptor: int) -> None:
        self.registered.remove(descriptor)

    def extract_mount_point(self, path: str) -> str | None:
        return str(self.mount) if Path(path).is_relative_to(self.mount) else None

    def make_iovec(self, shm: SharedMemory, mount: str, block_size: int = 0, numa: int = -1) -> memoryview:
        self._live()
        assert mount == str(self.mount) and block_size == 0 and numa == -1
        self.shared.add(shm.name.lstrip("/"))
        return mapped(shm)

    def make_ioring(self, mount: str, entries: int, for_read: bool = True, io_depth: int = 0) -> Ring:
        self._live()
        assert mount == str(self.mount) and io_depth == 0
        ring = Ring(self, entries, for_read)
        self.rings.append(ring)
        return ring

    def let_go(self) -> None:
        """Carry out all that was kept back, wherever it lands."""
        for ring in self.rings:
            ring.let_go()

    def _live(self) -> None:
        if self.dead:
            raise OSError(self.dead, os.strerror(self.dead))

    def __enter__(self) -> UsrbioDouble:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.rings.clear()


def mapped(shm: SharedMemory) -> memoryview:
    """The daemon's own mapping of shared memory, which outlives its name and the other mapping."""
    descriptor = os.open(f"/dev/shm/{shm.name.lstrip('/')}", os.O_RDWR)
    try:
        return memoryview(mmap.mmap(descriptor, shm.size))
    finally:
        os.close(descriptor)


class Ring:
    """A ring: requests are prepared by one thread at a time, and waited for."""

    def __init__(self, double: UsrbioDouble, entries: int, for_read: bool) -> None:
        self._double = double
        self._entries = entries
        self._for_read = for_read
        self._prepared: list[Request] = []
        self._sent: list[Request] = []
        self._kept: list[Request] = []
        self._late: list[Completion] = []
        self._user = threading.Lock()

    def prepare(self, iov: memoryview, is_read: bool, descriptor: int, offset: int, userdata: Any = None) -> None:
        assert self._user.acquire(blocking=False), "a ring is for one thread at a time"
        try:
            self._double._live()
            assert is_read == self._for_read and descriptor in self._double.registered
            assert len(self._prepared) + len(self._sent) + len(self._kept) < self._entries, "the ring is full"
            self._prepared.append(Request(is_read=is_read, memory=iov, descriptor=descriptor, offset=offset, userdata=userdata))
        finally:
            self._user.release()

    def submit(self) -> Ring:
        self._double._live()
        self._sent += self._prepared
        self._prepared.clear()
        return self

    def wait(self, max_results: int = 0, min_results: int = 0, timeout: timedelta = timedelta(seconds=60)) -> list[Completion]:
        assert self._user.acquire(blocking=False), "a ring is for one thread at a time"
        try:
            found = self._ended(max_results, min_results)
            if len(found) < min_results:
                self._double.clock.leapt_s += timeout.total_seconds()
            self._double.before_answers()
            return found
        finally:
            self._user.release()

    def let_go(self) -> None:
        for request in self._kept:
            self._late.append(Completion(request.carry_out(request.memory.nbytes), request.userdata))
        self._kept.clear()

    def _ended(self, max_results: int, min_results: int) -> list[Completion]:
        self._double._live()
        found, self._late = self._late, []
        while self._sent and not self._double.is_frozen:
            self._double.random.shuffle(self._sent)
            if min_results and not max_results and len(self._sent) > min_results:
                some, self._sent = self._sent[:min_results], self._sent[min_results:]
            else:
                some, self._sent = self._sent, []
            for request in some:
                fate = self._double.fate(request)
                if fate is None:
                    self._kept.append(request)
                else:
                    found.append(Completion(fate if fate < 0 else request.carry_out(fate), request.userdata))
            if len(found) >= min_results:
                break
        return found
