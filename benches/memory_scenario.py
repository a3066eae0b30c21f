"""Bytes a node: how much the process's resident memory grows with the tree."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from pathlib import Path

from benches.scenarios import Scenario

FIRST_LEAVES = 100


class Memory(Scenario):
    """Grow a tree of leaves and look at the resident set before and after."""

    question = "How many bytes of the process does a node take, its edge, values, page ids and order entries included?"
    silent_on = "long edges, and memory that was free in the process before"
    unit = "bytes"
    warm_up = 0

    def fill_up(self) -> None:
        """A few leaves, so that what is made once is there before the first look."""
        self.leaves.grow(FIRST_LEAVES)

    def sample(self) -> int:
        """Bytes a node, rounded."""
        before = resident_bytes()
        self.leaves.grow(FIRST_LEAVES + self.case.tree_nodes)
        return round((resident_bytes() - before) / self.case.tree_nodes)


def resident_bytes() -> int:
    """The resident set of this process, after giving back what can be given back; 0 where /proc is not there."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
