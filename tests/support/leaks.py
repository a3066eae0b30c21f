"""What a process holds that a cache might have left behind: threads, open files, shared memory."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from waiting import PATIENCE_S

SHARED = Path("/dev/shm")


class Holdings:
    """What this process holds at one moment; of shared memory what it has mapped, or what bears its number."""

    def __init__(self) -> None:
        self.threads = Counter(thread.name.rstrip("0123456789") for thread in threading.enumerate())
        self.files: Counter[str] = Counter()
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the one that lists them
                self.files[_kind(os.readlink(f"/proc/self/fd/{number}"))] += 1
        mapped = Path("/proc/self/maps").read_text()
        tag = f"_{os.getpid()}_"
        self.segments = {name for name in os.listdir(SHARED) if tag in name or f"{SHARED}/{name}" in mapped}

    def more_than(self, before: Holdings) -> list[str]:
        """What is there now and was not then."""
        return [
            *(f"thread {name}" for name in (self.threads - before.threads).elements()),
            *(f"file {name}" for name in (self.files - before.files).elements()),
            *(f"segment {name}" for name in self.segments - before.segments),
        ]


def check_nothing_leaks(before: Holdings, seconds: float = PATIENCE_S) -> None:
    """Threads that were told to end may take their time."""
    deadline = time.monotonic() + seconds
    while left := Holdings().more_than(before):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.01)


def _kind(target: str) -> str:
    """Sockets and pipes have a number of their own each."""
    return target.partition("[")[0]
