"""CPU memory for whole pools, in huge pages where the kernel grants them.

Pages of a pool are read in any order, in pieces of some ten kilobytes, and every piece starts with TLB misses: with pages of 4
KiB that halves the speed of such copies. So pools use numpy's allocator, which asks Linux for huge pages (from 4 MiB on), and
not torch's, which does not. A kernel whose setting is `never`, or another system, gives ordinary pages.
"""

from __future__ import annotations

import numpy as np

from unified_tree.controllers.tensors import torch

ALIGNMENT_BYTES = 2 << 20
"""A huge page, which must start at a multiple of its size. Pools below that are aligned to a line of the cache."""
LINE_BYTES = 64


def cpu_memory(size_bytes: int) -> torch.Tensor:
    """uint8 [size_bytes], aligned to 64 bytes or more; not touched before it is written, and never cleared. Cost: O(1)."""
    alignment = ALIGNMENT_BYTES if size_bytes >= ALIGNMENT_BYTES else LINE_BYTES
    memory = np.empty(size_bytes + alignment, dtype=np.uint8)
    begin = -memory.ctypes.data % alignment
    return torch.from_numpy(memory[begin : begin + size_bytes])
