"""How much memory of which kind a workload needs: hits over sizes, from a model of the cache.

`LiveSizes` shows the curve of a running cache in its `stats()`; the command `unified-tree size` has those of a trace.
"""

from unified_tree.controllers.counters.observers import LiveCurve, LiveSize
from unified_tree.controllers.workbench.sizing.live_sizes import LiveSizes

__all__ = ["LiveCurve", "LiveSize", "LiveSizes"]
