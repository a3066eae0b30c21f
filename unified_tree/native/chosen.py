"""The functions of the C modules where those were compiled, else the same in Python.

The default clock is `coarse_monotonic_s`: the monotonic one as of the kernel's last tick, some milliseconds behind at most.
Ages are told no finer, and it costs an eighth to read.

Tuples that are kept, one or more for each node, are `untracked` or made by `with_item`: in C, the garbage collector does not
look at them. Compiled, nothing in a tree can be part of a cycle that only the collector would free, and it knows of no object
of it. But every new tuple is on its list until it comes by, and while as much is freed as is made it comes by seldom: then it
looks at all tuples of the tree at once, for some ms in the middle of some request.
"""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

try:
    from unified_tree.native.monotonic import coarse_monotonic_s
except ImportError:
    from time import monotonic as coarse_monotonic_s
try:
    from unified_tree.native.key_bytes import agreement, page_code
except ImportError:
    from unified_tree.native.fallbacks import agreement, page_code
try:
    from unified_tree.native.untracked_tuples import untracked, with_item
except ImportError:
    from unified_tree.native.fallbacks import untracked, with_item

__all__ = ["agreement", "coarse_monotonic_s", "page_code", "untracked", "with_item"]
