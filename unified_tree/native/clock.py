"""The clock that a tree has by default: the monotonic one as of the kernel's last tick, some milliseconds behind at most, where
the C module `monotonic` was compiled, and else `time.monotonic`. Ages are told no finer, and it costs an eighth to read.
"""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

try:
    from unified_tree.native.monotonic import coarse_monotonic_s
except ImportError:
    from time import monotonic as coarse_monotonic_s

__all__ = ["coarse_monotonic_s"]
