"""What goes before all that a policy ranks: the classes of an eviction order, the first one first."""

from __future__ import annotations

from typing import Final

STRANDED: Final = 0
"""No boundary (a length one can resume from) needs it."""
SPARE: Final = 1
"""Only a branch in the middle of a prompt would need it; see `UnifiedTree.insert`."""
COPIED: Final = 2
"""The other tier has it, too; only where a pool evicts such values first."""
NEEDED: Final = 3
URGENCIES: Final = 4
