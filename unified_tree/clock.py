"""The clock that a tree has by default: `time.monotonic`, read by the C module `monotonic` where that was compiled and the same
clock is behind both.
"""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

import time
from collections.abc import Callable

try:
    from unified_tree.monotonic import monotonic_s
except ImportError:
    from time import monotonic as monotonic_s

IS_SAME = time.get_clock_info("monotonic").implementation == "clock_gettime(CLOCK_MONOTONIC)"


def fastest(time_s: Callable[[], float]) -> Callable[[], float]:
    """What reads a clock in the least time: the C module's for `time.monotonic`, and any other as it is."""
    return monotonic_s if time_s is time.monotonic and IS_SAME else time_s


__all__ = ["fastest", "monotonic_s"]
